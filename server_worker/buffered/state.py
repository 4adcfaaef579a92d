"""Buffered mode as a value: tasks in flight, answers since the last aggregation, whether to aggregate, which clients to
ask next. No clock, no broker."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from broker_config.protocol.messages import Refusal, Update
from fedil_model.methods.interface import INVALID
from server_worker.round.selection import select_clients
from server_worker.round.state import Open
from server_worker.run.recipe import Recipe
from server_worker.watch.events import MISSING, NOT_LEARNED, STALE, ClientOutcome


@dataclass(frozen=True)
class Flight:
    """One task: which time the client is asked, the version it starts from, and when it was asked."""

    activation: int
    base_version: int
    since: float


@dataclass(frozen=True)
class OpenBuffer(Open):
    """`number` is the version that clients are sent now; the aggregation makes the next one.

    A client's task stays in `flights` until the aggregation that settles it, also when its answer is here: only
    then is the answer in a checkpoint. Until then the client is not asked again either, so it never trains twice
    on one version, whose evidence would count twice."""

    recipe: Recipe
    activations: tuple[int, ...]
    """How often each client has been asked so far"""
    issued: int = 0
    """Tasks so far"""
    flights: Mapping[int, Flight] = field(default_factory=dict)
    stale: Mapping[int, Flight] = field(default_factory=dict)
    """Tasks that the last aggregation made too old, to be told with the next. Their clients are free: what they are
    asked now is another version."""

    @property
    def asked(self) -> Mapping[int, int]:
        return {client: flight.activation for client, flight in self.flights.items()}

    # ---- what arrives ----------------------------------------------------------------------------------------

    def _objection_to_unasked(self, answer: Update | Refusal) -> str:
        asked = self.activations[answer.client] if answer.client < len(self.activations) else 0
        if not 1 <= answer.activation <= asked:
            return "not_asked"
        return "stale" if self._too_old(answer.round, self.number) else "late"

    def base_of(self, client: int) -> int:
        return self.flights[client].base_version

    def staleness(self, client: int) -> int:
        """How many versions have come since the one that this client started from."""
        return self.number - self.base_of(client)

    def weight(self, client: int) -> float:
        """What was learned from an old model fits the new one less."""
        return float((1 + self.staleness(client)) ** -0.5)

    def overdue(self, now: float) -> tuple[ClientOutcome, ...]:
        """Clients whose deadline has passed. Their slots are free; a next activation fences off the old one."""
        limit = self.recipe.federation.deadline_seconds
        late = [client for client in self.awaited if now - self.flights[client].since >= limit]
        return tuple(ClientOutcome(client, MISSING, f"no answer within {limit:g} s") for client in late)

    # ---- what to do next -------------------------------------------------------------------------------------

    @property
    def answered(self) -> int:
        """Only updates fill a buffer: a site that dies, refuses or sends nonsense would else make an aggregation of
        little or nothing."""
        return self._count(NOT_LEARNED | {INVALID})

    @property
    def expected(self) -> int:
        return self.recipe.federation.buffer_size

    def may_aggregate(self, candidates: Iterable[int]) -> bool:
        """Enough clients have learned, or no other client is left."""
        if self._count(NOT_LEARNED) == 0:
            return False
        return self.answered >= self.expected or not (self.awaited or self.replacements(candidates))

    def _count(self, without: frozenset[str]) -> int:
        return sum(outcome.outcome not in without for outcome in self.arrived.values())

    def replacements(self, candidates: Iterable[int]) -> tuple[int, ...]:
        """Candidates to ask now, so that enough are in flight. The seed and n decide which free client gets the n-th
        task of a run."""
        free = sorted(set(candidates) - self.flights.keys())
        chosen: list[int] = []
        for _ in range(min(self.recipe.federation.in_flight - len(self.awaited), len(free))):
            (client,) = select_clients(self.recipe.seed, self.issued + len(chosen) + 1, free, 1)
            free.remove(client)
            chosen.append(client)
        return tuple(chosen)

    def ask(self, clients: Sequence[int], now: float) -> "OpenBuffer":
        """Their next activations, on the current version."""
        activations = list(self.activations)
        for client in clients:
            activations[client] += 1
        asked = {client: Flight(activations[client], self.number, now) for client in clients}
        return replace(
            self,
            activations=tuple(activations),
            issued=self.issued + len(asked),
            flights={**self.flights, **asked},
        )

    # ---- from one aggregation to the next --------------------------------------------------------------------

    def outcomes(self) -> tuple[ClientOutcome, ...]:
        """One for every task that this aggregation settles, in order; two for a client that was too slow for one
        and has answered another."""
        stale = [self._stale_outcome(client, flight) for client, flight in self.stale.items()]
        return tuple(sorted([*stale, *self.arrived.values()], key=lambda outcome: outcome.client))

    def _stale_outcome(self, client: int, flight: Flight) -> ClientOutcome:
        staleness = self.number - flight.base_version
        detail = f"started {staleness} versions ago, max_staleness is {self.recipe.federation.max_staleness}"
        return ClientOutcome(client, STALE, detail, staleness=staleness)

    def aggregated(self) -> "OpenBuffer":
        """What is left once the next version is made."""
        number = self.number + 1
        left = {client: self.flights[client] for client in self.awaited}
        # Tasks of versions that are not kept are not waited for: a worker may not even find the version.
        stale = {c: flight for c, flight in left.items() if self._too_old(flight.base_version, number)}
        flights = {c: flight for c, flight in left.items() if c not in stale}
        return replace(self, number=number, flights=flights, arrived={}, stale=stale)

    @property
    def versions(self) -> tuple[int, ...]:
        started = (flight.base_version for c, flight in self.flights.items() if self._may_answer(c))
        return tuple(sorted({self.number, *started}))

    def _too_old(self, base_version: int, number: int) -> bool:
        return number - base_version > self.recipe.federation.max_staleness

    # ---- through a crash -------------------------------------------------------------------------------------

    def to_fields(self) -> dict[str, Any]:
        """Plain values. What has arrived is not among them: until an aggregation is saved, every answer comes
        back."""
        return {
            "version": self.number,
            "issued": self.issued,
            "flights": _flights_to_fields(self.flights),
            "stale": _flights_to_fields(self.stale),
        }

    @staticmethod
    def from_fields(
        fields: Mapping[str, Any], run: str, recipe: Recipe, activations: Sequence[int], now: float
    ) -> "OpenBuffer":
        """`activations`: how often each client had been asked at the last aggregation, or later. Clocks start
        anew, so every client gets a whole deadline again."""
        flights, stale = (_flights_from_fields(fields[name], now) for name in ("flights", "stale"))
        asked = [
            max(before, flights[client].activation) if client in flights else before
            for client, before in enumerate(activations)
        ]
        return OpenBuffer(fields["version"], run, recipe, tuple(asked), fields["issued"], flights, stale)


def _flights_to_fields(flights: Mapping[int, Flight]) -> list[list[int]]:
    return sorted([client, flight.activation, flight.base_version] for client, flight in flights.items())


def _flights_from_fields(fields: Sequence[Sequence[int]], now: float) -> dict[int, Flight]:
    return {client: Flight(activation, base_version, now) for client, activation, base_version in fields}
