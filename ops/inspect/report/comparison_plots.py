"""Curves of several runs: the mean over seeds as a line, lowest to highest as a band, single seeds thin."""

from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ops.inspect.report import drawing
from ops.inspect.report.comparison import Comparison, Group, Series, at_common_rounds
from ops.inspect.report.curves import series_of
from ops.inspect.report.drawing import FAINT, MARKERS, SERIES, Missing, Plot, Scale
from ops.inspect.report.reading import Run

MOST_NAMED_GROUPS = 16
"""With more groups, the legend shows only their letters."""
MOST_GROUPS_IN_A_LEGEND = 20


Curve = tuple[str, str, Scale, Series]
"""Title, axis, scale, values"""


def curves_of(comparison: Comparison) -> dict[str, Curve]:
    """By name: the engine's, and what the methods of the runs declare"""
    displays = {run.recipe.method.name: run.display for run in comparison.runs}.values()
    found: dict[str, Curve] = {}
    for model in (model for display in displays for model in display.models):
        title = "Test accuracy" if model.name == "global" else f"Test accuracy: {model.label}"
        name = "accuracy" if model.name == "global" else f"accuracy_{model.name}"
        found.setdefault(name, (title, "accuracy", "percent", partial(Run.accuracy, model=model.name)))
    norms = partial(Run.by_round, value=lambda r: r.delta_norm if r.delta_norm > 0 else None)
    found["delta_norm"] = "Update size ‖Δθ‖", "norm", "log", norms
    accepted = partial(Run.by_round, value=lambda r: r.accepted / r.selected if r.selected else None)
    found["accepted"] = "Updates that counted", "of those asked", "percent", accepted
    for chart in (chart for display in displays for chart in display.charts):
        for series in chart.series:
            scale: Scale = "percent" if series.unit == "share" else "log" if chart.log else "plain"
            curve = (f"{chart.title}: {series.title}", series.unit or series.title, scale)
            found.setdefault(series.name, (*curve, partial(series_of, name=series.name, positive=chart.log)))
    seconds = partial(Run.by_round, value=lambda r: r.seconds.get("total"))
    found["seconds"] = "Time of a round", "seconds", "plain", seconds
    return found


def comparison_plots(comparison: Comparison) -> list[Plot]:
    groups = len(comparison.groups)
    explained = "At the last evaluation of every run; the bar is their mean, the dotted mark the server-only baseline."
    draw = partial(draw_final, comparison=comparison)
    size = (4.8, max(2.0, 0.9 + 0.42 * groups))
    final = Plot("final_accuracy", "Accuracy at the end", draw, explained, size)
    size = (4.8, 2.5 + 0.2 * (-(-groups // 2) if groups <= MOST_NAMED_GROUPS else 4))
    drawn = [
        Plot(name, curve[0], partial(draw_curve, comparison=comparison, curve=curve), size=size)
        for name, curve in curves_of(comparison).items()
    ]
    return [drawn[0], final, *drawn[1:]]


def draw_curve(figure: Figure, comparison: Comparison, curve: Curve) -> None:
    _, axis, scale, series = curve
    axes = figure.subplots()
    rounds: set[int] = set()
    named = len(comparison.groups) <= MOST_NAMED_GROUPS
    for place, group in enumerate(comparison.groups):
        rounds |= _draw_group(axes, group, place, series, named)
    if not rounds:
        raise Missing("no run has measured it")
    drawing.finish(axes, rounds, scale, axis, columns=2 if named else 5)


def _draw_group(axes: Axes, group: Group, place: int, series: Series, named: bool) -> set[int]:
    look = drawing.look(place)
    measured = [values for run in group.runs if (values := series(run))]
    rounds, matrix = at_common_rounds(measured)
    if len(measured) > 1:
        for values in measured:
            axes.plot(list(values), list(values.values()), color=look["color"], linewidth=0.6, alpha=0.45)
        if rounds:
            low, high = matrix.min(axis=0), matrix.max(axis=0)
            axes.fill_between(rounds, low, high, color=look["color"], alpha=0.18, linewidth=0)
    if rounds:
        text = f"{drawing.label(group.label, 22)} (n = {len(measured)})"
        text = text if named else f"{group.letter} ({len(measured)})"
        marker = MARKERS[place % len(MARKERS)] if len(rounds) <= 12 else ""
        legend = text if place < MOST_GROUPS_IN_A_LEGEND else None
        axes.plot(rounds, matrix.mean(axis=0), **look, label=legend, marker=marker)
    return {number for values in measured for number in values}


def draw_final(figure: Figure, comparison: Comparison) -> None:
    axes = figure.subplots()
    accuracies = [group.final_accuracy("global") for group in comparison.groups]
    if not any(accuracies):
        raise Missing("no run was evaluated")
    for place, (group, found) in enumerate(zip(comparison.groups, accuracies, strict=True)):
        if not found:
            continue
        colour = SERIES[place % len(SERIES)]
        axes.plot(found, [place] * len(found), MARKERS[place % len(MARKERS)], color=colour, alpha=0.75)
        axes.vlines(np.mean(found), place - 0.3, place + 0.3, color=colour, linewidth=2.2)
        baselines = [run.baseline for run in group.runs if run.baseline is not None]
        axes.vlines(baselines, place - 0.2, place + 0.2, color=FAINT, linestyle=":", linewidth=1.4)
    names = [f"{drawing.label(group.label, 22)}\n(n = {len(group.runs)})" for group in comparison.groups]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel("accuracy")
    axes.set_xlim(None, min(axes.get_xlim()[1], 1.0))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(drawing.percent)
