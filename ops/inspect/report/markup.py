"""HTML, built so that text cannot become markup: whatever is not `Markup` is escaped."""

import html
import unicodedata
from collections.abc import Iterable

VOID = frozenset({"br", "img", "meta", "col"})


class Markup(str):
    """HTML already."""

    __slots__ = ()


Content = str | int | None | Iterable["Content"]


def element(tag: str, *children: Content, **attributes: str | int | None) -> Markup:
    """`class_` gives class, `aria_label` gives aria-label; an attribute of None is left out."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{join(children)}</{tag}>")


def join(content: Content) -> Markup:
    if content is None:
        return Markup()
    if isinstance(content, Markup):
        return content
    if isinstance(content, str | int):
        return Markup(escape(str(content)))
    return Markup("".join(map(join, content)))


def escape(text: str) -> str:
    return html.escape(printable(text), quote=True)


def printable(text: str) -> str:
    """Without what changes how its surroundings are read: control characters, turned writing directions, halves
    of characters."""
    return "".join(" " if unicodedata.category(letter) in ("Cc", "Cf", "Cs") else letter for letter in text)


def brief(text: str, longest: int) -> str:
    text = " ".join(printable(text).split())
    return text if len(text) <= longest else text[: longest - 1].rstrip(" ,;:") + "…"


def table(
    headings: Iterable[Content], rows: Iterable[Iterable[Content]], *, numbers: Iterable[int] = ()
) -> Markup:
    """`numbers`: the columns that are aligned at the right. Without headings, the first column names the rows."""
    right, named = set(numbers), list(headings)

    def cells(tag: str, row: Iterable[Content]) -> list[Markup]:
        return [
            element(tag, cell, class_="number" if place in right else None) for place, cell in enumerate(row)
        ]

    head = element("thead", element("tr", cells("th", named))) if named else None
    body = element("tbody", (element("tr", cells("td", row)) for row in rows))
    return element("div", element("table", head, body), class_="scroll")
