import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker_config.protocol.messages import Refusal, Update
from server_worker.buffered.state import Flight, OpenBuffer
from server_worker.run.recipe import Recipe, make_recipe
from server_worker.watch.events import ClientOutcome


def rules(seed: int = 3, in_flight: int = 4, size: int = 2, max_staleness: int = 2) -> Recipe:
    federation = {
        "mode": "buffered",
        "in_flight": in_flight,
        "buffer_size": size,
        "max_staleness": max_staleness,
    }
    return make_recipe(
        {
            "seed": seed,
            "split": {"labelled": 10, "clients": 8},
            "federation": {**federation, "deadline_seconds": 10.0},
        }
    )


RULES = rules()
CLIENTS = range(8)
# Version 6: client 1 started from it, 2 from the one before, 3 from the oldest that counts; 4 and 5 are idle.
OPEN = OpenBuffer(
    6,
    "r",
    RULES,
    activations=(0, 2, 5, 1, 3, 0, 0, 0),
    issued=11,
    flights={1: Flight(2, 6, 105.0), 2: Flight(5, 5, 103.0), 3: Flight(1, 4, 100.0)},
)


def update(client: int, activation: int, base: int, run: str = "r", number: int | None = None) -> Update:
    number = base if number is None else number
    return Update(run, number, client, activation, base, 10, 5, {"x": np.zeros(1)})


def accepted(client: int) -> ClientOutcome:
    return ClientOutcome(client, "accepted")


@pytest.mark.parametrize(
    ("answer", "objection"),
    [
        (update(1, 2, 6), None),
        (update(2, 5, 5), None),
        (update(3, 1, 4), None),
        (Refusal("r", 5, 2, 5, "why", "because"), None),
        (update(1, 2, 6, run="q"), "other_run"),
        (update(1, 3, 6), "not_asked"),  # a task that does not exist yet
        (update(1, 0, 6), "not_asked"),
        (update(5, 1, 6), "not_asked"),
        (update(99, 1, 6), "not_asked"),
        (update(2, 5, 6), "not_asked"),  # its task named another version
        (update(2, 5, 6, number=5), "not_asked"),
        (Refusal("r", 6, 2, 5, "why", "because"), "not_asked"),
        (update(2, 4, 4), "late"),  # its next activation fences it off
        (update(4, 3, 5), "late"),
        (update(4, 3, 3), "stale"),
    ],
)
def test_an_answer_counts_or_the_objection_has_a_name(
    answer: Update | Refusal, objection: str | None
) -> None:
    assert OPEN.objection(answer) == objection


@pytest.mark.parametrize("outcome", ["accepted", "refused", "invalid"])
def test_what_comes_after_the_outcome_does_not_count(outcome: str) -> None:
    settled = OPEN.record(ClientOutcome(2, outcome))
    assert settled.objection(update(2, 5, 5)) == "duplicate"
    assert settled.aggregated().objection(update(2, 5, 5)) == "late"


def test_who_was_given_up_may_still_answer_until_the_aggregation() -> None:
    given_up = OPEN.record(ClientOutcome(2, "missing"))
    assert 2 not in given_up.awaited
    assert given_up.objection(update(2, 5, 5)) is None
    assert given_up.record(accepted(2)) == OPEN.record(accepted(2))
    assert given_up.aggregated().objection(update(2, 5, 5)) == "late"


def test_staleness_counts_versions_and_lessens_the_weight() -> None:
    assert [OPEN.staleness(client) for client in (1, 2, 3)] == [0, 1, 2]
    assert [OPEN.weight(client) for client in (1, 2, 3)] == pytest.approx([1.0, 2**-0.5, 3**-0.5])
    assert OPEN.weight(1) == 1.0


def test_a_task_has_one_outcome_and_a_stranger_none() -> None:
    once = OPEN.record(accepted(2))
    assert once.record(ClientOutcome(2, "invalid")) is once
    assert OPEN.record(accepted(4)) is OPEN
    assert once.outcomes() == (accepted(2),)


