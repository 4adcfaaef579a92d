"""The curves of one run, from its history."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedil_model.methods.interface import Chart, ClientValue
from ops.inspect.report import drawing
from ops.inspect.report.drawing import NothingToDraw, Plot
from ops.inspect.report.reading import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENGINE_OUTCOMES = ("accepted", "invalid", "stale")
STYLES = (
    (drawing.BLUE, "o"),
    (drawing.PURPLE, "v"),
    (drawing.ORANGE, "^"),
    (drawing.GREEN, "s"),
    (drawing.RED, "x"),
    (drawing.SKY, "D"),
    (drawing.INK, "+"),
    (drawing.FAINT, "*"),
)
"""Colours and markers of the engine's outcomes and then of the method's"""
PHASES = {
    "server_step": ("server step", drawing.ORANGE),
    "broadcast": ("broadcast", drawing.PURPLE),
    "wait": ("waiting for clients", drawing.BLUE),
    "fold": ("fold", drawing.GREEN),
    "checkpoint": ("checkpoint", drawing.RED),
}
MOST_POINTS_AS_SHAPES = 3000
MOST_BARS = 60


def curves(run: Run) -> list[Plot]:
    plots = [
        Plot(
            "accuracy",
            "Test accuracy",
            partial(draw_accuracy, run=run),
            "; ".join(
                f"{model.title}: {model.help}" for model in run.display.models if run.accuracy(model.name)
            ),
        ),
        Plot(
            "delta_norm",
            "Size of the steps ‖Δθ‖",
            partial(draw_delta_norm, run=run),
            "How far the global model moved in each round (logarithmic), and the mean of the last ten rounds.",
        ),
        *(
            Plot(
                value.name,
                f"{value.title[:1].upper()}{value.title[1:]} of every client’s update",
                partial(draw_client_value, run=run, value=value),
                value.help,
            )
            for value in _measured(run)
        ),
        *(
            Plot(_slug(chart.title), chart.title, partial(draw_chart, run=run, chart=chart), chart.help)
            for chart in run.display.charts
        ),
        Plot(
            "seconds",
            "Where the time goes",
            partial(draw_seconds, run=run),
            "Seconds of each round by phase. Evaluation runs beside the next round.",
        ),
    ]
    if run.recipe.federation.mode == "buffered":
        plots.append(
            Plot(
                "staleness",
                "Staleness",
                partial(draw_staleness, run=run),
                "How many versions old the model was that an update started from.",
            )
        )
    return plots


def _measured(run: Run) -> Sequence[ClientValue]:
    """Client values that some update has: which ones depends on settings. The first also where none has."""
    values = run.display.client_values
    known = {name for record in run.records for outcome in record.outcomes for name in outcome.values}
    return [value for value in values if value.name in known] or values[:1]


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")


def _rounds(run: Run) -> list[int]:
    if not run.records:
        raise NothingToDraw(run.no_rounds)
    return [record.round for record in run.records]


def draw_accuracy(figure: "Figure", run: Run) -> None:
    rounds, axes = _rounds(run), figure.subplots()
    if not run.evaluated:
        raise NothingToDraw("no round was evaluated")
    for place, model in enumerate(run.display.models):
        known = run.accuracy(model.name)
        marker = drawing.marker_for(len(known))
        _line(axes, known, drawing.label(model.title), **drawing.look(place), marker=marker)
    if run.baseline is not None:
        axes.axhline(run.baseline, color=drawing.FAINT, linestyle=(0, (1, 1.5)), label="server-only")
    drawing.rounds_axis(axes, rounds)
    drawing.percent_axis(axes, "accuracy")
    drawing.legend(axes, columns=4)


def draw_delta_norm(figure: "Figure", run: Run) -> None:
    rounds, axes = _rounds(run), figure.subplots()
    norms = {record.round: record.delta_norm for record in run.records}
    averages = {record.round: record.convergence.get("moving_average") for record in run.records}
    if not only_positive(norms):
        raise NothingToDraw("the global model has not moved in any round")
    axes.set_yscale("log")
    # NaN breaks the line in rounds without a step.
    moved = {number: norm if 0 < norm < math.inf else math.nan for number, norm in norms.items()}
    marker = drawing.marker_for(len(norms))
    _line(axes, moved, "‖Δθ‖", color=drawing.BLUE, linewidth=0.8, marker=marker)
    _line(axes, only_positive(averages), "mean of 10", color=drawing.RED, linewidth=2.0)
    still = {number: 0.02 for number, norm in norms.items() if norm == 0}
    bottom: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "color": drawing.PURPLE}
    _line(axes, still, f"Δθ = 0 ({len(still)} rounds)", **bottom, marker="x", linestyle="None")
    drawing.rounds_axis(axes, rounds)
    few_ticks_on_log(axes)
    axes.set_ylabel("norm")
    drawing.legend(axes, columns=4)


def only_finite(values: Mapping[int, float | None]) -> dict[int, float]:
    return {key: value for key, value in values.items() if value is not None and math.isfinite(value)}


def only_positive(values: Mapping[int, float | None]) -> dict[int, float]:
    return {key: value for key, value in only_finite(values).items() if value > 0}


def _line(axes: "Axes", values: dict[int, float], name: str, **style: Any) -> None:
    if len(values) == 1:
        style.setdefault("marker", "o")  # a single round has no line
    if values:
        axes.plot(list(values), list(values.values()), label=name, **style)


def few_ticks_on_log(axes: "Axes") -> None:
    """Ticks with plain numbers also within a single decade, where matplotlib would set none."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_ylim()
    if high < 1.2 * low:  # a single value: all ticks would show the same number
        middle = math.sqrt(low * high)
        low, high = axes.set_ylim(middle / 1.2, middle * 1.2)
    decades = math.log10(high / low)
    parts = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if decades < 1 else (1.0, 2.0, 5.0) if decades < 3 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=parts, numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def draw_client_value(figure: "Figure", run: Run, value: ClientValue) -> None:
    rounds, axes = _rounds(run), figure.subplots()
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for record in run.records:
        for outcome in record.outcomes:
            found = outcome.values.get(value.name)
            if found is not None and math.isfinite(found):
                points[outcome.outcome].append((record.round, found))
    if not points:
        raise NothingToDraw(
            f"no update has a value of {value.title}: no client has answered, or it is not measured"
        )
    many = sum(map(len, points.values())) > MOST_POINTS_AS_SHAPES
    if value.threshold is not None:
        axes.axhline(value.threshold, color=drawing.INK, linewidth=1.0)
    declared = {outcome.name: outcome.title for outcome in run.display.outcomes}
    order = [*ENGINE_OUTCOMES, *declared]
    places = {kind: order.index(kind) if kind in order else len(order) for kind in points}
    for kind, place in sorted(places.items(), key=lambda item: item[1]):
        colour, marker = STYLES[place % len(STYLES)]
        xs, ys = zip(*points[kind], strict=True)
        # With thousands of points a bitmap is smaller than vector shapes.
        axes.scatter(
            xs,
            ys,
            s=3 if many else 16,
            color=colour,
            marker=marker,
            linewidths=1.1 if marker in "x+" else 0.0,
            alpha=0.35 if many else 0.75,
            label=f"{drawing.label(declared.get(kind, kind))} ({len(xs)})",
            rasterized=many,
        )
    drawing.rounds_axis(axes, rounds)
    axes.set_ylabel(value.title)
    drawing.legend(axes)


