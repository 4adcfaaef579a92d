"""An open round as a value: what has arrived, whether it may close, which clients are missing. No clock, no broker."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

from broker_config.protocol.messages import Refusal, Update
from fedil_model.methods.interface import INVALID
from server_worker.watch.events import MISSING, NOT_LEARNED, ClientOutcome


@dataclass(frozen=True)
class Open(ABC):
    """What answers arrive for: a round or a buffer."""

    number: int
    run: str
    arrived: Mapping[int, ClientOutcome] = field(default_factory=dict, kw_only=True)
    """What became of clients that were asked"""

    @property
    @abstractmethod
    def asked(self) -> Mapping[int, int]:
        """Client → the activation that its outcome belongs to"""

    @property
    def awaited(self) -> tuple[int, ...]:
        return tuple(sorted(self.asked.keys() - self.arrived.keys()))

    @property
    def answered(self) -> int:
        return len(self.arrived)

    @property
    @abstractmethod
    def versions(self) -> tuple[int, ...]:
        """Model versions that an answer which counts may have started from"""

    def base_of(self, client: int) -> int:  # noqa: ARG002
        """The version that the client was asked to start from"""
        return self.number

    @property
    @abstractmethod
    def expected(self) -> int:
        """Answers that are wanted, for people"""

    def staleness(self, client: int) -> int | None:  # noqa: ARG002
        """None: all start from the round's own model."""
        return None

    def weight(self, client: int) -> float:  # noqa: ARG002
        """Of its update in the mean"""
        return 1.0

    def objection(self, answer: Update | Refusal) -> str | None:
        """Why an answer does not count, in one word for logs and counters; None if it does."""
        if answer.run != self.run:
            return "other_run"
        if self.asked.get(answer.client) != answer.activation:
            return self._objection_to_unasked(answer)
        asked_from = self.base_of(answer.client)
        base_version = answer.base_version if isinstance(answer, Update) else answer.round
        if (answer.round, base_version) != (asked_from, asked_from):
            return "not_asked"
        return None if self._may_answer(answer.client) else "duplicate"

    @abstractmethod
    def _objection_to_unasked(self, answer: Update | Refusal) -> str:
        """To an activation that is over, or that no client was asked for"""

    def record(self, outcome: ClientOutcome) -> Self:
        """A client counts once; unknown clients and repeats change nothing. One that was given up may still answer."""
        if outcome.client not in self.asked or not self._may_answer(outcome.client):
            return self
        return replace(self, arrived={**self.arrived, outcome.client: outcome})

    def _may_answer(self, client: int) -> bool:
        return client not in self.arrived or self.arrived[client].outcome == MISSING

    @abstractmethod
    def outcomes(self) -> tuple[ClientOutcome, ...]:
        """In the order of clients"""


OpenT = TypeVar("OpenT", bound=Open)


@dataclass(frozen=True)
class OpenRound(Open):
    activations: Mapping[int, int]
    """Selected client → the number of its activation"""
    needed: int
    """Updates after which the round closes at once"""
    quorum: int
    """Answers that suffice once the deadline has passed"""
    deadline: float
    over: Sequence[int] = ()
    """By client: the last of its activations that is not awaited any more"""
    min_sites: int = 0
    """Sites of which a client must have learned"""
    site_of: Callable[[int], str] = lambda _: ""

    def _objection_to_unasked(self, answer: Update | Refusal) -> str:
        over = self.over[answer.client] if answer.client < len(self.over) else 0
        return "late" if answer.round < self.number or 1 <= answer.activation <= over else "not_asked"

    @property
    def asked(self) -> Mapping[int, int]:
        return self.activations

    @property
    def versions(self) -> tuple[int, ...]:
        return (self.number,) if self.needed else ()

    @property
    def expected(self) -> int:
        return len(self.activations)

    @property
    def learned(self) -> int:
        """Answers that are no refusals: those alone can make a round."""
        return sum(outcome.outcome not in NOT_LEARNED for outcome in self.arrived.values())

    @property
    def sites(self) -> set[str]:
        """Those of which a client has learned"""
        return {self.site_of(o.client) for o in self.arrived.values() if o.outcome not in NOT_LEARNED}

    @property
    def sites_missing(self) -> int:
        return max(0, self.min_sites - len(self.sites))

    @property
    def fitting(self) -> int:
        """Valid updates: invalid ones must not close a round while other clients still train."""
        return self.learned - sum(outcome.outcome == INVALID for outcome in self.arrived.values())

    @property
    def is_settled(self) -> bool:
        """No client is waited for, though one that was given up may still answer."""
        return self.answered == len(self.activations)

    def may_close(self, now: float) -> bool:
        if self.sites_missing:
            return False
        if self.fitting >= self.needed or (self.is_settled and self.fitting >= self.quorum):
            return True
        return now >= self.deadline and self.learned >= self.quorum

    def overdue(self, now: float) -> bool:
        """The deadline has passed and not even the quorum has answered."""
        return now >= self.deadline and not self.may_close(now)

    def also(self, clients: Sequence[int]) -> "OpenRound":
        """With more clients to wait for"""
        more = {client: self.over[client] + 1 for client in clients}
        return replace(self, activations={**self.activations, **more})

    def outcomes(self) -> tuple[ClientOutcome, ...]:
        """One for every client that was asked, in order; the silent ones are "missing"."""
        silent = "no answer before the round closed"
        return tuple(
            self.arrived.get(client, ClientOutcome(client, MISSING, silent))
            for client in sorted(self.activations)
        )
