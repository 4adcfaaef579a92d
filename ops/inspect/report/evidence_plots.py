"""Plots of the evidence: confusion matrix, accuracy by class, classes of each client, and samples."""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ops.inspect.quality import Quality
from ops.inspect.report.drawing import BLUE, GREEN, RED, NothingToDraw, Plot, label, percent_axis, rounds_axis
from ops.inspect.report.evidence import Evidence, Missing
from ops.inspect.report.held_labels import Picture
from ops.inspect.report.reading import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

MOST_NAMED_CLASSES = 25
MOST_NUMBERED_CLASSES = 12
_PICTURES_IN_A_ROW = 12


def confusion_plot(evidence: Evidence) -> Plot:
    return Plot(
        "confusion",
        "Confusion matrix",
        partial(draw_confusion, evidence=evidence),
        "Rows: the true class; columns: what the global model predicts. Colour: share of the row.",
        size=(4.8, 4.2),
    )


def per_class_plot(run: Run, evidence: Evidence) -> Plot:
    return Plot(
        "per_class",
        "Accuracy by class, round by round",
        partial(draw_per_class, run=run, names=evidence.class_names),
        "The global model on each class of the test set.",
        size=(4.8, 4.2),
    )


def split_plot(run: Run, evidence: Evidence) -> Plot:
    return Plot(
        "split",
        "Classes by holder",
        partial(draw_split, run=run, evidence=evidence),
        "Samples of each client above; below, which share of them is of which class.",
        size=(5.6, 3.2),
        wide=True,
    )


def sample_plots(evidence: Evidence) -> list[Plot]:
    """For files; the page shows the pictures themselves."""
    return [
        Plot(
            f"held_labels_{kind}",
            f"Labels that clients keep and that are {kind}",
            partial(draw_pictures, evidence=evidence, kind=kind),
            size=(7.2, 2.6),
        )
        for kind in ("right", "wrong")
    ]


def draw_confusion(figure: "Figure", evidence: Evidence) -> None:
    quality = evidence.quality
    if isinstance(quality, Missing):
        raise NothingToDraw(quality.why)
    shares = row_shares(quality)
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="cividis", vmin=0.0, vmax=1.0)
    _colour_bar(figure, image, axes, shrink=0.8)
    classes = len(quality.class_names)
    if classes <= MOST_NUMBERED_CLASSES:
        for row, column in np.argwhere(np.array(quality.confusion) > 0):
            count = quality.confusion[row][column]
            colour = "#000000" if shares[row, column] > 0.55 else "#ffffff"
            size = 8.5 if count < 1000 else 6.5
            axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=size)
    axes.set_xlabel("predicted")
    axes.set_ylabel("is really")
    _name_classes(axes, quality.class_names, both=True)


def _colour_bar(figure: "Figure", image: "ScalarMappable", axes: "Axes", **place: Any) -> None:
    axes.grid(False)
    bar = figure.colorbar(image, ax=axes, **place)
    percent_axis(bar.ax, "")
    bar.outline.set_visible(False)


def row_shares(quality: Quality) -> np.ndarray:
    """NaN in the rows of classes without test samples."""
    counts = np.array(quality.confusion, dtype=np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.full_like(counts, np.nan)
    np.divide(counts, totals, out=shares, where=totals > 0)
    return shares


def _name_classes(axes: "Axes", names: Sequence[str], *, both: bool) -> None:
    if len(names) > MOST_NAMED_CLASSES:
        return
    shown = [label(name, 14) for name in names]
    axes.set_yticks(range(len(names)), shown)
    if both:
        turned = 90 if max(map(len, shown)) > 2 else 0
        axes.set_xticks(range(len(names)), shown, rotation=turned)


def draw_per_class(figure: "Figure", run: Run, names: Sequence[str]) -> None:
    known = [record for record in run.records if any(share is not None for share in record.per_class)]
    if not known:
        raise NothingToDraw("the history holds no accuracy by class")
    classes = max(len(record.per_class) for record in known)
    names = names if len(names) == classes else [str(number) for number in range(classes)]
    shares = np.array([[_share(record.per_class, index) for record in known] for index in range(classes)])
    axes = figure.subplots()
    low = float(np.nanmin(shares)) if np.isfinite(shares).any() else 0.0
    rounds = [record.round for record in known]
    image = axes.pcolormesh(
        _edges(rounds),
        np.arange(classes + 1) - 0.5,
        shares,
        cmap="cividis",
        vmin=min(low, 0.99),
        vmax=1.0,
        rasterized=True,
    )
    axes.set_ylim(classes - 0.5, -0.5)
    _colour_bar(figure, image, axes, shrink=0.8)
    rounds_axis(axes, rounds)
    axes.set_ylabel("class")
    axes.set_xlim(_edges(rounds)[0], _edges(rounds)[-1])
    _name_classes(axes, names, both=False)


def _share(per_class: Sequence[float | None], index: int) -> float:
    share = per_class[index] if index < len(per_class) else None
    return math.nan if share is None else share


def _edges(rounds: Sequence[int]) -> np.ndarray:
    """Cell edges: each evaluation covers the rounds since the previous one."""
    first = rounds[0] - (rounds[1] - rounds[0] if len(rounds) > 1 else 1)
    return np.array([first, *rounds], dtype=np.float64) + 0.5


def draw_split(figure: "Figure", run: Run, evidence: Evidence) -> None:
    if run.split is None or not any(len(held) for held in run.split.clients):
        raise NothingToDraw("the clients’ samples are at their sites")
    sizes = np.array([len(held) for held in run.split.clients])
    counts = None if isinstance(evidence.class_counts, Missing) else evidence.class_counts[1:]
    panels = figure.subplots(
        1 if counts is None else 2,
        1,
        sharex=True,
        squeeze=False,
        gridspec_kw={"height_ratios": [1] if counts is None else [1, 2]},
    )[:, 0]
    edges = np.arange(len(sizes) + 1) - 0.5
    panels[0].stairs(sizes, edges, fill=True, color=BLUE, linewidth=0)
    panels[0].set_ylabel("samples")
    panels[0].set_ylim(bottom=0)
    if counts is not None:
        _draw_class_shares(figure, panels[1], counts, edges)
        _name_classes(panels[1], evidence.class_names, both=False)
    panels[-1].set_xlabel("client")
    panels[-1].set_xlim(edges[0], edges[-1])
    from matplotlib.ticker import MaxNLocator

    panels[-1].xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))


def _draw_class_shares(figure: "Figure", axes: "Axes", counts: np.ndarray, edges: np.ndarray) -> None:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    classes = counts.shape[1]
    image = axes.pcolormesh(
        edges, np.arange(classes + 1) - 0.5, shares.T, cmap="cividis", vmin=0.0, rasterized=True
    )
    axes.set_ylim(classes - 0.5, -0.5)
    axes.set_ylabel("class")
    _colour_bar(figure, image, axes, pad=0.01)


def draw_pictures(figure: "Figure", evidence: Evidence, kind: str) -> None:
    held = evidence.held_labels
    if isinstance(held, Missing):
        raise NothingToDraw(held.why)
    pictures: tuple[Picture, ...] = held.right if kind == "right" else held.wrong
    if held.not_pictures:
        raise NothingToDraw(f"the samples are no pictures, but {held.not_pictures}")
    if not pictures:
        raise NothingToDraw(f"no such label is {kind}")
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
        axes.set_title(text, fontsize=7, color=GREEN if kind == "right" else RED, pad=2)
