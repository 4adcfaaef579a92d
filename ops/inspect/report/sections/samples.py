"""Promoted pseudo-labels, right and wrong, to look at."""

import base64
import io
from collections.abc import Sequence

import numpy as np

from ops.cli.view.rows import percent
from ops.inspect.report.evidence import Evidence, Missing
from ops.inspect.report.markup import Content, Markup, element, join, table
from ops.inspect.report.pseudo_labels import Picture, Promoted
from ops.inspect.report.reading import Run

LARGEST_SIDE = 96
"""Pixels. A larger picture is made smaller, so that the page can still be sent."""
MOST_CLASSES = 120


def samples_section(run: Run, evidence: Evidence) -> Markup:
    heading, promoted = element("h2", "Promoted pseudo-labels"), evidence.promoted
    if isinstance(promoted, Missing):
        return element("section", heading, element("p", f"Nothing to show: {promoted.why}.", class_="absent"))
    total, names = len(promoted.said_N), evidence.class_names
    if not total:
        return element("section", heading, element("p", _none_yet(run, promoted), class_="absent"))
    parts: list[Content] = [heading, element("p", _sentence(run, promoted))]
    if promoted.unreadable:
        unreadable = ", ".join(map(str, promoted.unreadable[:10]))
        parts.append(
            element(
                "p", f"Left out: the ledgers of clients {unreadable}, which make no sense.", class_="fine"
            )
        )
    if promoted.not_pictures:
        text = f"The samples are no pictures, but {promoted.not_pictures}: there is nothing to look at."
        parts.append(element("p", text, class_="absent"))
    else:
        parts += [
            _gallery(f"Wrong ({total - promoted.num_right:,})", promoted.wrong, names, "wrong"),
            _gallery(f"Right ({promoted.num_right:,})", promoted.right, names, "right"),
        ]
    parts.append(_by_class(promoted, names))
    return element("section", parts)


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


def _gallery(title: str, pictures: Sequence[Picture], names: Sequence[str], kind: str) -> Markup:
    if not pictures:
        return join([element("h3", title), element("p", "None.", class_="fine")])
    figures = [
        element(
            "figure",
            element(
                "img", src=_data_url(picture.pixels), alt=f"a sample of class {names[picture.is_really]}"
            ),
            element("figcaption", _caption(picture, names), element("small", f"client {picture.client}")),
        )
        for picture in pictures
    ]
    return join([element("h3", title), element("div", figures, class_=f"gallery {kind}")])


def _caption(picture: Picture, names: Sequence[str]) -> str:
    said, really = names[picture.said], names[picture.is_really]
    return said if said == really else f"said {said}, is {really}"


def _data_url(pixels: np.ndarray) -> str:
    from PIL import Image

    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    file = io.BytesIO()
    image.save(file, format="png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _by_class(promoted: Promoted, names: Sequence[str]) -> Markup:
    right = promoted.said_N == promoted.truth_N
    rows = [
        (names[label], f"{int(of_label.sum()):,}", percent(float(right[of_label].mean()), 1))
        for label in np.unique(promoted.said_N)[:MOST_CLASSES]
        for of_label in [promoted.said_N == label]
    ]
    return element(
        "details",
        element("summary", "By label"),
        table(["label given", "samples", "right %"], rows, numbers=(1, 2)),
    )
