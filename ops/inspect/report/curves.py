"""The curves of one run, from its history."""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedil_model.methods.interface import Chart, ClientValue
from ops.inspect.report import drawing
from ops.inspect.report.drawing import NothingToDraw, Plot
from ops.inspect.report.reading import Run
from server_worker.watch.events import RoundRecord

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
        if known := run.accuracy(model.name):
            axes.plot(
                list(known),
                list(known.values()),
                color=_look(place)["color"],
                linestyle=_look(place)["linestyle"],
                marker=drawing.marker_for(len(known)),
                label=drawing.label(model.title),
            )
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
    _line(axes, moved, drawing.BLUE, "‖Δθ‖", linewidth=0.8, marker=drawing.marker_for(len(norms)))
    _line(axes, only_positive(averages), drawing.RED, "mean of 10", linewidth=2.0)
    still = [number for number, norm in norms.items() if norm == 0]
    if still:
        bottom = axes.get_xaxis_transform()
        axes.plot(
            still,
            [0.02] * len(still),
            "x",
            color=drawing.PURPLE,
            transform=bottom,
            label=f"Δθ = 0 ({len(still)} rounds)",
        )
    drawing.rounds_axis(axes, rounds)
    few_ticks_on_log(axes)
    axes.set_ylabel("norm")
    drawing.legend(axes, columns=4)


def only_positive(values: dict[int, float] | dict[int, float | None]) -> dict[int, float]:
    return {key: value for key, value in values.items() if value is not None and 0 < value < math.inf}


def _line(axes: "Axes", values: dict[int, float], colour: str, name: str, **style: object) -> None:
    if len(values) == 1:
        style.setdefault("marker", "o")  # a single round has no line
    if values:
        axes.plot(list(values), list(values.values()), color=colour, label=name, **style)  # type: ignore[arg-type]


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
    for kind in sorted(points, key=lambda kind: order.index(kind) if kind in order else len(order)):
        place = order.index(kind) if kind in order else len(order)
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
    found = {series: series_of(run.records, series.name) for series in chart.series}
    drawn = {series: values for series, values in found.items() if any(values.values())}
    if not drawn:
        raise NothingToDraw("not known" if not any(found.values()) else "zero in every round")
    if chart.log:
        axes.set_yscale("log")
        drawn = {series: only_positive(values) for series, values in drawn.items()}
    for place, (series, values) in enumerate(drawn.items()):
        style = {**_look(place), "marker": drawing.marker_for(len(values))}
        _line(axes, values, str(style.pop("color")), drawing.label(series.title, 22), **style)
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


def series_of(records: Sequence[RoundRecord], name: str) -> dict[int, float]:
    found = {record.round: record.series.get(name) for record in records}
    return {number: value for number, value in found.items() if value is not None and math.isfinite(value)}


def _look(place: int) -> dict[str, str]:
    return {
        "color": drawing.SERIES[place % len(drawing.SERIES)],
        "linestyle": drawing.DASHES[(place // len(drawing.SERIES) + place) % len(drawing.DASHES)],
    }


def room_at_hundred(axes: "Axes") -> None:
    low, high = axes.get_ylim()
    low = min(low, high - 0.01)
    axes.set_ylim(max(low, -0.02), min(high, 1.0 + 0.05 * (1.0 - max(low, 0.0)) + 1e-6))


def draw_seconds(figure: "Figure", run: Run) -> None:
    rounds, axes = _rounds(run), figure.subplots()
    phases = [phase for phase in PHASES if any(record.seconds.get(phase) for record in run.records)]
    if not phases:
        raise NothingToDraw("the history holds no times")
    heights = np.array([[_seconds(record, phase) for record in run.records] for phase in phases])
    names, colours = [PHASES[phase][0] for phase in phases], [PHASES[phase][1] for phase in phases]
    if len(rounds) <= MOST_BARS:
        bottoms = np.vstack([np.zeros(len(rounds)), heights.cumsum(axis=0)[:-1]])
        for height, bottom, name, colour in zip(heights, bottoms, names, colours, strict=True):
            axes.bar(rounds, height, bottom=bottom, width=0.8, color=colour, label=name, linewidth=0)
    else:
        axes.stackplot(rounds, heights, labels=names, colors=colours, linewidth=0)
    evaluation = {
        record.round: record.seconds["evaluate"] for record in run.records if "evaluate" in record.seconds
    }
    _line(axes, evaluation, drawing.INK, "evaluation (beside)", linestyle=":", linewidth=1.2)
    drawing.rounds_axis(axes, rounds)
    axes.set_ylabel("seconds")
    axes.set_ylim(bottom=0)
    drawing.legend(axes)


def _seconds(record: RoundRecord, phase: str) -> float:
    value = record.seconds.get(phase, 0.0)
    return value if math.isfinite(value) else 0.0


def draw_staleness(figure: "Figure", run: Run) -> None:
    rounds, axes = _rounds(run), figure.subplots()
    by_round = {
        record.round: [o.staleness for o in record.outcomes if o.staleness is not None]
        for record in run.records
    }  # fmt: skip
    levels = sorted({staleness for found in by_round.values() for staleness in found})
    if not levels:
        raise NothingToDraw("no update carries its staleness")
    bottoms = np.zeros(len(rounds))
    colours = (drawing.SKY, drawing.BLUE, drawing.GREEN, drawing.ORANGE, drawing.RED, drawing.PURPLE)
    for place, level in enumerate(levels):
        heights = np.array([by_round[number].count(level) for number in rounds])
        name = f"{level} old"
        axes.bar(
            rounds, heights, bottom=bottoms, color=colours[place % len(colours)], label=name, linewidth=0
        )
        bottoms += heights
    drawing.rounds_axis(axes, rounds)
    axes.set_ylabel("updates")
    drawing.legend(axes, columns=4)