def draw_chart(figure: "Figure", run: Run, chart: Chart) -> None:
    """The declared series of one chart; without those that stay 0."""
    rounds, axes = _rounds(run), figure.subplots()
    found = {series: series_of(run, series.name) for series in chart.series}
    drawn = {series: values for series, values in found.items() if any(values.values())}
    if not drawn:
        raise NothingToDraw("not known" if not any(found.values()) else "zero in every round")
    if chart.log:
        axes.set_yscale("log")
        drawn = {series: only_positive(values) for series, values in drawn.items()}
    for place, (series, values) in enumerate(drawn.items()):
        marker = drawing.marker_for(len(values))
        _line(axes, values, drawing.label(series.title, 22), **drawing.look(place), marker=marker)
    drawing.rounds_axis(axes, rounds)
    units = {series.unit for series in drawn}
    if units == {"share"}:
        room_at_hundred(axes)
        drawing.percent_axis(axes, chart.series[0].title if len(drawn) == 1 else "share")
    elif chart.log:
        few_ticks_on_log(axes)
    else:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    if units <= {"samples", "norm"} and len(units) == 1:
        axes.set_ylabel(units.pop())
    drawing.legend(axes)


def series_of(run: Run, name: str, *, positive: bool = False) -> dict[int, float]:
    found = {record.round: record.series.get(name) for record in run.records}
    return only_positive(found) if positive else only_finite(found)