@pytest.mark.parametrize("bad", ["refused", "invalid"])
def test_it_aggregates_when_there_are_enough_updates_whatever_else_has_come(bad: str) -> None:
    one = OPEN.record(ClientOutcome(1, bad)).record(accepted(2))
    assert (one.answered, one.expected) == (1, 2)
    assert not one.may_aggregate(CLIENTS)
    assert one.record(ClientOutcome(3, "rejected_cosine")).may_aggregate(CLIENTS)
    # Others can be asked as long as there are some.
    only_one = one.record(ClientOutcome(3, bad))
    assert not only_one.may_aggregate(CLIENTS)
    assert only_one.may_aggregate([1, 2, 3])


def test_a_version_is_made_though_all_that_came_is_invalid() -> None:
    """Whoever watches sees that nobody is accepted; waiting would not help."""
    nonsense = OPEN
    for client in (1, 2, 3):
        nonsense = nonsense.record(ClientOutcome(client, "invalid"))
    assert not nonsense.may_aggregate(CLIENTS)
    assert nonsense.may_aggregate([1, 2, 3])


def test_when_all_refuse_there_is_nothing_to_aggregate() -> None:
    some = OPEN.record(ClientOutcome(1, "refused")).record(ClientOutcome(2, "refused"))
    assert not some.may_aggregate(CLIENTS)
    assert some.record(accepted(3)).may_aggregate([1, 2, 3])
    assert not some.record(ClientOutcome(3, "refused")).may_aggregate([1, 2, 3])


def test_given_up_clients_are_no_answers_but_explained() -> None:
    gone = OPEN.record(ClientOutcome(1, "missing")).record(ClientOutcome(2, "missing"))
    assert gone.answered == 0
    assert not gone.may_aggregate(CLIENTS)
    assert [outcome.outcome for outcome in gone.outcomes()] == ["missing", "missing"]


def test_it_aggregates_what_there_is_when_nobody_is_left_to_wait_for_or_to_ask() -> None:
    gone = OPEN.record(accepted(1)).record(ClientOutcome(2, "missing"))
    assert not gone.may_aggregate([1, 2])
    gone = gone.record(ClientOutcome(3, "missing"))
    assert gone.may_aggregate([1, 2])
    assert not gone.may_aggregate([1, 2, 4])  # 4 can be asked
    silent = OPEN.record(ClientOutcome(1, "missing")).record(ClientOutcome(2, "missing"))
    assert not silent.record(ClientOutcome(3, "missing")).may_aggregate([])


def test_a_client_is_given_up_when_its_own_time_is_over() -> None:
    assert OPEN.overdue(109.9) == ()
    assert [outcome.client for outcome in OPEN.overdue(110.0)] == [3]
    assert [(o.client, o.outcome) for o in OPEN.overdue(113.0)] == [(2, "missing"), (3, "missing")]
    assert "10 s" in OPEN.overdue(110.0)[0].detail
    assert OPEN.record(accepted(3)).overdue(110.0) == ()


def test_who_started_too_many_versions_ago_is_not_waited_for() -> None:
    following = OPEN.record(accepted(1)).aggregated()
    assert following.number == 7
    assert following.awaited == (2,)
    (outcome,) = following.outcomes()
    assert (outcome.client, outcome.outcome, outcome.staleness) == (3, "stale", 3)
    assert outcome.detail == "started 3 versions ago, max_staleness is 2"
    assert following.answered == 0
    assert following.versions == (5, 7)
    assert following.objection(update(3, 1, 4)) == "stale"


def test_who_was_too_slow_for_one_version_is_asked_for_the_current_one_and_both_are_told() -> None:
    following = OPEN.record(accepted(1)).aggregated()
    assert following.replacements([3]) == (3,)  # nobody else may be there
    again = following.ask([3], 200.0)
    assert again.flights[3] == Flight(2, 7, 200.0)
    assert again.objection(update(3, 1, 4)) == "stale"
    answered = again.record(accepted(3))
    assert [(o.client, o.outcome) for o in answered.outcomes()] == [(3, "stale"), (3, "accepted")]
    assert [outcome.client for outcome in answered.aggregated().outcomes()] == [2]


def test_with_no_staleness_allowed_only_the_current_version_counts() -> None:
    strict = replace(OPEN, recipe=rules(max_staleness=0)).record(accepted(1)).aggregated()
    assert strict.awaited == ()
    assert [outcome.outcome for outcome in strict.outcomes()] == ["stale", "stale"]
    assert not strict.may_aggregate(CLIENTS)
    assert len(strict.replacements(CLIENTS)) == RULES.federation.in_flight


