"""An open round as a value: what has arrived, may it close, who is missing. No clock, no broker."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from broker_config.messages import Refusal, Update
from server_worker.events import NOT_LEARNED, ClientOutcome


@dataclass(frozen=True)
class OpenRound:
    run: str
    number: int
    activations: Mapping[int, int]
    """Selected client → the number of its activation"""
    needed: int
    """Answers after which the round closes at once"""
    quorum: int
    """Answers that suffice once the deadline has passed"""
    deadline: float
    arrived: Mapping[int, ClientOutcome] = field(default_factory=dict)

    def objection(self, answer: Update | Refusal) -> str | None:
        """Why an answer does not belong here, in one word for logs and counters; None if it does."""
        if answer.run != self.run:
            return "other_run"
        if answer.round < self.number:
            return "late"
        if answer.round > self.number or self.activations.get(answer.client) != answer.activation:
            return "not_asked"
        if answer.client in self.arrived:
            return "duplicate"
        if isinstance(answer, Update) and answer.base_version != self.number:
            return "stale"
        return None

    def record(self, outcome: ClientOutcome) -> "OpenRound":
        """A client counts once; a stranger or a repeat changes nothing."""
        if outcome.client in self.arrived or outcome.client not in self.activations:
            return self
        return replace(self, arrived={**self.arrived, outcome.client: outcome})

    @property
    def answered(self) -> int:
        return len(self.arrived)

    @property
    def learned(self) -> int:
        """Answers that are no refusals: those alone can make a round."""
        return sum(outcome.outcome not in NOT_LEARNED for outcome in self.arrived.values())

    def may_close(self, now: float) -> bool:
        if self.learned >= self.needed or self.answered == len(self.activations):
            return True
        return now >= self.deadline and self.learned >= self.quorum

    def overdue(self, now: float) -> bool:
        """The deadline has passed and not even the quorum has answered."""
        return now >= self.deadline and not self.may_close(now)

    def outcomes(self) -> tuple[ClientOutcome, ...]:
        """One for every selected client, in order; the silent ones are "missing"."""
        return tuple(
            self.arrived.get(
                client, ClientOutcome(client, "missing", detail="no answer before the round closed")
            )
            for client in sorted(self.activations)
        )