def room_at_hundred(axes: "Axes") -> None:
    low, high = axes.get_ylim()
    low = min(low, high - 0.01)
    axes.set_ylim(max(low, -0.02), min(high, 1.0 + 0.05 * (1.0 - max(low, 0.0)) + 1e-6))


def draw_seconds(figure: "Figure", run: Run) -> None:
    rounds, axes = _rounds(run), figure.subplots()
    phases = [phase for phase in PHASES if any(record.seconds.get(phase) for record in run.records)]
    if not phases:
        raise NothingToDraw("the history holds no times")
    seconds = np.array([[record.seconds.get(phase, 0.0) for record in run.records] for phase in phases])
    heights = np.where(np.isfinite(seconds), seconds, 0.0)
    names, colours = zip(*(PHASES[phase] for phase in phases), strict=True)
    if len(rounds) <= MOST_BARS:
        _stacked_bars(axes, rounds, heights, names, colours)
    else:
        axes.stackplot(rounds, heights, labels=names, colors=colours, linewidth=0)
    evaluation = {
        record.round: record.seconds["evaluate"] for record in run.records if "evaluate" in record.seconds
    }
    _line(axes, evaluation, "evaluation (beside)", color=drawing.INK, linestyle=":", linewidth=1.2)
    drawing.rounds_axis(axes, rounds)
    axes.set_ylabel("seconds")
    axes.set_ylim(bottom=0)
    drawing.legend(axes)


def _stacked_bars(
    axes: "Axes", rounds: Sequence[int], heights: np.ndarray, names: Sequence[str], colours: Sequence[str]
) -> None:
    """`heights`: names × rounds"""
    bottoms = heights.cumsum(axis=0) - heights
    for place, name in enumerate(names):
        colour = colours[place % len(colours)]
        axes.bar(rounds, heights[place], bottom=bottoms[place], color=colour, label=name, linewidth=0)


def draw_staleness(figure: "Figure", run: Run) -> None:
    rounds, axes = _rounds(run), figure.subplots()
    by_round = {
        record.round: [o.staleness for o in record.outcomes if o.staleness is not None]
        for record in run.records
    }  # fmt: skip
    levels = sorted({staleness for found in by_round.values() for staleness in found})
    if not levels:
        raise NothingToDraw("no update carries its staleness")
    colours = (drawing.SKY, drawing.BLUE, drawing.GREEN, drawing.ORANGE, drawing.RED, drawing.PURPLE)
    heights = np.array([[by_round[number].count(level) for number in rounds] for level in levels])
    _stacked_bars(axes, rounds, heights, [f"{level} old" for level in levels], colours)
    drawing.rounds_axis(axes, rounds)
    axes.set_ylabel("updates")
    drawing.legend(axes, columns=4)