def test_free_clients_fill_the_empty_places_and_start_from_the_current_version() -> None:
    (client,) = OPEN.replacements(CLIENTS)
    assert client not in (1, 2, 3)
    asked = OPEN.ask([client], 200.0)
    assert asked.flights[client] == Flight(OPEN.activations[client] + 1, 6, 200.0)
    assert (asked.issued, len(asked.awaited)) == (12, 4)
    assert asked.replacements(CLIENTS) == ()


def test_who_has_answered_is_asked_again_only_from_the_next_version_on() -> None:
    answered = OPEN.record(accepted(1))
    assert answered.replacements([1, 2, 3]) == ()
    assert answered.aggregated().replacements([1, 2]) == (1,)


def test_only_candidates_are_asked() -> None:
    assert OPEN.replacements([7]) == (7,)
    assert OPEN.replacements([]) == ()


def test_the_seed_and_the_number_of_tasks_decide_who_is_next() -> None:
    empty = OpenBuffer(1, "r", RULES, (0,) * 8)
    first = empty.replacements(CLIENTS)
    assert first == OpenBuffer(1, "r", RULES, (0,) * 8).replacements(reversed(CLIENTS))
    # One at a time or all at once makes no difference.
    by_one = empty
    for _ in range(RULES.federation.in_flight):
        by_one = by_one.ask(by_one.replacements(CLIENTS)[:1], 0.0)
    assert by_one == empty.ask(first, 0.0)
    others = {replace(empty, issued=n).replacements(CLIENTS) for n in range(20)}
    assert len(others) > 10
    seeds = {replace(empty, recipe=rules(seed=seed)).replacements(CLIENTS) for seed in range(20)}
    assert len(seeds) > 10


def test_everybody_gets_a_turn() -> None:
    counts: Counter[int] = Counter()
    buffer = OpenBuffer(1, "r", rules(max_staleness=50), (0,) * 8)
    rng = np.random.default_rng(0)
    for _ in range(400):
        buffer = buffer.ask(buffer.replacements(CLIENTS), 0.0)
        client = int(rng.choice(buffer.awaited))
        counts[client] += 1
        buffer = buffer.record(accepted(client))
        if buffer.may_aggregate(CLIENTS):
            buffer = buffer.aggregated()
    assert min(counts[client] for client in CLIENTS) > 25


def test_a_resumed_buffer_gives_everybody_a_whole_deadline_and_waits_for_unsaved_answers_again() -> None:
    fields = json.loads(json.dumps(OPEN.record(accepted(1)).to_fields()))
    resumed = OpenBuffer.from_fields(fields, "r", RULES, (0, 1, 4, 0, 3, 0, 0, 0), 1000.0)
    assert resumed.awaited == (1, 2, 3)
    assert resumed.activations == OPEN.activations
    assert resumed.overdue(1009.9) == ()
    assert resumed.objection(update(1, 2, 6)) is None
    assert resumed == replace(OPEN, flights={c: replace(f, since=1000.0) for c, f in OPEN.flights.items()})


