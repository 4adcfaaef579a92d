"""The curves of one run, from its history."""

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ops.inspect.report.drawing import (
    BLUE,
    DASHES,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SERIES,
    SKY,
    NothingToDraw,
    Plot,
    label,
    legend,
    marker_for,
    percent_axis,
    rounds_axis,
)
from ops.inspect.report.reading import Run
from server_worker.watch.events import RoundRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODELS = {
    "global": ("θ′ global", BLUE, "-"),
    "server": ("θ₀ server", ORANGE, "--"),
    "ema": ("EMA of θ′", GREEN, ":"),
}
OUTCOMES = {
    "accepted": ("accepted", BLUE, "o"),
    "projected": ("projected", GREEN, "s"),
    "rejected_cosine": ("rejected", RED, "x"),
    "invalid": ("invalid", PURPLE, "v"),
    "stale": ("stale", ORANGE, "^"),
}
PHASES = {
    "server_step": ("server step", ORANGE),
    "broadcast": ("broadcast", PURPLE),
    "wait": ("waiting for clients", BLUE),
    "fold": ("fold", GREEN),
    "checkpoint": ("checkpoint", RED),
}
MOST_POINTS_AS_SHAPES = 3000
MOST_LOSSES = 9
MOST_BARS = 60


def curves(run: Run) -> list[Plot]:
    plots = [
        Plot(
            "accuracy",
            "Test accuracy",
            partial(draw_accuracy, run=run),
            "θ′ after each round, and θ₀, which the server has fine-tuned on its labels.",
        ),
        Plot(
            "delta_norm",
            "Size of the steps ‖Δθ‖",
            partial(draw_delta_norm, run=run),
            "How far θ′ moved in each round, on a logarithmic scale, and the mean of the last ten rounds.",
        ),
        Plot(
            "cosine",
            "Cosine of every client’s update",
            partial(draw_cosine, run=run),
            "Against the server’s own step θ₀ − θ′. Below 0 an update points away from what the labels say.",
        ),
        Plot(
            "pseudo_labels",
            "Pseudo-labels",
            partial(draw_pseudo_labels, run=run),
            "Samples that carry a label now; the credible ones have kept it long enough to be promoted.",
            size=(4.8, 3.5),
        ),
        Plot(
            "losses",
            "Losses",
            partial(draw_losses, run=run),
            "Mean over the round’s clients, and the server’s.",
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


def _rounds(run: Run) -> list[int]:
    if not run.records:
        raise NothingToDraw(run.no_rounds)
    return [record.round for record in run.records]


def draw_accuracy(figure: "Figure", run: Run) -> None:
    rounds, axes = _rounds(run), figure.subplots()
    if not run.evaluated:
        raise NothingToDraw("no round was evaluated")
    for model, (name, colour, dashes) in MODELS.items():
        if known := run.accuracy(model):
            axes.plot(
                list(known),
                list(known.values()),
                color=colour,
                linestyle=dashes,
                marker=marker_for(len(known)),
                label=name,
            )
    if run.baseline is not None:
        axes.axhline(run.baseline, color=FAINT, linestyle=(0, (1, 1.5)), label="server-only")
    rounds_axis(axes, rounds)
    percent_axis(axes, "accuracy")
    legend(axes, columns=4)


def draw_delta_norm(figure: "Figure", run: Run) -> None:
    rounds, axes = _rounds(run), figure.subplots()
    norms = {record.round: record.delta_norm for record in run.records}
    averages = {record.round: record.convergence.get("moving_average") for record in run.records}
    server = {record.round: record.reference_norm for record in run.records}
    if not _positive(norms):
        raise NothingToDraw("θ′ has not moved in any round")
    axes.set_yscale("log")
    _line(axes, _positive(server), FAINT, "‖θ₀ − θ′‖", linestyle=":", linewidth=1.2)
    # NaN breaks the line in rounds where θ′ did not move.
    moved = {number: norm if 0 < norm < math.inf else math.nan for number, norm in norms.items()}
    _line(axes, moved, BLUE, "‖Δθ‖", linewidth=0.8, marker=marker_for(len(norms)))
    _line(axes, _positive(averages), RED, "mean of 10", linewidth=2.0)
    still = [number for number, norm in norms.items() if norm == 0]
    if still:
        bottom = axes.get_xaxis_transform()
        axes.plot(
            still,
            [0.02] * len(still),
            "x",
            color=PURPLE,
            transform=bottom,
            label=f"Δθ = 0 ({len(still)} rounds)",
        )
    rounds_axis(axes, rounds)
    few_ticks_on_log(axes)
    axes.set_ylabel("norm")
    legend(axes, columns=4)


def _positive(values: dict[int, float] | dict[int, float | None]) -> dict[int, float]:
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


def draw_cosine(figure: "Figure", run: Run) -> None:
    rounds, axes = _rounds(run), figure.subplots()
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for record in run.records:
        for outcome in record.outcomes:
            if outcome.cosine is not None and math.isfinite(outcome.cosine):
                points[outcome.outcome].append((record.round, outcome.cosine))
    if not points:
        raise NothingToDraw("no update has a cosine: nobody has answered, or the filter is off")
    many = sum(map(len, points.values())) > MOST_POINTS_AS_SHAPES
    axes.axhline(0.0, color=INK, linewidth=1.0)
    for kind in sorted(points, key=lambda kind: list(OUTCOMES).index(kind) if kind in OUTCOMES else 99):
        name, colour, marker = OUTCOMES.get(kind, (label(kind), INK, "P"))
        xs, ys = zip(*points[kind], strict=True)
        # With thousands of points a bitmap is smaller than vector shapes.
        axes.scatter(
            xs,
            ys,
            s=3 if many else 16,
            color=colour,
            marker=marker,
            linewidths=1.1 if marker == "x" else 0.0,
            alpha=0.35 if many else 0.75,
            label=f"{name} ({len(xs)})",
            rasterized=many,
        )
    rounds_axis(axes, rounds)
    axes.set_ylabel("cosine")
    legend(axes)


def draw_pseudo_labels(figure: "Figure", run: Run) -> None:
    rounds = _rounds(run)
    kinds = {"pseudo_labels": ("all", BLUE, "-"), "credible": ("credible", GREEN, "--")}
    purity = {
        kind: {record.round: record.purity.get(kind) for record in run.records}
        for kind in kinds
    }  # fmt: skip
    known = {kind: {r: v for r, v in values.items() if v is not None} for kind, values in purity.items()}
    with_purity = any(known.values())
    panels = figure.subplots(2 if with_purity else 1, 1, sharex=True, squeeze=False)[:, 0]
    for kind, (name, colour, dashes) in kinds.items():
        counts = [getattr(record, kind) for record in run.records]
        panels[0].plot(
            rounds, counts, color=colour, linestyle=dashes, marker=marker_for(len(rounds)), label=name
        )
        if with_purity and known[kind]:
            shares = list(known[kind].values())
            panels[1].plot(
                list(known[kind]), shares, color=colour, linestyle=dashes, marker=marker_for(len(shares))
            )
    panels[0].set_ylabel("samples")
    panels[0].set_ylim(bottom=0)
    legend(panels[0])
    if with_purity:
        room_at_hundred(panels[1])
        percent_axis(panels[1], "right")
    rounds_axis(panels[-1], rounds)


def room_at_hundred(axes: "Axes") -> None:
    low, high = axes.get_ylim()
    low = min(low, high - 0.01)
    axes.set_ylim(max(low, -0.02), min(high, 1.0 + 0.05 * (1.0 - max(low, 0.0)) + 1e-6))


def draw_losses(figure: "Figure", run: Run) -> None:
    rounds, axes = _rounds(run), figure.subplots()
    series = loss_series(run.records)
    if not series:
        raise NothingToDraw("no losses were told")
    for place, (name, values) in enumerate(series):
        _line(
            axes,
            values,
            SERIES[place % len(SERIES)],
            label(name.removeprefix("loss_").replace("_", " "), 16),
            linestyle=DASHES[(place // len(SERIES) + place) % len(DASHES)],
        )
    rounds_axis(axes, rounds)
    axes.set_ylabel("loss")
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    legend(axes)


def loss_series(records: Sequence[RoundRecord]) -> list[tuple[str, dict[int, float]]]:
    """The losses reported in most rounds, because clients may send any number of names; without those that stay 0."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for record in records:
        for name, value in record.losses.items():
            if math.isfinite(value):
                found[name][record.round] = value
    moving = {name: values for name, values in found.items() if any(values.values())}
    chosen = sorted(moving, key=lambda name: (-len(moving[name]), name))[:MOST_LOSSES]
    return [(name, moving[name]) for name in sorted(chosen)]


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
    _line(axes, evaluation, INK, "evaluation (beside)", linestyle=":", linewidth=1.2)
    rounds_axis(axes, rounds)
    axes.set_ylabel("seconds")
    axes.set_ylim(bottom=0)
    legend(axes)


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
    colours = (SKY, BLUE, GREEN, ORANGE, RED, PURPLE)
    for place, level in enumerate(levels):
        heights = np.array([by_round[number].count(level) for number in rounds])
        name = f"{level} old"
        axes.bar(
            rounds, heights, bottom=bottoms, color=colours[place % len(colours)], label=name, linewidth=0
        )
        bottoms += heights
    rounds_axis(axes, rounds)
    axes.set_ylabel("updates")
    legend(axes, columns=4)
