"""Scores as tables for a terminal, and as rows for a CSV file."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops.cli.view.rows import UNKNOWN
from ops.cli.view.tables import plain_table
from ops.inspect.scores import BY_CLASS, OVERALL, Score, Scores

TITLES = {
    "accuracy": "accuracy %",
    "balanced_accuracy": "balanced accuracy %",
    "sensitivity": "sensitivity %",
    "specificity": "specificity %",
    "precision": "precision %",
    "f1": "F1 %",
    "auc": "AUC",
    "ece": "ECE",
}
_SHORT = ("sens.", "spec.", "prec.", "F1", "AUC", "ECE")
"""Headings of BY_CLASS that leave room for the names of classes"""
COLUMNS = ("model", "class", "samples", "score", "value", "low", "high")
_ALL = "(all)"


def print_scores(scores: Scores, class_names: Sequence[str], held: Sequence[int], console: Console) -> None:
    """With intervals by class where the terminal is wide enough."""
    console.print(_overall(scores))
    console.print(
        f"intervals: {scores.resamples} stratified bootstrap resamples; no mistake, no width\n"
        "by class, against all others; sens. (recall), spec., prec. and F1 in %\n",
        style="dim",
    )
    wide, unlimited = _by_class(scores, class_names, held, True), console.options.update(max_width=10_000)
    if console.measure(wide, options=unlimited).maximum <= console.width:
        console.print(wide)
    else:
        console.print(_by_class(scores, class_names, held, False))
        console.print("intervals by class: in a wider terminal, with --csv FILE or --json", style="dim")
    console.print()


def _overall(scores: Scores) -> Table:
    table = plain_table(("", "value", "95 % interval"), left=("",))
    for name in OVERALL:
        if name == "sensitivity":
            continue  # its mean is the balanced accuracy
        score = scores.overall[name]
        mean = "" if name in ("accuracy", "balanced_accuracy", "ece") else ", mean of the classes"
        table.add_row(f"{TITLES[name]}{mean}", _number(name, score), _interval(name, score))
    return table


def _by_class(scores: Scores, class_names: Sequence[str], held: Sequence[int], intervals: bool) -> Table:
    table = plain_table(("class", "samples", *_SHORT), left=("class",))
    for class_name, samples, own in zip(class_names, held, scores.by_class, strict=True):
        cells = [
            f"{_number(name, own[name])} {f'({_interval(name, own[name])})' if intervals and own[name] else ''}".strip()
            for name in BY_CLASS
        ]
        table.add_row(Text(class_name), str(samples), *cells)
    return table


def _number(name: str, score: Score | None) -> str:
    return UNKNOWN if score is None else _text(name, score.value)


def _interval(name: str, score: Score | None) -> str:
    return "" if score is None else f"{_text(name, score.low)}–{_text(name, score.high)}"


def _text(name: str, value: float) -> str:
    return f"{value:.3f}" if name in ("auc", "ece") else f"{100 * value:.1f}"


def csv_rows(
    model: str, scores: Scores, class_names: Sequence[str], held: Sequence[int]
) -> Iterator[Sequence[object]]:
    yield from _rows(model, _ALL, sum(held), scores.overall)
    for class_name, samples, own in zip(class_names, held, scores.by_class, strict=True):
        yield from _rows(model, class_name, samples, own)


def _rows(
    model: str, class_name: str, samples: int, scores: Mapping[str, Score | None]
) -> Iterator[Sequence[object]]:
    for name, score in scores.items():
        numbers = (score.value, score.low, score.high) if score else ("", "", "")
        yield model, class_name, samples, name, *numbers
