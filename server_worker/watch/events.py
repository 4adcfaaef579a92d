"""What the server says while it works. The command line, the history file and metrics listen."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

NOT_LEARNED = frozenset({"refused", "missing", "stale"})
"""Outcomes without an update"""


@dataclass(frozen=True)
class ClientOutcome:
    """Every exclusion is explained."""

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
    """By phase: server_step, broadcast, wait, fold, checkpoint, evaluate (beside the next round), total."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Messages that arrived during this round and did not count, by reason: late, duplicate, digest, …"""
    promoted: int = 0
    """Samples that became credible in this round"""
    per_class: tuple[float | None, ...] = ()
    """Accuracy of θ′ on each class; None for one without test samples, empty when not evaluated."""
    finished_at: float = 0.0
    """Seconds since 1970"""


def record_to_json(record: RoundRecord) -> str:
    """Not by dataclasses.asdict: it copies every number of every client, and takes four times as long."""
    return json.dumps(vars(record), default=vars)


def record_from_fields(fields: Mapping[str, Any]) -> RoundRecord:
    """From what JSON made of it. Fields that a later version has added are passed over."""
    outcomes = tuple(ClientOutcome(**_known(ClientOutcome, outcome)) for outcome in fields["outcomes"])
    per_class = tuple(fields.get("per_class", ()))
    return RoundRecord(**{**_known(RoundRecord, fields), "outcomes": outcomes, "per_class": per_class})


def _known(kind: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    names = {part.name for part in dataclasses.fields(kind)}
    return {name: value for name, value in fields.items() if name in names}


class Watcher(Protocol):
    """Is told in one thread, and may not be slow: the run waits."""

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


class Watchers:
    """Several of them, as one."""

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers = watchers

    def run_started(self, first_round: int, rounds: int) -> None:
        for watcher in self._watchers:
            watcher.run_started(first_round, rounds)

    def phase(self, round_number: int, name: str) -> None:
        for watcher in self._watchers:
            watcher.phase(round_number, name)

    def update_arrived(self, round_number: int, outcome: ClientOutcome, answered: int, selected: int) -> None:
        for watcher in self._watchers:
            watcher.update_arrived(round_number, outcome, answered, selected)

    def round_closed(self, record: RoundRecord) -> None:
        for watcher in self._watchers:
            watcher.round_closed(record)

    def note(self, text: str) -> None:
        for watcher in self._watchers:
            watcher.note(text)
