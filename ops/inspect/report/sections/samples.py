"""Promoted pseudo-labels: how many are right, by label, and pictures of some."""

import base64
import io
from collections.abc import Iterator, Sequence

import numpy as np

from ops.cli.view.rows import percent
from ops.inspect.report.evidence import Evidence, Missing
from ops.inspect.report.pseudo_labels import Picture, Promoted
from ops.inspect.report.reading import Run

LARGEST_SIDE = 96
"""Pixels. Larger pictures are scaled down, which keeps the file small."""
MOST_CLASSES = 120


def samples(run: Run, evidence: Evidence) -> dict[str, object]:
    promoted, names = evidence.promoted, evidence.class_names
    if isinstance(promoted, Missing):
        return {"absent": f"Nothing to show: {promoted.why}."}
    total, right = len(promoted.said_N), promoted.num_right
    if not total:
        return {"absent": _none_yet(run, promoted)}
    return {
        "absent": "",
        "text": _sentence(run, promoted),
        "unreadable": ", ".join(map(str, promoted.unreadable[:10])),
        "not_pictures": promoted.not_pictures,
        "galleries": [
            (f"Wrong ({total - right:,})", "wrong", [_shown(one, names) for one in promoted.wrong]),
            (f"Right ({right:,})", "right", [_shown(one, names) for one in promoted.right]),
        ],
        "by_label": list(_by_label(promoted, names)),
    }


def _none_yet(run: Run, promoted: Promoted) -> str:
    needed = run.recipe.method.credibility
    return (
        f"No sample has been promoted yet: that takes {needed} activations of its client in a row that agree on its "
        f"label. {promoted.waiting:,} samples carry a label and wait."
    )


def _sentence(run: Run, promoted: Promoted) -> str:
    total = len(promoted.said_N)
    told = run.records[-1].credible if run.records else total
    late = (
        ""
        if told == total
        else f" (the server has been told of {told:,}: answers that came late do not count)"
    )
    return (
        f"{total:,} samples were promoted and keep their label{late}; {percent(promoted.num_right / total)} % of those "
        f"labels are right. {promoted.waiting:,} more carry a label and wait. The truth is known here because the "
        "data are an experiment’s; neither server nor clients saw it."
    )


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


def _by_label(promoted: Promoted, names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    right = promoted.said_N == promoted.truth_N
    for label in np.unique(promoted.said_N)[:MOST_CLASSES]:
        chosen = promoted.said_N == label
        yield names[label], f"{chosen.sum():,}", percent(float(right[chosen].mean()), 1)
