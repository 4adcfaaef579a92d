"""Figures as inline SVG or as files. In inline SVG, colours are CSS variables: one drawing serves light and dark."""

import io
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from broker_config.process.durable import write_atomically
from ops.inspect.report.rendering import brief, printable
from server_worker.watch import palette

_NAMES = ("text", "quiet", "grid", *palette.SERIES)
INK, FAINT, GRID, BLUE, GREEN, PINK, ORANGE, VIOLET, GOLD = map(palette.light, _NAMES)
SERIES = (BLUE, GREEN, PINK, ORANGE, VIOLET, GOLD, INK)
HEAT = LinearSegmentedColormap.from_list("fedil", [*map(palette.light, palette.HEAT)])
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

_CSS_NAMES = {palette.light(name): f"--{name}" for name in _NAMES}
_STYLE = Path(__file__).parent / "templates" / "plots.mplstyle"
_COLOURS: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), FAINT),
    "grid.color": GRID,
}
_CHANGES_EACH_TIME = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}
"""Metadata by file format"""
Scale = Literal["percent", "log", "plain", "free"]
"""Of the y axis. plain: from 0, unless something is below; free: as matplotlib chooses it"""
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"


@dataclass
class Missing(Exception):
    """Takes the place of a part of a report or a plot, and is raised by what needs it."""

    why: str


@dataclass(frozen=True)
class Plot:
    name: str
    """Also the name of the file"""
    title: str
    draw: Callable[[Figure], None]
    caption: str = ""
    size: tuple[float, float] = (4.8, 2.9)
    """Inches. Small, so that text stays readable when a phone scales the figure down."""
    wide: bool = False


def panel(plot: Plot) -> tuple[Plot, Markup | None, str]:
    """As the page shows it: its drawing, or the reason why there is none"""
    try:
        return plot, inline_svg(plot), ""
    except Missing as reason:
        return plot, None, str(reason)


def inline_svg(plot: Plot) -> Markup:
    # Parsing drops the comments, which repeat every label, and guarantees well-formed markup.
    root = ElementTree.fromstring(_saved(plot, "svg", dpi=150, transparent=True))
    # In style attributes: presentation attributes cannot hold variables, and matplotlib writes none.
    colours = rf"(?<=: )({'|'.join(_CSS_NAMES)})\b"
    return Markup(re.sub(colours, lambda found: f"var({_CSS_NAMES[found[0]]})", _as_html(root, plot)))


def _as_html(root: ElementTree.Element, plot: Plot) -> str:
    for parent in root.iter():
        # A style element would apply to the whole page, whose style sheet has the same rule.
        parent[:] = [child for child in parent if child.tag not in (f"{_SVG}metadata", f"{_SVG}style")]
    for node in root.iter():
        node.tag = node.tag.removeprefix(_SVG)
        for key, value in list(node.attrib.items()):
            del node.attrib[key]
            node.set(*_own_attribute(key, value, plot.name))
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", printable(f"{plot.title}. {plot.caption}".strip()))
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _own_attribute(key: str, value: str, name: str) -> tuple[str, str]:
    """Ids are made unique, because all drawings share one page."""
    if key == "id":
        return key, f"{name}-{value}"
    if key == _LINK:
        return "href", f"#{name}-{value[1:]}" if value.startswith("#") else value
    return key, value.replace("url(#", f"url(#{name}-")


def write_plots(plots: Iterable[Plot], folder: Path, ending: str) -> tuple[list[Path], list[str]]:
    """The files written, and name and reason of the plots that have nothing to draw."""
    written, absent = [], []
    folder.mkdir(parents=True, exist_ok=True)
    for plot in plots:
        path = folder / f"{plot.name}.{ending}"
        try:
            dots_per_inch = 150 if ending == "svg" else 300
            write_atomically(
                path, [_saved(plot, ending, titled=True, dpi=dots_per_inch, bbox_inches="tight")]
            )
            written.append(path)
        except Missing as reason:
            absent.append(f"{plot.name}: {reason}")
    return written, absent


def _saved(plot: Plot, ending: str, *, titled: bool = False, **how: Any) -> bytes:
    """`titled`: for a file, which has no heading around it"""
    file = io.BytesIO()
    # Without the user's matplotlibrc. Warnings are of missing glyphs and tight layouts.
    settings = style.context(["default", _STYLE, {**_COLOURS, "svg.hashsalt": plot.name}])
    with settings, warnings.catch_warnings(action="ignore"):
        figure = Figure(figsize=plot.size, layout="constrained")
        plot.draw(figure)
        if titled:
            figure.suptitle(plot.title, x=0.01, horizontalalignment="left", fontsize=10.5, fontweight="bold")
        figure.savefig(file, format=ending, metadata={_CHANGES_EACH_TIME[ending]: None}, **how)
    return file.getvalue()


def label(text: str, longest: int = 28) -> str:
    """A short text for an axis or a legend. Matplotlib hides labels that begin with an underscore."""
    return brief(text, longest).lstrip("_") or "–"


def finish(axes: Axes, rounds: Collection[int], scale: Scale, text: str, columns: int = 3) -> None:
    """The axes once all is drawn. `text` says what y is; `columns` are of the legend."""
    rounds_axis(axes, rounds)
    axes.set_ylabel(text)
    if scale == "percent":
        low, high = axes.get_ylim()
        low = min(low, high - 0.01)
        axes.set_ylim(max(low, 0.0), min(high, 1.0))
        axes.yaxis.set_major_formatter(percent)
    elif scale == "log":
        _few_ticks_on_log(axes)
    elif scale == "plain" and axes.dataLim.y0 >= 0:
        axes.set_ylim(0, None if axes.dataLim.y1 > 0 else 1)
    legend(axes, columns)


def rounds_axis(axes: Axes, rounds: Collection[int]) -> None:
    axes.set_xlabel("round")
    first, last = min(rounds), max(rounds)
    ticks = MaxNLocator(nbins=8, integer=True, min_n_ticks=1).tick_values(first, last)
    axes.set_xticks([tick for tick in ticks if first <= tick <= last])  # there is no round 0
    margin = max(0.5, 0.02 * (last - first))
    axes.set_xlim(first - margin, last + margin)


def _few_ticks_on_log(axes: Axes) -> None:
    """Ticks with plain numbers also within a single decade, where matplotlib would set none."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 1.2 * low:  # a single value: all ticks would show the same number
        middle = math.sqrt(low * high)
        low, high = axes.set_ylim(middle / 1.2, middle * 1.2)
    decades = math.log10(high / low)
    parts = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if decades < 1 else (1.0, 2.0, 5.0) if decades < 3 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=parts, numticks=12))
    axes.yaxis.set_major_formatter("{x:.3g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def legend(axes: Axes, columns: int) -> None:
    """Above the axes, where it covers no curve."""
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=min(columns, len(handles)))


def percent(share: float, _: object) -> str:
    """A tick, with as many digits as needed: 99.75 %"""
    return f"{round(100 * share, 6):g} %"


def look(place: int) -> dict[str, Any]:
    """Colour and dashes; dashes also distinguish lines whose colours repeat or cannot be seen."""
    return {"color": SERIES[place % len(SERIES)], "linestyle": DASHES[place % len(DASHES)]}


def marker_for(points: int) -> str | None:
    """Markers only where they do not overlap."""
    return "o" if points <= 40 else None
