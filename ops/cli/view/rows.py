"""What a round looks like as a row of a table or as a line of a log."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server_worker.watch.events import ClientOutcome, RoundRecord

UNKNOWN = "–"
GAP = 2


@dataclass(frozen=True)
class Column:
    title: str
    width: int
    cell: Callable[[RoundRecord], str]


def percent(share: float | None, digits: int = 2) -> str:
    return UNKNOWN if share is None else f"{100 * share:.{digits}f}"


def number(value: float) -> str:
    return f"{value:.3f}" if value == 0 or 0.001 <= abs(value) < 1000 else f"{value:.1e}"


def accuracy_of(model: str) -> Callable[[RoundRecord], str]:
    return lambda record: percent(record.accuracy.get(model))


ROUND = Column("round", 5, lambda record: str(record.round))
GLOBAL = Column("θ′ %", 6, accuracy_of("global"))
SERVER = Column("θ₀ %", 6, accuracy_of("server"))
AVERAGE = Column("EMA %", 6, accuracy_of("ema"))
STEP = Column("‖Δθ‖", 7, lambda record: number(record.delta_norm))
ACCEPTED = Column("accepted", 8, lambda record: f"{record.accepted}/{record.selected}")
PSEUDO = Column("pseudo", 7, lambda record: str(record.pseudo_labels))
PURITY = Column("pure %", 6, lambda record: percent(record.purity.get("pseudo_labels"), 1))
CREDIBLE = Column("credible", 8, lambda record: str(record.credible))
SECONDS = Column("seconds", 7, lambda record: f"{record.seconds.get('total', 0.0):.1f}")

IN_ORDER = (ROUND, GLOBAL, SERVER, AVERAGE, STEP, ACCEPTED, PSEUDO, PURITY, CREDIBLE, SECONDS)
BY_IMPORTANCE = (ROUND, GLOBAL, ACCEPTED, SERVER, SECONDS, PSEUDO, PURITY, STEP, AVERAGE, CREDIBLE)


def columns_that_fit(width: int, with_average: bool) -> list[Column]:
    """A narrow terminal loses the less important columns instead of squeezing all of them."""
    chosen: list[Column] = []
    left = width + GAP
    for column in BY_IMPORTANCE:
        if column is AVERAGE and not with_average:
            continue
        left -= column.width + GAP
        if left < 0:
            break
        chosen.append(column)
    return [column for column in IN_ORDER if column in chosen]


def log_line(record: RoundRecord) -> str:
    """The same fields in the same order and at the same place, each with its name."""
    digits = len(str(record.rounds))
    return "  ".join(
        [
            f"round {record.round:{digits}}/{record.rounds}",
            f"θ′ {GLOBAL.cell(record):>5}",
            f"θ₀ {SERVER.cell(record):>5}",
            f"‖Δθ‖ {STEP.cell(record):>7}",
            f"accepted {ACCEPTED.cell(record)}",
            f"pseudo {record.pseudo_labels:5}",
            f"pure {PURITY.cell(record):>5}",
            f"took {SECONDS.cell(record)} s",
        ]
    )


def exclusions(outcomes: Sequence[ClientOutcome]) -> list[str]:
    """For people: who did not count, and why."""
    return [excluded(outcome) for outcome in outcomes if not outcome.counts]


def excluded(outcome: ClientOutcome) -> str:
    why = outcome.detail
    if not why and outcome.cosine is not None:
        why = f"{outcome.cosine:+.3f}"
    words = f"client {outcome.client}: {outcome.outcome.replace('_', ' ')}"
    return f"{words} ({why})" if why else words
