"""What a round looks like as a row of a table or as a line of a log."""

import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from fedil_model.methods.interface import Display, Model, Series
from server_worker.watch.events import ClientOutcome, RoundRecord

UNKNOWN = "–"
GAP = 2


@dataclass(frozen=True)
class Column:
    title: str
    """A heading takes one line of it for each few words."""
    width: int
    cell: Callable[[RoundRecord], str]
    width_in_line: int = 5
    name: str = ""
    """In a line; empty: the title"""


def percent(share: float | None, digits: int = 2) -> str:
    return UNKNOWN if share is None else f"{100 * share:.{digits}f}"


def number(value: float) -> str:
    return f"{value:.3f}" if value == 0 or 0.001 <= abs(value) < 1000 else f"{value:.1e}"


ROUND = Column("round", 5, lambda record: str(record.round))
STEP = Column("update size ‖Δθ‖", 9, lambda record: number(record.delta_norm), 7, "update size")
ACCEPTED = Column("accepted", 8, lambda record: f"{record.accepted}/{record.selected}", width_in_line=0)
SECONDS = Column("seconds", 7, lambda record: f"{record.seconds.get('total', 0.0):.1f}")


WIDEST_HEADING = 10


def heading(title: str) -> list[str]:
    """In lines, none wider than some columns"""
    return textwrap.wrap(title, WIDEST_HEADING, break_long_words=False)


class Columns:
    """The columns that every run has, and those that its method declares."""

    def __init__(self, display: Display, thousands: str = "") -> None:
        """`thousands`: what separates them in numbers of samples"""
        models = {model: _of_model(model) for model in display.models}
        self._optional = {models[model]: model.name for model in models if model.optional}
        always = [column for column in models.values() if column not in self._optional]
        self.shipped, *others = always
        """`shipped`: accuracy of the model that ships"""
        charts = [
            [_of_series(series, thousands) for series in chart.series if series.column]
            for chart in display.charts
        ]
        first = [columns[0] for columns in charts if columns]
        more = [column for columns in charts for column in columns[1:]]
        self._in_line = (*always, STEP, ACCEPTED, *first)
        self.in_order = (ROUND, *models.values(), STEP, ACCEPTED, *first, *more, SECONDS)
        self._by_importance = (
            *(ROUND, self.shipped, ACCEPTED, *others, SECONDS),
            *(*first, STEP, *self._optional, *more),
        )

    def that_fit(self, width: int, evaluated: Collection[str]) -> list[Column]:
        """A narrow terminal loses the less important columns instead of squeezing all of them. `evaluated`: names of
        models; an optional one has a column if it is among them."""
        chosen: list[Column] = []
        left = width + GAP
        for column in self._by_importance:
            if column in self._optional and self._optional[column] not in evaluated:
                continue
            left -= column.width + GAP
            if left < 0:
                break
            chosen.append(column)
        return [column for column in self.in_order if column in chosen]

    def log_line(self, record: RoundRecord) -> str:
        """The same fields in the same order and at the same place, each with its name: the models that every run has,
        and the first column of each chart."""
        digits = len(str(record.rounds))
        fields = [
            f"{column.name or column.title.removesuffix(' %')} {column.cell(record):>{column.width_in_line}}"
            for column in self._in_line
        ]
        return "  ".join(
            [f"round {record.round:{digits}}/{record.rounds}", *fields, f"took {SECONDS.cell(record)} s"]
        )


def _of_model(model: Model) -> Column:
    title = f"{model.label} %"
    return Column(
        title,
        width=max(6, *map(len, heading(title))),
        cell=lambda record: percent(record.accuracy.get(model.name)),
        name=model.title,
    )


def _of_series(series: Series, thousands: str) -> Column:
    return Column(
        series.column,
        width=max(6 if series.unit == "share" else 7, len(series.column)),
        cell=lambda record: _series_value(series, record.series.get(series.name), thousands),
        width_in_line=5 if series.unit in ("share", "samples") else 7,
    )


def _series_value(series: Series, value: float | None, thousands: str) -> str:
    if value is None:
        return UNKNOWN
    if series.unit == "share":
        return percent(value, 1)
    return f"{value:{thousands}.0f}" if series.unit == "samples" else number(value)


def exclusions(outcomes: Sequence[ClientOutcome]) -> list[str]:
    return [excluded(outcome) for outcome in outcomes if not outcome.counts]


def excluded(outcome: ClientOutcome) -> str:
    values = (f"{name} {value:+.3f}" for name, value in outcome.values.items())
    why = outcome.detail or ", ".join(values)
    words = f"client {outcome.client}: {outcome.outcome.replace('_', ' ')}"
    return f"{words} ({why})" if why else words
