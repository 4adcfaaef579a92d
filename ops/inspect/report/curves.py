"""The curves of one run, from its history."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedil_model.methods.interface import Chart, ClientValue, Series
from ops.inspect.report import drawing
from ops.inspect.report.drawing import Missing, Plot, Scale
from ops.inspect.report.reading import Run
from server_worker.watch.words import evaluated_words

Axis = tuple[Scale, str]
"""Scale of the y axis, and what it shows"""
ENGINE_OUTCOMES = ("accepted", "invalid", "stale")
_COLOURS = (drawing.BLUE, drawing.PINK, drawing.GREEN, drawing.GOLD, drawing.ORANGE, drawing.VIOLET)
STYLES = tuple(zip((*_COLOURS, drawing.INK, drawing.FAINT), "ov^sxD+*", strict=True))
"""Colours and markers of the engine's outcomes and then of the method's"""
PHASES = {
    "server_step": ("server step", drawing.BLUE),
    "broadcast": ("broadcast", drawing.GOLD),
    "wait": ("waiting for clients", drawing.VIOLET),
    "fold": ("fold", drawing.ORANGE),
    "checkpoint": ("checkpoint", drawing.FAINT),
}
MOST_POINTS_AS_SHAPES = 3000
MOST_BARS = 60


def curves(run: Run) -> list[Plot]:
    models = [f"{model.label}: {model.help}" for model in run.display.models if run.accuracy(model.name)]
    if evaluated := evaluated_words(run.recipe.evaluate_every):
        models.append(evaluated)
    moved = "How far the global model moved in each round (logarithmic), and the mean of the last ten rounds."
    phases = "Seconds of each round by phase. Evaluation runs beside the next round."
    plots = [
        _plot(run, "accuracy", "Test accuracy", draw_accuracy, "; ".join(models)),
        _plot(run, "delta_norm", "Update size ‖Δθ‖", draw_delta_norm, moved),
    ]
    for value in _measured(run):
        title = f"{value.title[:1].upper()}{value.title[1:]} of every client’s update"
        plots.append(_plot(run, value.name, title, partial(draw_client_value, value=value), value.help))
    for chart in run.display.charts:
        name = re.sub(r"[^a-z0-9]+", "_", chart.title.lower()).strip("_")
        plots.append(_plot(run, name, chart.title, partial(draw_chart, chart=chart), chart.help))
    plots.append(_plot(run, "seconds", "Where the time goes", draw_seconds, phases))
    if run.recipe.federation.mode == "buffered":
        age = "How many versions old the model was that an update started from."
        plots.append(_plot(run, "staleness", "Staleness", draw_staleness, age))
    return plots


def _plot(run: Run, name: str, title: str, draw: Callable[[Axes, Run], Axis], caption: str) -> Plot:
    def draw_rounds(figure: Figure) -> None:
        if not run.records:
            raise Missing(run.no_rounds)
        axes = figure.subplots()
        drawing.finish(axes, [record.round for record in run.records], *draw(axes, run))

    return Plot(name, title, draw_rounds, caption)


def _measured(run: Run) -> Sequence[ClientValue]:
    """Client values that some update has: which ones depends on settings. The first also where none has."""
    values = run.display.client_values
    known = {name for record in run.records for outcome in record.outcomes for name in outcome.values}
    return [value for value in values if value.name in known] or values[:1]


def draw_accuracy(axes: Axes, run: Run) -> Axis:
    if not run.accuracy("global"):
        raise Missing("no round was evaluated")
    for place, model in enumerate(run.display.models):
        known = run.accuracy(model.name)
        marker = drawing.marker_for(len(known))
        _line(axes, known, drawing.label(model.label), **drawing.look(place), marker=marker)
    if run.baseline is not None:
        axes.axhline(run.baseline, color=drawing.FAINT, linestyle=(0, (1, 1.5)), label="server-only")
    return "percent", "accuracy"


def draw_delta_norm(axes: Axes, run: Run) -> Axis:
    steps = only_positive(run.by_round(lambda record: record.delta_norm))
    averages = run.by_round(lambda record: record.convergence.get("moving_average"))
    if not steps:
        raise Missing("the global model has not moved in any round")
    # NaN breaks the line in rounds without a step.
    moved = {record.round: steps.get(record.round, math.nan) for record in run.records}
    marker = drawing.marker_for(len(moved))
    _line(axes, moved, "update size", color=drawing.BLUE, linewidth=0.8, marker=marker)
    _line(axes, only_positive(averages), "mean of 10", color=drawing.ORANGE, linewidth=2.0)
    still = {record.round: 0.02 for record in run.records if record.delta_norm == 0}
    bottom: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "color": drawing.PINK}
    _line(axes, still, f"Δθ = 0 ({len(still)} rounds)", **bottom, marker="x", linestyle="None")
    return "log", "norm"


def only_positive(values: Mapping[int, float]) -> dict[int, float]:
    return {key: value for key, value in values.items() if value > 0}


def _line(axes: Axes, values: dict[int, float], name: str, **style: Any) -> None:
    if len(values) == 1:
        style.setdefault("marker", "o")  # a single round has no line
    if values:
        axes.plot(list(values), list(values.values()), label=name, **style)


def draw_client_value(axes: Axes, run: Run, value: ClientValue) -> Axis:
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for record in run.records:
        for outcome in record.outcomes:
            found = outcome.values.get(value.name)
            if found is not None and math.isfinite(found):
                points[outcome.outcome].append((record.round, found))
    if not points:
        raise Missing(
            f"no update has a value of {value.title}: no client has answered, or it is not measured"
        )
    many = sum(map(len, points.values())) > MOST_POINTS_AS_SHAPES
    if (threshold := value.threshold_of(run.recipe.method)) is not None:
        axes.axhline(threshold, color=drawing.INK, linewidth=1.0)
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
    return "free", value.title


def draw_chart(axes: Axes, run: Run, chart: Chart) -> Axis:
    """The declared series of one chart; without those that stay 0."""
    found = {series: series_of(run, series.name) for series in chart.series}
    drawn = {series: values for series, values in found.items() if any(values.values())}
    if not drawn:
        raise Missing("not known" if not any(found.values()) else "zero in every round")
    if all(map(is_constant, drawn.values())):
        told = (f"{one.title} is {_written(one, next(iter(known.values())))}" for one, known in drawn.items())
        raise Missing(f"{', '.join(told)} in every round")
    if chart.log:
        drawn = {series: only_positive(values) for series, values in drawn.items()}
    for place, (series, values) in enumerate(drawn.items()):
        marker = drawing.marker_for(len(values))
        _line(axes, values, drawing.label(series.title, 22), **drawing.look(place), marker=marker)
    units = {series.unit for series in drawn}
    if units == {"share"}:
        return "percent", chart.series[0].title if len(drawn) == 1 else "share"
    unit = units.pop() if len(units) == 1 else ""
    return "log" if chart.log else "plain", unit if unit in ("samples", "norm") else ""


def is_constant(values: Mapping[int, float]) -> bool:
    return len(values) > 2 and len(set(values.values())) == 1


def _written(series: Series, value: float) -> str:
    return f"{100 * value:.4g} %" if series.unit == "share" else f"{value:.4g}"


def series_of(run: Run, name: str, *, positive: bool = False) -> dict[int, float]:
    found = run.by_round(lambda record: record.series.get(name))
    return only_positive(found) if positive else found


def draw_seconds(axes: Axes, run: Run) -> Axis:
    phases = [phase for phase in PHASES if any(record.seconds.get(phase) for record in run.records)]
    if not phases:
        raise Missing("the history holds no times")
    seconds = np.array([[record.seconds.get(phase, 0.0) for record in run.records] for phase in phases])
    heights = np.where(np.isfinite(seconds), seconds, 0.0)
    names, colours = zip(*(PHASES[phase] for phase in phases), strict=True)
    if len(run.records) <= MOST_BARS:
        _stacked_bars(axes, run, heights, names, colours)
    else:
        axes.stackplot(
            [record.round for record in run.records], heights, labels=names, colors=colours, linewidth=0
        )
    evaluation = run.by_round(lambda record: record.seconds.get("evaluate"))
    _line(axes, evaluation, "evaluation (beside)", color=drawing.INK, linestyle=":", linewidth=1.2)
    return "plain", "seconds"


def _stacked_bars(
    axes: Axes, run: Run, heights: np.ndarray, names: Sequence[str], colours: Sequence[str]
) -> None:
    """`heights`: names × rounds"""
    rounds = [record.round for record in run.records]
    bottoms = heights.cumsum(axis=0) - heights
    for place, name in enumerate(names):
        colour = colours[place % len(colours)]
        axes.bar(rounds, heights[place], bottom=bottoms[place], color=colour, label=name, linewidth=0)


def draw_staleness(axes: Axes, run: Run) -> Axis:
    by_round = [[o.staleness for o in record.outcomes if o.staleness is not None] for record in run.records]
    levels = sorted({staleness for found in by_round for staleness in found})
    if not levels:
        raise Missing("no update carries its staleness")
    heights = np.array([[found.count(level) for found in by_round] for level in levels])
    _stacked_bars(axes, run, heights, [f"{level} old" for level in levels], _COLOURS)
    return "plain", "updates"
