"""What the server says while it works. The command line, the history file and metrics listen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

NOT_LEARNED = frozenset({"refused", "missing", "stale"})
"""Outcomes without an update"""


@dataclass(frozen=True)
class ClientOutcome:
    """Promise 8: every exclusion is explained."""

    client: int
    outcome: str
    """accepted, projected, rejected_cosine, invalid, refused, missing; in buffered mode stale"""
    cosine: float | None = None
    detail: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    num_samples: int = 0
    staleness: int | None = None
    """Buffered mode: how many versions old the model was that it started from."""

    @property
    def counts(self) -> bool:
        """It went into θ′."""
        return self.outcome in ("accepted", "projected")


@dataclass(frozen=True)
class RoundRecord:
    """One closed round, as history.jsonl keeps it."""

    round: int
    rounds: int
    selected: int
    accepted: int
    outcomes: tuple[ClientOutcome, ...]
    delta_norm: float
    reference_norm: float
    """‖g₀‖ = ‖θ₀ − θ′‖"""
    verdict: str
    convergence: Mapping[str, float | None]
    accuracy: Mapping[str, float]
    """"global" (θ′ after this round), "server" (this round's θ₀), "ema"; empty when not evaluated."""
    losses: Mapping[str, float]
    pseudo_labels: int
    """Samples that carry a confident, agreed label at their clients now."""
    credible: int
    """Samples promoted to the pseudo-label sets."""
    purity: Mapping[str, float | None]
    """Share of right ones among "pseudo_labels" and "credible", where truth is known offline."""
    seconds: Mapping[str, float]
    """By phase: server_step, broadcast, wait, fold, checkpoint, total."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Messages that arrived during this round and did not count, by reason: late, duplicate, digest, …"""


class Watcher(Protocol):
    def run_started(self, first_round: int, rounds: int) -> None: ...

    def phase(self, round_number: int, name: str) -> None:
        """What is happening now: server_step, broadcast, wait, close; before round 1 (numbered 0) load_data,
        baseline, pretrain."""

    def update_arrived(
        self, round_number: int, outcome: ClientOutcome, answered: int, selected: int
    ) -> None: ...

    def round_closed(self, record: RoundRecord) -> None:
        """Comes in order, once a round's evaluation is known."""

    def note(self, text: str) -> None:
        """One line a person should see: a message refused, a round that nobody was accepted in."""
