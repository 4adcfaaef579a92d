"""What terminal, log, live page, board and report say of a run: each of them the same words."""

from dataclasses import dataclass
from typing import Literal

from fedil_model.training.convergence import MIN_ROUNDS

PHASES = {
    "load_data": "reading the data",
    "pretrain": "server learns from the labels first",
    "baseline": "server-only training, for comparison",
    "server_step": "server learns from the labels",
    "broadcast": "models go out",
    "wait": "clients learn",
    "close": "round closes",
}
"""By the name that Watcher.phase is told; those before the first and after the last round come first."""
OUTSIDE_ROUNDS = frozenset({"load_data", "pretrain", "baseline"})


def phase_words(name: str) -> str:
    return PHASES.get(name, name.replace("_", " "))


def epoch_words(done: int, total: int, left_seconds: float) -> str:
    left = f", about {duration(left_seconds)} left" if done < total else ""
    return f"epoch {done} of {total}{left}"


def evaluated_words(every: int) -> str:
    """Why some rounds have no accuracy; empty where all have one"""
    return f"accuracy is measured every {every} rounds" if every > 1 else ""


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


@dataclass(frozen=True)
class Trouble:
    words: str
    """Such as "site south has no worker" """
    since: float
    """Seconds since 1970"""
    stops: bool
    """Nothing moves until it is over."""

    def sentence(self, now: float) -> str:
        """Such as "site south has no worker, waiting for 56 s" """
        return f"{self.words}, {'waiting ' if self.stops else ''}for {duration(max(0.0, now - self.since))}"


@dataclass(frozen=True)
class Trend:
    """How the size of the updates ‖Δθ‖ has developed, which says nothing of accuracy. Hence no colour, except where the
    run needs a look."""

    words: str
    """After "update size: " """
    mark: str
    why: str
    level: Literal["none", "fair", "bad"] = "none"

    @property
    def headline(self) -> str:
        return f"update size: {self.words}"


TRENDS = {
    "too early to say": Trend(
        "too early to say", "…", f"A trend of the update size ‖Δθ‖ takes {MIN_ROUNDS} rounds at least."
    ),
    "stalled": Trend(
        "zero",
        "■",
        "In more than half of the last ten rounds the global model did not move: no update was accepted, or none "
        "changed anything. From outside this looks like convergence. It is not.",
        "bad",
    ),
    "diverging": Trend(
        "growing",
        "↗",
        "The updates grow from round to round, by themselves or in proportion to the learning rate and the number of "
        "clients' steps behind them, or are not finite any more. If accuracy falls too, try a lower learning rate or "
        "clipping first.",
        "fair",
    ),
    "plateau": Trend(
        "steady",
        "→",
        "The updates neither shrink nor grow measurably, or shrink only because the learning rate or the number of "
        "clients' steps does: the model keeps moving by about the same distance each round. Accuracy may rise or be "
        "steady all the same.",
    ),
    "decaying, not summable": Trend(
        "shrinking slowly",
        "↘",
        "The updates shrink, but not measurably faster than 1/t. The sum of such steps may grow without end, so the "
        "model may drift for ever, ever more slowly.",
    ),
    "consistent with a summable series": Trend(
        "shrinking",
        "↘",
        "The updates shrink measurably faster than 1/t. If they went on like this for ever, their sum would be finite "
        "and the model would have a limit.",
    ),
    "not known": Trend("not known", "", "The history is missing, and with it the size of the updates."),
}
"""By the verdict of fedil_model.training.convergence"""
TREND_FOOT = (
    "Fitted as ‖Δθ‖ ≈ t^−p over the later half of the rounds, also of ‖Δθ‖ / (η · steps); the worse of the two stands. "
    "Finitely many rounds never prove convergence, and the update size says nothing of accuracy."
)


def trend(verdict: str) -> Trend:
    return TRENDS.get(verdict) or Trend(verdict, "", "This version does not know that verdict.")
