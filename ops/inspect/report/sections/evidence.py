"""What the page shows of the evidence: the test set by class, labels that clients keep, and the split of the data."""

import base64
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from ops.cli.view.rows import percent
from ops.inspect.quality import Quality
from ops.inspect.report.drawing import Missing, panel
from ops.inspect.report.evidence import Evidence
from ops.inspect.report.evidence_plots import split_plot
from ops.inspect.report.held_labels import Picture
from ops.inspect.report.reading import Run

LARGEST_SIDE = 96
"""Pixels. Larger pictures are scaled down, which keeps the file small."""
MOST_CLASSES = 120


def quality(evidence: Evidence) -> dict[str, object] | None:
    found = evidence.quality
    if not isinstance(found, Quality):
        return None
    return {
        "round": evidence.quality_round,
        "accuracy": percent(found.accuracy),
        "samples": f"{found.samples:,}",
        "classes": [
            (name, percent(share, 1), f"{sum(row):,}")
            for name, share, row in zip(found.class_names, found.per_class, found.confusion, strict=True)
        ],
        "mistakes": found.mistakes(),
    }


def samples(evidence: Evidence) -> dict[str, object]:
    held, names = evidence.held_labels, evidence.class_names
    if isinstance(held, Missing):
        return {"absent": held.why}
    right_N, total = held.said_N == held.truth_N, len(held.said_N)
    right = int(right_N.sum())
    by_label = ((label, held.said_N == label) for label in np.unique(held.said_N)[:MOST_CLASSES])
    return {
        "absent": "",
        "held": held,
        "set": held.name.replace("_", " "),
        "total": total,
        "right": percent(right / total if total else None),
        "galleries": [
            (f"Wrong ({total - right:,})", "wrong", [_shown(one, names) for one in held.wrong]),
            (f"Right ({right:,})", "right", [_shown(one, names) for one in held.right]),
        ],
        "by_label": [
            (names[label], f"{chosen_N.sum():,}", percent(float(right_N[chosen_N].mean()), 1))
            for label, chosen_N in by_label
        ],
    }


def _shown(picture: Picture, names: Sequence[str]) -> dict[str, object]:
    label, truth = names[picture.said], names[picture.is_really]
    return {
        "url": _data_url(picture.pixels),
        "alt": f"a sample of class {truth}",
        "caption": label if label == truth else f"said {label}, is {truth}",
        "client": picture.client,
    }


def _data_url(pixels: np.ndarray) -> str:
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    file = io.BytesIO()
    image.save(file, format="png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def split(run: Run, evidence: Evidence) -> dict[str, object]:
    counts = evidence.class_counts
    sizes = np.array([len(held) for held in run.split.clients] if run.split else [])
    sites = ", ".join(f"{site} ({clients})" for site, clients in run.recipe.federation.sites.items())
    known = () if isinstance(counts, Missing) else counts.T[:MOST_CLASSES]
    return {
        "sizes": sizes,
        "median": np.median(sizes) if len(sizes) else 0,
        "sites": f" Sites: {sites}." if sites else "",
        "absent": counts.why if isinstance(counts, Missing) else "",
        "plots": [panel(split_plot(run, evidence))],
        "by_class": [
            (name, f"{server:,}", f"{sum(clients):,}", f"{np.count_nonzero(clients):,}")
            for name, (server, *clients) in zip(evidence.class_names, known, strict=False)
        ],
    }
