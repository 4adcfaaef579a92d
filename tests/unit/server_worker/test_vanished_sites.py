"""Sites that vanish with everybody who was asked, and come back, and servers that die just then."""

import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_config.protocol.messages import TrainTask
from server_worker.run.progress import Progress
from tests.federation import RUN, SITE, Federation, Hands, blobs_recipe
from tests.serving import THERE, Clock, TwoSites, served, until


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is silent for one poll is looked after."""
    for mode in ("round", "buffered"):
        monkeypatch.setattr(f"server_worker.{mode}.loop.QUIET_SECONDS", 0.0)
    monkeypatch.setattr("server_worker.round.loop.POLL_SECONDS", 0.05)
    monkeypatch.setattr("server_worker.buffered.loop.POLL_SECONDS", 0.05)


def of_two_sites(directory: Path, sites: TwoSites, **more: Any) -> Federation:
    """Asks all clients of the one site that is there."""
    federation = {"clients_per_round": 3}
    return Federation(blobs_recipe(rounds=1, federation=federation), directory, sites=sites, **more)


def outcomes_of(federation: Federation) -> dict[int, tuple[str, str]]:
    (record,) = federation.diary.records
    return {outcome.client: (outcome.outcome, outcome.detail) for outcome in record.outcomes}


def clients_of(tasks: list[TrainTask]) -> list[int]:
    return sorted(task.client for task in tasks)


def check_ledgers(federation: Federation, progress: Progress) -> None:
    """No activation was used for two tasks: what a client has committed is what it was asked last, or before."""
    for client, (activation, _) in federation.store.latest(RUN).items():
        assert progress.answered[client] <= activation <= progress.activations[client]


def test_a_round_whose_clients_have_all_vanished_asks_others(tmp_path: Path) -> None:
    sites = TwoSites(gone=THERE)
    federation = of_two_sites(tmp_path, sites)
    with served(federation) as (server, here):
        there = Hands(federation, THERE)
        first = here.take(3)
        sites.gone = SITE
        second = there.take(3)
        assert clients_of(second) == [3, 4, 5]
        here.answer(first[0])  # it comes back
        for task in second[:2]:
            there.answer(task)
        progress = server.end()
    assert progress is not None
    found = outcomes_of(federation)
    learned = [first[0].client, *(task.client for task in second[:2])]
    assert {found[client][0] for client in learned} <= {"accepted", "rejected_cosine"}
    assert [found[task.client] for task in first[1:]] == [("missing", "its site has no worker")] * 2
    assert found[second[2].client] == ("missing", "no answer before the round closed")
    assert progress.activations == (1,) * 6
    assert progress.answered == tuple(int(client in learned) for client in range(6))
    assert any(
        "0 of 3 clients have trained, the quorum is 3; asking 3 more" in note
        for note in federation.diary.notes
    )


def test_a_server_that_dies_after_it_has_asked_others_goes_on_with_them(tmp_path: Path) -> None:
    """What the round began with is not all that it has to remember."""
    sites = TwoSites(gone=THERE)
    first = of_two_sites(tmp_path, sites)
    with served(first) as (server, here):
        there = Hands(first, THERE)
        given_up = here.take(3)
        sites.gone = SITE
        tasks = there.take(3)
        there.answer(tasks[0])
        server.die()
    sites.gone = None  # so nothing but what was written down makes it ask those
    second = of_two_sites(tmp_path, sites, broker=first.broker)
    with served(second) as (server, here):
        there = Hands(second, THERE)
        for task in tasks[1:]:
            there.send(there.train(task))
        progress = server.end()
    assert progress is not None
    found = outcomes_of(second)
    assert sorted(found) == list(range(6))
    assert {found[client][0] for client in (3, 4, 5)} <= {"accepted", "rejected_cosine"}
    assert {found[task.client][0] for task in given_up} == {"missing"}
    assert second.diary.records[0].refused == {}  # what had been answered counted
    assert progress.activations == (1,) * 6
    check_ledgers(second, progress)


def test_when_sites_have_vanished_in_turn_there_is_hope_for_who_comes_back(tmp_path: Path) -> None:
    sites, given_up = TwoSites(gone=THERE), list[int]()
    first = of_two_sites(tmp_path, sites)
    first.diary.on_update = lambda _, answered: given_up.append(answered)
    with served(first) as (server, here):
        there = Hands(first, THERE)
        here.take(3)
        sites.gone = SITE
        there.take(3)
        sites.gone = THERE
        until(lambda: len(given_up) == 6)
        assert server.is_alive
        server.die()
    second = of_two_sites(tmp_path, sites)  # a new broker: all that was in queues is gone
    with served(second) as (server, here):
        for task in here.take(3):
            here.answer(task)
        progress = server.end()
    assert progress is not None
    assert progress.activations == (1,) * 6
    assert progress.answered == (1, 1, 1, 0, 0, 0)
    check_ledgers(second, progress)


def test_when_nobody_else_is_left_a_round_closes_with_those_who_have_learned(tmp_path: Path) -> None:
    sites = TwoSites()
    recipe = blobs_recipe(rounds=1, federation={"clients_per_round": 6})
    federation = Federation(recipe, tmp_path, sites=sites)
    with served(federation) as (server, here):
        tasks = here.take(3)
        here.answer(tasks[0])
        sites.gone = THERE
        here.refuse(tasks[1])
        here.answer(tasks[2])
        assert server.end() is not None
    found = [outcome for outcome, _ in outcomes_of(federation).values()]
    assert (found.count("missing"), found.count("refused"), len(found)) == (3, 1, 6)


@pytest.mark.parametrize("mode", ["rounds", "buffered"])
def test_a_site_that_refuses_everything_ends_nobody_elses_run(tmp_path: Path, mode: str) -> None:
    settings: dict[str, Any] = {"clients_per_round": 2}
    if mode == "buffered":
        settings = {"mode": mode, "in_flight": 2, "buffer_size": 2}
    federation = Federation(blobs_recipe(rounds=3, federation=settings), tmp_path, sites=TwoSites())
    ended = threading.Event()
    with served(federation) as (server, here):
        there = Hands(federation, THERE)

        def refuse_all() -> None:
            while not ended.is_set():
                with suppress(AssertionError):  # no task came for a while
                    there.refuse(there.take(1, seconds=0.1)[0])

        refusing = threading.Thread(target=refuse_all)
        refusing.start()
        try:
            while server.is_alive:
                with suppress(AssertionError):
                    here.answer(here.take(1, seconds=0.1)[0])
            assert server.end() is not None
        finally:
            ended.set()
            refusing.join()
    for record in federation.diary.records:
        learned = [o.client for o in record.outcomes if o.outcome in ("accepted", "rejected_cosine")]
        assert len(learned) == 2
        assert set(learned) <= {0, 1, 2}
    refused = [o for record in federation.diary.records for o in record.outcomes if o.outcome == "refused"]
    assert refused


def test_who_was_given_up_and_comes_back_before_the_round_closes_counts(tmp_path: Path) -> None:
    sites = TwoSites()
    recipe = blobs_recipe(rounds=1, federation={"clients_per_round": 6})
    federation = Federation(recipe, tmp_path, sites=sites)
    given_up: list[int] = []
    federation.diary.on_update = lambda _, answered: given_up.append(answered)
    with served(federation) as (server, here):
        there = Hands(federation, THERE)
        tasks, away = here.take(3), there.take(3)
        sites.gone = THERE
        until(lambda: len(given_up) == 3)
        sites.gone = None
        for task in away:
            there.answer(task)
        for task in tasks:
            here.answer(task)
        assert server.end() is not None
    assert {outcome for outcome, _ in outcomes_of(federation).values()} <= {"accepted", "rejected_cosine"}
    assert federation.diary.records[0].refused == {}


# Buffered


def buffered(directory: Path, sites: TwoSites, rounds: int = 1, **settings: Any) -> Federation:
    base = {"mode": "buffered", "in_flight": 6, "buffer_size": 3, **settings}
    return Federation(blobs_recipe(rounds=rounds, federation=base), directory, sites=sites)


def test_a_buffer_whose_clients_have_all_vanished_asks_others_and_so_does_a_server_that_comes_after(
    tmp_path: Path,
) -> None:
    sites = TwoSites(gone=THERE)
    first = buffered(tmp_path, sites, in_flight=3)
    with served(first) as (server, here):
        there = Hands(first, THERE)
        here.take(3)
        sites.gone = SITE
        tasks = there.take(3)
        assert clients_of(tasks) == [3, 4, 5]
        there.answer(tasks[0])
        server.die()
    sites.gone = None
    second = replace(buffered(tmp_path, sites, in_flight=3), broker=first.broker)
    with served(second) as (server, here):
        there = Hands(second, THERE)
        for task in tasks[1:]:
            there.send(there.train(task))
        progress = server.end()
    assert progress is not None
    assert sorted(outcomes_of(second)) == [3, 4, 5]
    assert second.diary.records[0].refused == {}
    assert progress.activations == (1,) * 6
    assert progress.buffer is not None
    assert [client for client, _, _ in progress.buffer["flights"]] == [0, 1, 2]  # they are waited for again
    check_ledgers(second, progress)


def test_sites_that_vanish_in_turn_leave_nobody_to_ask_but_who_comes_back_counts(tmp_path: Path) -> None:
    sites, given_up = TwoSites(), list[int]()
    federation = buffered(tmp_path, sites)
    federation.diary.on_update = lambda _, answered: given_up.append(answered)
    with served(federation) as (server, here):
        there = Hands(federation, THERE)
        here.take(3)
        tasks = there.take(3)
        sites.gone = THERE
        until(lambda: len(given_up) == 3)
        sites.gone = SITE
        until(lambda: len(given_up) == 6)
        there.answer(tasks[0])
        assert server.end() is not None
    found = outcomes_of(federation)
    assert found.pop(tasks[0].client)[0] in ("accepted", "rejected_cosine")
    assert list(found.values()) == [("missing", "its site has no worker")] * 5
    assert federation.diary.records[0].refused == {}


def test_who_was_too_slow_is_asked_at_once_and_carries_on_when_the_quick_are_gone(tmp_path: Path) -> None:
    sites = TwoSites()
    federation = buffered(tmp_path, sites, rounds=2, max_staleness=0)
    with served(federation) as (server, here):
        there = Hands(federation, THERE)
        there.take(3)
        for task in here.take(3):
            here.answer(task)
        here.take(3)
        tasks = there.take(3)
        assert {(task.model.address.version, task.activation) for task in tasks} == {(2, 2)}
        sites.gone = SITE
        for task in tasks:
            there.answer(task)
        progress = server.end()
    assert progress is not None
    told = [(o.client, o.outcome) for o in federation.diary.records[1].outcomes if o.client >= 3]
    assert [client for client, outcome in told if outcome == "stale"] == [3, 4, 5]
    assert [client for client, outcome in told if outcome in ("accepted", "rejected_cosine")] == [3, 4, 5]
    check_ledgers(federation, progress)


# Brokers that are away


class Absence:
    """Of a broker, by a clock that runs on meanwhile."""

    def __init__(self, federation: Federation) -> None:
        self._seconds = 0.0
        self.clock = Clock()
        federation.clock, federation.away = self.clock, lambda: self._seconds

    def last(self, seconds: float) -> None:
        self._seconds += seconds  # first: nobody may see the time without its reason
        self.clock.now += seconds
        self.clock.until_it_was_read()


def test_time_in_which_the_broker_was_away_does_not_count_for_a_rounds_deadline(tmp_path: Path) -> None:
    recipe = blobs_recipe(rounds=1, federation={"quorum": 0.3, "deadline_seconds": 60.0})
    federation = Federation(recipe, tmp_path)
    absence = Absence(federation)
    with served(federation) as (server, hands):
        *tasks, silent = hands.take(3)
        absence.last(100.0)
        assert server.is_alive
        for task in tasks:
            hands.answer(task)
        absence.clock.now += 59.0
        absence.clock.until_it_was_read()
        assert server.is_alive
        absence.clock.now += 1.0
        assert server.end() is not None
    assert outcomes_of(federation)[silent.client][0] == "missing"


def test_time_in_which_the_broker_was_away_does_not_count_for_a_clients_deadline(tmp_path: Path) -> None:
    buffered = {"mode": "buffered", "in_flight": 3, "buffer_size": 3, "deadline_seconds": 60.0}
    federation, told = Federation(blobs_recipe(rounds=1, federation=buffered), tmp_path), list[int]()
    federation.diary.on_update = lambda _, answered: told.append(answered)
    absence = Absence(federation)
    with served(federation) as (server, hands):
        silent, *tasks = hands.take(3)
        absence.last(100.0)
        absence.clock.now += 59.0
        absence.clock.until_it_was_read()
        assert told == []
        hands.answer(tasks[0])
        (other,) = hands.take(1)
        absence.clock.now += 1.0
        until(lambda: len(told) == 3)  # the answer, and who has had its time
        for task in (other, *hands.take(2)):
            hands.answer(task)
        assert server.end() is not None
    found = outcomes_of(federation)
    assert found[silent.client] == found[tasks[1].client] == ("missing", "no answer within 60 s")
