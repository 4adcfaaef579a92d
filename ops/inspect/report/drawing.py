"""Figures as inline SVG or as files. In inline SVG, colours are CSS variables: one drawing serves light and dark."""

import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict
from xml.etree import ElementTree

from markupsafe import Markup

from broker_config.process.durable import write_atomically
from broker_config.protocol.errors import FedILError
from ops.inspect.report.rendering import brief, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

INK, FAINT, GRID = "#1f2328", "#6b7280", "#d8dce1"
# Okabe and Ito's palette, safe for colour-blind readers, without its yellow, which is invisible on white.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9"
SERIES = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY, INK)
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

_CSS_NAMES = {
    **{INK: "--ink", FAINT: "--faint", GRID: "--grid"},
    **{BLUE: "--blue", ORANGE: "--orange", GREEN: "--green", RED: "--red", PURPLE: "--purple", SKY: "--sky"},
}
_STYLE = Path(__file__).parent / "templates" / "plots.mplstyle"
_COLOURS: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), FAINT),
    "grid.color": GRID,
}
_CHANGES_EACH_TIME = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}
"""Metadata by file format"""
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"


class NothingToDraw(Exception):
    """The message states the reason and is shown in the page."""


@dataclass(frozen=True)
class Plot:
    name: str
    """Also the name of the file"""
    title: str
    draw: Callable[["Figure"], None]
    caption: str = ""
    size: tuple[float, float] = (4.8, 2.9)
    """Inches. Small, so that text stays readable when a phone scales the figure down."""
    wide: bool = False


def check_installed() -> None:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise FedILError(f"a report needs matplotlib ({error}): pip install 'fedil[report]'") from error


@contextmanager
def _our_settings(name: str) -> Iterator[None]:
    """Ignores the user's matplotlibrc."""
    import matplotlib

    # Warnings are of missing glyphs and tight layouts.
    with matplotlib.rc_context(), warnings.catch_warnings(action="ignore"):
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(matplotlib.rc_params_from_file(_STYLE, use_default_template=False))
        matplotlib.rcParams.update({**_COLOURS, "svg.hashsalt": name})
        yield


@dataclass(frozen=True)
class Panel:
    """A plot as the page shows it."""

    plot: Plot
    svg: Markup | None
    absent: str = ""
    """Why there is no drawing"""


def panel(plot: Plot) -> Panel:
    try:
        return Panel(plot, inline_svg(plot))
    except NothingToDraw as reason:
        return Panel(plot, None, str(reason))


def inline_svg(plot: Plot) -> Markup:
    # Parsing drops the comments, which repeat every label, and guarantees well-formed markup.
    root = ElementTree.fromstring(_saved(plot, "svg", dpi=150, transparent=True))
    return Markup(_with_css_colours(_as_html(root, plot)))


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


def _with_css_colours(svg: str) -> str:
    """Only in style attributes: presentation attributes cannot hold variables, and matplotlib writes none."""
    colours = "|".join(_CSS_NAMES)
    return re.sub(rf"(?<=: )({colours})\b", lambda found: f"var({_CSS_NAMES[found[0]]})", svg)


def write_plots(plots: Iterable[Plot], folder: Path, ending: str) -> tuple[list[Path], list[str]]:
    """The files written, and name and reason of the plots that have nothing to draw."""
    written, absent = [], []
    folder.mkdir(parents=True, exist_ok=True)
    for plot in plots:
        path = folder / f"{plot.name}.{ending}"
        try:
            dots_per_inch = 150 if ending == "svg" else 300
            write_atomically(path, [_saved(plot, ending, dpi=dots_per_inch, bbox_inches="tight")])
        except NothingToDraw as reason:
            absent.append(f"{plot.name}: {reason}")
        else:
            written.append(path)
    return written, absent


def _saved(plot: Plot, ending: str, **how: Any) -> bytes:
    from matplotlib.figure import Figure

    file = io.BytesIO()
    with _our_settings(plot.name):
        figure = Figure(figsize=plot.size, layout="constrained")
        plot.draw(figure)
        figure.savefig(file, format=ending, metadata={_CHANGES_EACH_TIME[ending]: None}, **how)
    return file.getvalue()


def label(text: str, longest: int = 28) -> str:
    """A short text for an axis or a legend. Matplotlib hides labels that begin with an underscore."""
    return brief(text, longest).lstrip("_") or "–"


def rounds_axis(axes: "Axes", rounds: Iterable[int]) -> None:
    from matplotlib.ticker import MaxNLocator

    known = list(rounds)
    axes.set_xlabel("round")
    if known:
        first, last = min(known), max(known)
        ticks = MaxNLocator(nbins=8, integer=True, min_n_ticks=1).tick_values(first, last)
        axes.set_xticks([tick for tick in ticks if first <= tick <= last])  # there is no round 0
        margin = max(0.5, 0.02 * (last - first))
        axes.set_xlim(first - margin, last + margin)


def percent_axis(axes: "Axes", text: str) -> None:
    axes.set_ylabel(text)
    axes.yaxis.set_major_formatter(percent_formatter())


def percent_formatter() -> "FuncFormatter":
    """Percent with as many digits as needed, for example 99.75 %."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda share, _: f"{round(100 * share, 6):g} %")


def legend(axes: "Axes", columns: int = 3) -> None:
    """A legend above the axes, where it covers no curve."""
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=min(columns, len(handles)),
            borderaxespad=0.2,
            columnspacing=1.2,
            handlelength=1.6,
            handletextpad=0.5,
        )


class Look(TypedDict):
    color: str
    linestyle: str


def look(place: int) -> Look:
    """Colour and dashes; dashes also distinguish lines whose colours repeat or cannot be seen."""
    return Look(color=SERIES[place % len(SERIES)], linestyle=DASHES[place % len(DASHES)])


def marker_for(points: int) -> str | None:
    """Markers only where they do not overlap."""
    return "o" if points <= 40 else None
