"""Plots of the evidence: confusion matrix, accuracy by class, classes of each client, and samples."""

from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ops.inspect.report.drawing import BLUE, GREEN, HEAT, ORANGE, Missing, Plot, label, percent, rounds_axis
from ops.inspect.report.evidence import Evidence, known
from ops.inspect.report.reading import Run

MOST_NAMED_CLASSES = 25
MOST_NUMBERED_CLASSES = 12
_PICTURES_IN_A_ROW = 12


def quality_plots(run: Run, evidence: Evidence) -> list[Plot]:
    confusion = partial(draw_confusion, evidence=evidence)
    per_class = partial(draw_per_class, run=run, names=evidence.class_names)
    how = "Rows: the true class; columns: what the global model predicts. Colour: share of the row."
    of_what = "The global model on each class of the test set."
    return [
        Plot("confusion", "Confusion matrix", confusion, how, size=(4.8, 4.2)),
        Plot("per_class", "Accuracy by class, round by round", per_class, of_what, size=(4.8, 4.2)),
    ]


def split_plot(run: Run, evidence: Evidence) -> Plot:
    draw = partial(draw_split, run=run, evidence=evidence)
    how = "Samples of each client above; below, which share of them is of which class."
    return Plot("split", "Classes by holder", draw, how, size=(5.6, 3.2), wide=True)


def sample_plots(evidence: Evidence) -> list[Plot]:
    """For files; the page shows the pictures themselves."""
    draw = {kind: partial(draw_pictures, evidence=evidence, kind=kind) for kind in ("right", "wrong")}
    title = "Labels that clients keep and that are"
    return [Plot(f"held_labels_{kind}", f"{title} {kind}", draw[kind], size=(7.2, 2.6)) for kind in draw]


def draw_confusion(figure: Figure, evidence: Evidence) -> None:
    quality = known(evidence.quality)
    counts = np.array(quality.confusion, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # NaN in the rows of classes without test samples
        shares = counts / counts.sum(axis=1, keepdims=True)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap=HEAT, vmin=0.0, vmax=1.0)
    _colour_bar(figure, image, axes, shrink=0.8)
    classes = len(quality.class_names)
    if classes <= MOST_NUMBERED_CLASSES:
        for row, column in np.argwhere(counts > 0):
            count = quality.confusion[row][column]
            colour = "#ffffff" if shares[row, column] > 0.55 else "#000000"
            size = 8.5 if count < 1000 else 6.5
            axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=size)
    axes.set_xlabel("predicted")
    axes.set_ylabel("is really")
    if names := _name_classes(axes, quality.class_names):
        turned = 90 if max(map(len, names)) > 2 else 0
        axes.set_xticks(range(classes), names, rotation=turned)


def _colour_bar(figure: Figure, image: ScalarMappable, axes: Axes, **place: Any) -> None:
    axes.grid(False)
    bar = figure.colorbar(image, ax=axes, **place)
    bar.ax.yaxis.set_major_formatter(percent)
    bar.outline.set_visible(False)


def _name_classes(axes: Axes, names: Sequence[str]) -> list[str]:
    """The names that are shown: none of many"""
    shown = [label(name, 14) for name in names] if len(names) <= MOST_NAMED_CLASSES else []
    if shown:
        axes.set_yticks(range(len(shown)), shown)
    return shown


def draw_per_class(figure: Figure, run: Run, names: Sequence[str]) -> None:
    known = [record for record in run.records if any(share is not None for share in record.per_class)]
    if not known:
        raise Missing("the history holds no accuracy by class")
    # A round may know fewer classes; None becomes NaN.
    shares = np.array(list(zip_longest(*(record.per_class for record in known))), dtype=np.float64)
    classes = len(shares)
    names = names if len(names) == classes else [str(number) for number in range(classes)]
    axes = figure.subplots()
    low = float(np.nanmin(shares)) if np.isfinite(shares).any() else 0.0
    rounds = [record.round for record in known]
    # Each evaluation covers the rounds since the previous one.
    first = rounds[0] - (rounds[1] - rounds[0] if len(rounds) > 1 else 1)
    edges = np.array([first, *rounds]) + 0.5
    image = _draw_shares(axes, edges, shares, names, vmin=min(low, 0.99), vmax=1.0)
    _colour_bar(figure, image, axes, shrink=0.8)
    rounds_axis(axes, rounds)
    axes.set_xlim(edges[0], edges[-1])


def _draw_shares(
    axes: Axes, edges: np.ndarray, shares: np.ndarray, names: Sequence[str], **limits: Any
) -> ScalarMappable:
    """A row for each class. `edges`: of the columns"""
    rows = np.arange(len(shares) + 1) - 0.5
    image = axes.pcolormesh(edges, rows, shares, cmap=HEAT, rasterized=True, **limits)
    axes.set_ylim(rows[-1], rows[0])
    axes.set_ylabel("class")
    _name_classes(axes, names)
    return image


def draw_split(figure: Figure, run: Run, evidence: Evidence) -> None:
    if run.split is None or not any(len(held) for held in run.split.clients):
        raise Missing("the clients’ samples are at their sites")
    sizes = np.array([len(held) for held in run.split.clients])
    counts = None if isinstance(evidence.class_counts, Missing) else evidence.class_counts[1:]
    heights = [1] if counts is None else [1, 2]
    panels = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    edges = np.arange(len(sizes) + 1) - 0.5
    panels[0].stairs(sizes, edges, fill=True, color=BLUE, linewidth=0)
    panels[0].set_ylabel("samples")
    panels[0].set_ylim(bottom=0)
    if counts is not None:
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        image = _draw_shares(panels[1], edges, shares.T, evidence.class_names, vmin=0.0)
        _colour_bar(figure, image, panels[1], pad=0.01)
    panels[-1].set_xlabel("client")
    panels[-1].set_xlim(edges[0], edges[-1])
    panels[-1].xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))


def draw_pictures(figure: Figure, evidence: Evidence, kind: str) -> None:
    held = known(evidence.held_labels)
    pictures = held.right if kind == "right" else held.wrong
    if held.not_pictures:
        raise Missing(f"the samples are no pictures, but {held.not_pictures}")
    if not pictures:
        raise Missing(f"no such label is {kind}")
    rows = -(-len(pictures) // _PICTURES_IN_A_ROW)
    panels = figure.subplots(max(rows, 2), _PICTURES_IN_A_ROW, squeeze=False).ravel()
    for axes in panels:
        axes.set_axis_off()
    for axes, picture in zip(panels, pictures, strict=False):
        gray = picture.pixels.shape[2] == 1
        axes.imshow(picture.pixels[:, :, 0] if gray else picture.pixels, cmap="gray", vmin=0, vmax=255)
        said = label(evidence.class_names[picture.said], 9)
        truth = label(evidence.class_names[picture.is_really], 9)
        text = said if kind == "right" else f"{said}\nis {truth}"
        axes.set_title(text, fontsize=7, color=GREEN if kind == "right" else ORANGE, pad=2)
