"""Curves of several runs: the mean over seeds as a line, lowest to highest as a band, single seeds thin."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ops.inspect.report import drawing
from ops.inspect.report.comparison import Comparison, Group, Series, final_accuracy
from ops.inspect.report.curves import few_ticks_on_log, only_finite, room_at_hundred, series_of
from ops.inspect.report.drawing import FAINT, MARKERS, SERIES, NothingToDraw, Plot
from ops.inspect.report.reading import Run
from server_worker.watch.events import RoundRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NAMED_GROUPS = 16
"""With more groups, the legend shows only their letters."""
MOST_GROUPS_IN_A_LEGEND = 20


def by_round(value: Callable[[RoundRecord], float | None]) -> Series:
    return lambda run: only_finite({record.round: value(record) for record in run.records})


Curve = tuple[str, str, str, Series]
"""Title, axis, scale, values"""


def curves_of(comparison: Comparison) -> dict[str, Curve]:
    """By name: the engine's, and what the methods of the runs declare"""
    displays = {run.recipe.method.name: run.display for run in comparison.runs}.values()
    found: dict[str, Curve] = {}
    for model in (model for display in displays for model in display.models):
        title = "Test accuracy" if model.name == "global" else f"Test accuracy: {model.title}"
        name = "accuracy" if model.name == "global" else f"accuracy_{model.name}"
        found.setdefault(name, (title, "accuracy", "percent", partial(Run.accuracy, model=model.name)))
    norms = by_round(lambda r: r.delta_norm if r.delta_norm > 0 else None)
    found["delta_norm"] = "Size of the steps ‖Δθ‖", "norm", "log", norms
    accepted = by_round(lambda r: r.accepted / r.selected if r.selected else None)
    found["accepted"] = "Updates that counted", "of those asked", "percent", accepted
    for chart in (chart for display in displays for chart in display.charts):
        for series in chart.series:
            scale = "percent" if series.unit == "share" else "log" if chart.log else "plain"
            curve = (f"{chart.title}: {series.title}", series.unit or series.title, scale)
            found.setdefault(series.name, (*curve, partial(series_of, name=series.name, positive=chart.log)))
    found["seconds"] = "Time of a round", "seconds", "plain", by_round(lambda r: r.seconds.get("total"))
    return found


def comparison_plots(comparison: Comparison) -> list[Plot]:
    final = Plot(
        "final_accuracy",
        "Accuracy at the end",
        partial(draw_final, comparison=comparison),
        "At the last evaluation of every run; the bar is their mean, the dotted mark the server-only baseline.",
        size=(4.8, max(2.0, 0.9 + 0.42 * len(comparison.groups))),
    )
    drawn = [
        Plot(
            name,
            title,
            partial(draw_curve, comparison=comparison, axis=axis, scale=scale, series=series),
            size=(4.8, 2.5 + 0.2 * _legend_rows(comparison)),
        )
        for name, (title, axis, scale, series) in curves_of(comparison).items()
    ]
    return [drawn[0], final, *drawn[1:]]


def draw_curve(figure: "Figure", comparison: Comparison, axis: str, scale: str, series: Series) -> None:
    axes = figure.subplots()
    if scale == "log":
        axes.set_yscale("log")
    rounds: set[int] = set()
    for place, group in enumerate(comparison.groups):
        named = len(comparison.groups) <= MOST_NAMED_GROUPS
        rounds |= _draw_group(axes, group, place, series, named)
    if not rounds:
        raise NothingToDraw("no run has measured it")
    drawing.rounds_axis(axes, rounds)
    axes.set_ylabel(axis)
    if scale == "percent":
        room_at_hundred(axes)
        drawing.percent_axis(axes, axis)
    elif scale == "plain":
        axes.set_ylim(bottom=0, top=None if axes.dataLim.y1 > 0 else 1)
    elif scale == "log":
        few_ticks_on_log(axes)
    drawing.legend(axes, columns=2 if len(comparison.groups) <= MOST_NAMED_GROUPS else 5)


def _legend_rows(comparison: Comparison) -> int:
    groups = len(comparison.groups)
    return -(-groups // 2) if groups <= MOST_NAMED_GROUPS else 4


def _draw_group(axes: "Axes", group: Group, place: int, series: Series, named: bool) -> set[int]:
    look = drawing.look(place)
    measured = replace(group, runs=tuple(run for run in group.runs if series(run)))
    rounds, matrix = measured.common(series)
    runs = len(measured.runs)
    several = runs > 1
    text = f"{drawing.label(group.label, 22)} (n = {runs})" if named else f"{group.letter} ({runs})"
    if several:
        for run in measured.runs:
            values = series(run)
            axes.plot(list(values), list(values.values()), color=look["color"], linewidth=0.6, alpha=0.45)
    if several and rounds:
        low, high = matrix.min(axis=0), matrix.max(axis=0)
        axes.fill_between(rounds, low, high, color=look["color"], alpha=0.18, linewidth=0)
    if rounds:
        axes.plot(
            rounds,
            matrix.mean(axis=0),
            **look,
            label=text if place < MOST_GROUPS_IN_A_LEGEND else None,
            marker=MARKERS[place % len(MARKERS)] if len(rounds) <= 12 else "",
        )
    return {number for run in measured.runs for number in series(run)}


def draw_final(figure: "Figure", comparison: Comparison) -> None:
    axes = figure.subplots()
    spreads = [final_accuracy(group, "global") for group in comparison.groups]
    if not any(spreads):
        raise NothingToDraw("no run was evaluated")
    for place, (group, spread) in enumerate(zip(comparison.groups, spreads, strict=True)):
        if spread is None:
            continue
        colour = SERIES[place % len(SERIES)]
        axes.plot(spread.values, [place] * spread.n, MARKERS[place % len(MARKERS)], color=colour, alpha=0.75)
        axes.plot([spread.mean] * 2, [place - 0.3, place + 0.3], color=colour, linewidth=2.2)
        for run in group.runs:
            if run.baseline is not None:
                axes.plot(
                    [run.baseline] * 2, [place - 0.2, place + 0.2], color=FAINT, linestyle=":", linewidth=1.4
                )
    axes.set_yticks(
        range(len(comparison.groups)),
        [f"{drawing.label(group.label, 22)}\n(n = {len(group.runs)})" for group in comparison.groups],
    )
    axes.set_ylim(len(comparison.groups) - 0.4, -0.6)
    axes.set_xlabel("accuracy")
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(drawing.percent_formatter())
