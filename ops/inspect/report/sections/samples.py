"""Labels that clients keep: how many are right, by label, and pictures of some."""

import base64
import io
from collections.abc import Iterator, Sequence

import numpy as np

from ops.cli.view.rows import percent
from ops.inspect.report.evidence import Evidence, Missing
from ops.inspect.report.held_labels import HeldLabels, Picture

LARGEST_SIDE = 96
"""Pixels. Larger pictures are scaled down, which keeps the file small."""
MOST_CLASSES = 120


def samples(evidence: Evidence) -> dict[str, object]:
    held, names = evidence.held_labels, evidence.class_names
    if isinstance(held, Missing):
        return {"absent": held.why}
    total, right = len(held.said_N), held.num_right
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
        "by_label": list(_by_label(held, names)),
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
    from PIL import Image

    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    file = io.BytesIO()
    image.save(file, format="png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _by_label(held: HeldLabels, names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    right = held.said_N == held.truth_N
    for label in np.unique(held.said_N)[:MOST_CLASSES]:
        chosen = held.said_N == label
        yield names[label], f"{chosen.sum():,}", percent(float(right[chosen].mean()), 1)
