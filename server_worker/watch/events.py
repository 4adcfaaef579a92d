"""What the server reports while it works. The command line, the history file and metrics are watchers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, StrictFloat, StrictInt, StrictStr, TypeAdapter, ValidationError

from server_worker.watch.notices import Notice
from server_worker.watch.words import Trouble

REFUSED, MISSING, STALE = "refused", "missing", "stale"
NOT_LEARNED = frozenset({REFUSED, MISSING, STALE})
"""Outcomes without an update"""


@dataclass(frozen=True)
class ClientOutcome:
    """What became of one client that was asked. Every exclusion is explained."""

    client: int
    outcome: StrictStr
    """accepted, invalid, refused, missing, in buffered mode stale, or one that the method declares"""
    detail: str = ""
    counts: bool = False
    """Its update is part of the new model."""
    values: Mapping[str, StrictFloat] = field(default_factory=dict)
    """By the name of the method's client values"""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the client reported, checked"""
    num_samples: int = 0
    staleness: int | None = None
    """Buffered mode: by how many versions the model is older that it started from"""


@dataclass(frozen=True)
class RoundRecord:
    """A round whose updates are folded. A checkpoint holds it until it is evaluated; then history.jsonl keeps it."""

    round: Annotated[StrictInt, Field(ge=1)]
    rounds: StrictInt
    selected: StrictInt
    accepted: StrictInt
    outcomes: tuple[ClientOutcome, ...]
    delta_norm: StrictFloat
    verdict: str
    convergence: Mapping[str, StrictFloat | None]
    series: Mapping[str, StrictFloat | None]
    """By the name of the method's series"""
    seconds: Mapping[str, StrictFloat]
    """By phase: server_step, broadcast, wait, fold, checkpoint, evaluate (beside the next round), total"""
    refused: Mapping[str, StrictInt] = field(default_factory=dict)
    """Messages that arrived during this round and did not count, by reason: late, duplicate, digest, …"""
    finished_at: float = 0.0
    """Seconds since 1970"""
    cpu_seconds: float = 0.0
    """Of this process since the round before, or since the run began, and of the training that clients report"""
    bytes_sent: int = 0
    bytes_received: int = 0
    """Bodies of messages, at the server, since the round before"""
    accuracy: Mapping[str, StrictFloat] = field(default_factory=dict)
    """By the name of the method's models; empty when not evaluated"""
    per_class: tuple[float | None, ...] = ()
    """Accuracy of "global" on each class; None for one without test samples, empty when not evaluated"""

    @property
    def headline(self) -> dict[str, Any]:
        """For log lines and the status board"""
        names = ("round", "accepted", "selected", "delta_norm", "accuracy")
        return {**{name: getattr(self, name) for name in names}, "seconds": self.seconds.get("total", 0.0)}

    def to_json(self) -> str:
        """Not by dataclasses.asdict: it copies every number of every client, and takes four times as long."""
        return json.dumps(vars(self), default=vars)

    @staticmethod
    def from_fields(fields: object) -> "RoundRecord":
        """From what JSON made of it. Fields that a later version has added are ignored. Raises ValueError."""
        try:
            return _RECORD.validate_python(fields)
        except ValidationError as error:
            first = error.errors()[0]
            what = "is missing" if first["type"] == "missing" else f"is {first['input']!r}"
            raise ValueError(f"{'.'.join(map(str, first['loc']))} {what}".strip()) from error


_RECORD = TypeAdapter(RoundRecord)


class Watcher:
    """Called in the run's thread, which waits for it: it must be quick. This class hands every event on to others;
    without any, it is the base of watchers of some events only."""

    _watchers: tuple["Watcher", ...] = ()

    def __init__(self, *watchers: "Watcher") -> None:
        self._watchers = watchers

    def run_started(self, first_round: int, rounds: int) -> None:
        for watcher in self._watchers:
            watcher.run_started(first_round, rounds)

    def phase(self, round_number: int, name: str) -> None:
        """What is happening now: server_step, broadcast, wait, close; before round 1 (numbered 0) load_data and
        pretrain, after the last one baseline."""
        for watcher in self._watchers:
            watcher.phase(round_number, name)

    def epochs(self, done: int, total: int, left_seconds: float) -> None:
        """How far the training of the present phase is, which has no clients: once a second at most."""
        for watcher in self._watchers:
            watcher.epochs(done, total, left_seconds)

    def update_arrived(self, round_number: int, outcome: ClientOutcome, answered: int, selected: int) -> None:
        for watcher in self._watchers:
            watcher.update_arrived(round_number, outcome, answered, selected)

    def round_closed(self, record: RoundRecord) -> None:
        """In order, as soon as the round is evaluated."""
        for watcher in self._watchers:
            watcher.round_closed(record)

    def troubles(self, troubles: tuple[Trouble, ...]) -> None:
        """What is the matter from now on, from any thread; empty once nothing is."""
        for watcher in self._watchers:
            watcher.troubles(troubles)

    def note(self, notice: Notice) -> None:
        """One line that a person should see."""
        for watcher in self._watchers:
            watcher.note(notice)