class Federation(RuleBasedStateMachine):
    """Clients that answer, vanish or answer too late, a queue that repeats itself, and a server that dies. What is
    saved is what a checkpoint and its journal would hold."""

    @initialize(
        in_flight=st.integers(1, 5), spare=st.integers(0, 4), data=st.data(), max_staleness=st.integers(0, 3)
    )
    def begin(self, in_flight: int, spare: int, data: st.DataObject, max_staleness: int) -> None:
        size = data.draw(st.integers(1, in_flight))
        self.terms = rules(data.draw(st.integers(0, 9)), in_flight, size, max_staleness)
        self.clients = range(in_flight + spare)
        self.now = 0.0
        self.buffer = OpenBuffer(1, "r", self.terms, (0,) * len(self.clients))
        self.issued: dict[tuple[int, int], int] = {}
        """(client, activation) → base version"""
        self.sent: list[Update | Refusal] = []
        """Answers that no aggregation has settled: a broker delivers them again after a crash."""
        self.outcomes: Counter[tuple[int, int]] = Counter()
        self.save()
        self.fill(list(self.clients))

    def save(self) -> None:
        self.saved = json.dumps(self.buffer.to_fields())
        self.activations = self.buffer.activations

    def fill(self, candidates: list[int]) -> None:
        chosen = self.buffer.replacements(candidates)
        assert set(chosen) <= set(candidates)
        assert len(set(chosen)) == len(chosen)
        before = self.buffer
        assert not set(chosen) & set(before.awaited)
        self.buffer = before.ask(chosen, self.now)
        if chosen:
            assert len(self.buffer.awaited) <= self.terms.federation.in_flight
        for client in chosen:
            flight = self.buffer.flights[client]
            assert (client, flight.activation) not in self.issued
            assert flight.activation == before.activations[client] + 1
            self.issued[client, flight.activation] = flight.base_version
        self.saved = json.dumps(self.buffer.to_fields())

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), refuses=st.booleans())
    def a_client_answers(self, data: st.DataObject, refuses: bool) -> None:
        """Any task ever issued, perhaps not for the first time."""
        (client, activation), base = data.draw(st.sampled_from(sorted(self.issued.items())))
        answer: Update | Refusal = update(client, activation, base)
        if refuses:
            answer = Refusal("r", base, client, activation, "no", "no")
        self.sent.append(answer)
        self.deliver(answer)

    def deliver(self, answer: Update | Refusal) -> None:
        objection = self.buffer.objection(answer)
        if objection is None:
            assert self.buffer.staleness(answer.client) <= self.terms.federation.max_staleness
            assert 0 < self.buffer.weight(answer.client) <= 1
            assert self.buffer.flights[answer.client].base_version in self.buffer.versions
            word = "refused" if isinstance(answer, Refusal) else "accepted"
            after = self.buffer.record(ClientOutcome(answer.client, word))
            assert after.objection(answer) == "duplicate"
            self.buffer = after
        else:
            assert objection in ("late", "stale", "duplicate")
            assert self.buffer.record(accepted(answer.client)) is self.buffer or objection != "duplicate"

    @rule(seconds=st.floats(0, 12))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for outcome in self.buffer.overdue(self.now):
            self.buffer = self.buffer.record(outcome)
        assert self.buffer.overdue(self.now) == ()

    @rule(alive=st.sets(st.integers(0, 8)))
    def the_server_asks(self, alive: set[int]) -> None:
        self.fill([client for client in self.clients if client in alive])

    @precondition(lambda self: self.buffer.may_aggregate(self.clients))
    @rule()
    def the_server_aggregates(self) -> None:
        for outcome in self.buffer.outcomes():
            tasks = self.buffer.stale if outcome.outcome == "stale" else self.buffer.flights
            self.outcomes[outcome.client, tasks[outcome.client].activation] += 1
        version = self.buffer.number
        self.buffer = self.buffer.aggregated()
        assert self.buffer.number == version + 1
        self.sent = [a for a in self.sent if a.client in self.buffer.awaited]
        self.save()
        self.fill(list(self.clients))

    @rule()
    def the_server_dies_and_resumes(self) -> None:
        resumed = OpenBuffer.from_fields(json.loads(self.saved), "r", self.terms, self.activations, self.now)
        again = resumed
        for outcome in self.buffer.arrived.values():
            again = again.record(outcome)
        assert again == replace(
            self.buffer,
            flights={c: replace(f, since=self.now) for c, f in self.buffer.flights.items()},
            stale={c: replace(f, since=self.now) for c, f in self.buffer.stale.items()},
        )
        assert again.replacements(self.clients) == self.buffer.replacements(self.clients)
        self.buffer = resumed
        for answer in self.sent:
            self.deliver(answer)

    @invariant()
    def every_task_has_at_most_one_outcome(self) -> None:
        assert all(count == 1 for count in self.outcomes.values())

    @invariant()
    def every_task_is_settled_or_in_flight(self) -> None:
        tasks = [*self.buffer.flights.items(), *self.buffer.stale.items()]
        unsettled = {(client, flight.activation) for client, flight in tasks}
        assert len(unsettled) == len(tasks)
        assert set(self.issued) == unsettled | set(self.outcomes)
        assert not unsettled & set(self.outcomes)

    @invariant()
    def when_nobody_is_left_it_aggregates_unless_nobody_has_learned(self) -> None:
        buffer, candidates = self.buffer, self.clients
        if not buffer.awaited and not buffer.replacements(candidates):
            outcomes = {outcome.outcome for outcome in buffer.arrived.values()}
            assert buffer.may_aggregate(candidates) == bool(outcomes - {"refused", "missing"})


Federation.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestFederation = Federation.TestCase
