"""Buffered mode, over-selection and quorums over real RabbitMQ and Redis: who is waited for, what counts, and what a
crash leaves behind."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from broker_config.protocol.errors import FedILError, LedgerFenced
from server_worker.run.checkpoint import CheckpointFolder
from server_worker.run.history import read_history
from server_worker.run.recipe import Recipe
from server_worker.watch.events import RoundRecord
from tests.deployment import Deployed, write_recipe
from tests.federation import SOON, Hands, Over, OverBrokers, at_work, blobs_recipe
from tests.services import Service

LONG = 240.0
TOO_LATE = 1e6


def buffered(rounds: int = 4, **federation: Any) -> Recipe:
    base = {"mode": "buffered", "in_flight": 4, "buffer_size": 2}
    return blobs_recipe(rounds=rounds, federation={**base, **federation})


def outcomes_of(record: RoundRecord) -> dict[int, tuple[str, int | None]]:
    return {o.client: (o.outcome, o.staleness) for o in record.outcomes}


def check_every_task_has_one_outcome(run_dir: Path) -> list[dict[str, Any]]:
    """Of what a client was asked, all but the task it may have at hand is accounted for, once."""
    history = list(read_history(run_dir / "history.jsonl"))
    checkpoint = CheckpointFolder(run_dir / "checkpoints").latest()
    assert checkpoint is not None
    assert [fields["round"] for fields in history] == list(range(1, checkpoint.round + 1))
    settled = Counter(outcome["client"] for fields in history for outcome in fields["outcomes"])
    buffer = checkpoint.meta["buffer"]
    unsettled = Counter(client for client, _, _ in [*buffer["flights"], *buffer["stale"]])
    asked = {client: count for client, count in enumerate(checkpoint.meta["activations"]) if count}
    assert asked == dict(settled + unsettled)
    return history


def test_a_run_with_two_workers_learns_and_explains_every_task(over: Over) -> None:
    federation = over(buffered(rounds=6))
    server = federation.serve()
    with at_work(federation.participant()), at_work(federation.participant()):
        assert server.result(SOON).rounds_done == 6
    history = check_every_task_has_one_outcome(federation.directory)
    found = [outcome for fields in history for outcome in fields["outcomes"]]
    assert {outcome["outcome"] for outcome in found} <= {"accepted", "rejected_cosine"}
    assert {outcome["staleness"] for outcome in found} >= {0, 1}
    assert federation.diary.notes == ["started 1 of 6"]


def test_a_slow_client_finds_its_old_version_and_counts_until_it_is_too_stale(over: Over) -> None:
    federation = over(buffered(rounds=5, in_flight=3, buffer_size=1, max_staleness=2))
    hands, server = Hands(federation), federation.serve()
    slow, slower, task = hands.take(3)
    for version in (2, 3):
        hands.answer(task)
        (task,) = hands.take(1)
        assert task.model.address.version == version
    hands.answer(slow)  # from version 1, which two later ones have not pushed out of the log
    others = hands.take(2)
    assert {other.model.address.version for other in others} == {
        4
    }  # and so the other one of version 1 is too old
    hands.answer(slower)
    hands.answer(task)
    hands.answer(others[0])
    server.result(SOON)
    records = federation.diary.records
    assert outcomes_of(records[2]) == {slow.client: ("accepted", 2)}
    assert outcomes_of(records[3])[slower.client] == ("stale", 3)
    assert "started 3 versions ago, max_staleness is 2" in str(records[3].outcomes)
    assert f"round 1, client {slower.client}: stale" in federation.diary.notes
    assert records[3].refused == {"stale": 1}
    check_every_task_has_one_outcome(federation.directory)


def test_whatever_is_killed_every_task_counts_once_and_the_run_ends(
    own_rabbitmq: Service, own_redis: Service, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, rounds=12, more='mode = "buffered"\nin_flight = 4\nbuffer_size = 2\n')
    with Deployed(tmp_path / "deployed", recipe, own_rabbitmq.url, own_redis.url, workers=2) as run:
        run.wait_for_progress(1, LONG)
        run.server.kill()
        for service in (own_rabbitmq, own_redis):
            run.wait_for_progress(run.progress(), LONG)
            service.kill()
            service.start()
        run.wait_for_progress(run.progress(), LONG)
        run.workers[0].kill()
        run.wait(LONG)
        assert run.server.starts == 2, run.tail()
    history = check_every_task_has_one_outcome(tmp_path / "deployed" / "run")
    assert len(history) == 12
    assert all(outcome["staleness"] is not None for fields in history for outcome in fields["outcomes"])


# Rounds that do not wait for everybody


def test_of_more_clients_than_needed_the_slow_are_missing_and_then_late(over: Over) -> None:
    federation = over(blobs_recipe(rounds=2, federation={"clients_per_round": 2, "over_select": 1}))
    hands, server = Hands(federation), federation.serve()
    *quick, slow = hands.take(3)
    for task in quick:
        hands.answer(task)
    tasks = hands.take(3)
    hands.answer(slow)
    for task in tasks[:2]:
        hands.answer(task)
    server.result(SOON)
    first, second = federation.diary.records
    found = {o.client: (o.outcome, o.detail) for o in first.outcomes}
    assert found[slow.client] == ("missing", "no answer before the round closed")
    assert {found[task.client][0] for task in quick} <= {"accepted", "rejected_cosine"}
    assert second.refused == {"late": 1}
    assert f"round 1, client {slow.client}: late" in federation.diary.notes


def test_a_client_that_is_asked_anew_while_it_still_trains_is_fenced_off(over: Over) -> None:
    """Only its new answer counts, and the old one leaves no ledger."""
    federation = over(blobs_recipe(rounds=2, federation={"clients_per_round": 5, "over_select": 1}))
    hands, server = Hands(federation), federation.serve()
    *quick, slow = hands.take(6)
    for task in quick:
        hands.answer(task)
    tasks = {task.client: task for task in hands.take(6)}
    with pytest.raises(LedgerFenced):
        hands.train(slow)
    again = tasks.pop(slow.client)
    assert again.activation == slow.activation + 1
    for task in (again, *list(tasks.values())[:4]):  # with the fifth answer the run is over
        hands.answer(task)
    server.result(SOON)
    found = {o.client: o.outcome for o in federation.diary.records[1].outcomes}
    assert found[slow.client] in ("accepted", "rejected_cosine")
    assert federation.ledgers.latest(federation.recipe.name)[slow.client][0] == again.activation


class Clock:
    """Stands still until so many clients have answered; then all time is over."""

    def __init__(self, federation: OverBrokers, jump_after: int) -> None:
        self._now, self._jump_after = 0.0, jump_after
        federation.clock, federation.diary.on_update = self, self._on_update

    def __call__(self) -> float:
        return self._now

    def _on_update(self, _: int, answered: int) -> None:
        if answered == self._jump_after:
            self._now = TOO_LATE


def test_at_the_deadline_a_quorum_suffices_and_who_is_missing_is_named(over: Over) -> None:
    federation = over(blobs_recipe(rounds=1, federation={"quorum": 0.6}))
    clock = Clock(federation, jump_after=2)
    hands, server = Hands(federation), federation.coordinate()
    *quick, silent = hands.take(3)
    for task in quick:
        hands.answer(task)
    assert server.result(SOON).round == 1
    assert clock() == TOO_LATE
    (record,) = federation.diary.records
    found = {o.client: (o.outcome, o.detail) for o in record.outcomes}
    assert found[silent.client] == ("missing", "no answer before the round closed")
    assert {found[task.client][0] for task in quick} <= {"accepted", "rejected_cosine"}


def test_without_a_quorum_at_the_deadline_the_run_says_what_to_do_and_can_be_resumed(over: Over) -> None:
    federation = over(blobs_recipe(rounds=1, federation={"quorum": 0.6}))
    Clock(federation, jump_after=1)
    hands, server = Hands(federation), federation.coordinate()
    first, *others = hands.take(3)
    hands.answer(first)
    with pytest.raises(FedILError, match="start more workers"):
        server.result(SOON)
    for task in others:
        hands.answer(task)
    with federation.resumed(clock=time.monotonic) as again:
        assert again.serve().result(SOON).rounds_done == 1
        assert not any("duplicate" in note for note in again.diary.notes)
