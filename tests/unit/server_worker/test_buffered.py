"""Buffered mode with the real loop: who waits for whom, what counts, and what a crash leaves behind."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from broker_config.protocol.errors import CheckpointDamaged, FedILError
from server_worker.run.checkpoint import CheckpointFolder
from server_worker.run.progress import Progress
from server_worker.run.recipe import Recipe
from server_worker.watch.events import RoundRecord
from tests.federation import RUN, Federation, blobs_recipe
from tests.serving import Clock, TwoSites, served


def buffered(rounds: int = 4, seed: int = 0, **federation: Any) -> Recipe:
    base = {"mode": "buffered", "in_flight": 4, "buffer_size": 2}
    return blobs_recipe(rounds=rounds, seed=seed, federation={**base, **federation})


def outcomes(record: RoundRecord) -> list[tuple[int, str, int | None]]:
    return [(o.client, o.outcome, o.staleness) for o in record.outcomes]


def check_every_task_has_one_outcome(progress: Progress, records: list[RoundRecord]) -> None:
    """Of what a client was asked, all but the task it may have at hand is accounted for, once."""
    by_round = {record.round: record for record in records}  # the last one is announced again on resuming
    assert sorted(by_round) == list(range(1, progress.round + 1))
    settled = Counter(o.client for record in by_round.values() for o in record.outcomes)
    assert progress.buffer is not None
    open_tasks = [*progress.buffer["flights"], *progress.buffer["stale"]]
    unsettled = Counter(client for client, _, _ in open_tasks)
    assert {c: n for c, n in enumerate(progress.activations) if n} == dict(settled + unsettled)


def test_a_run_learns_and_explains_every_task(tmp_path: Path) -> None:
    federation = Federation(buffered(rounds=6), tmp_path)
    progress = federation.play()
    assert progress is not None
    assert progress.round == 6
    check_every_task_has_one_outcome(progress, federation.diary.records)
    found = [o for record in federation.diary.records for o in record.outcomes]
    assert {o.outcome for o in found} == {"accepted"}
    assert {o.staleness for o in found} > {0, 1}
    assert (federation.diary.records[-1].series["pseudo_labels"] or 0) > 0
    assert federation.diary.notes == ["started 1 of 6"]


def test_one_worker_gives_the_same_bits_twice_and_another_seed_does_not(tmp_path: Path) -> None:
    runs = [Federation(buffered(seed=seed), tmp_path / str(n)) for n, seed in enumerate((0, 0, 1))]
    for run in runs:
        run.play()
    # Not the ledgers: who is in flight when the run ends may commit one more or not.
    assert runs[0].fingerprint()[:2] == runs[1].fingerprint()[:2]
    assert runs[0].fingerprint()[0] != runs[2].fingerprint()[0]


@pytest.mark.parametrize("broker_lives", [True, False])
@pytest.mark.parametrize("moment", [(1, 1), (1, 2), (2, 1), (3, 2), (4, 2)])
def test_a_server_that_dies_at_any_moment_goes_on_and_counts_everything_once(
    tmp_path: Path, moment: tuple[int, int], broker_lives: bool
) -> None:
    recipe = buffered(buffer_size=3)
    first = Federation(recipe, tmp_path)
    first.diary.on_update = lambda number, answered: (
        first.stop.set() if (number, answered) == moment else None
    )
    assert first.play() is None
    again = {"broker": first.broker} if broker_lives else {}
    second = Federation(recipe, tmp_path, **again)  # type: ignore[arg-type]
    progress = second.play()
    assert progress is not None
    check_every_task_has_one_outcome(progress, first.diary.records + second.diary.records)
    assert not any("not_asked" in note for note in second.diary.notes)
    for client, (activation, _) in second.store.latest(RUN).items():
        assert progress.answered[client] <= activation <= progress.activations[client]


def test_a_task_sent_after_the_last_checkpoint_is_known_to_the_next_server(tmp_path: Path) -> None:
    federation = Federation(buffered(buffer_size=3), tmp_path)
    with served(federation) as (server, hands):
        tasks = hands.take(4)
        hands.answer(tasks[0])
        (later,) = hands.take(1)
        server.die()
    resumed = Federation(buffered(buffer_size=3, rounds=1), tmp_path, broker=federation.broker)
    with served(resumed) as (server, hands):
        again = hands.take(4)
        # Who has answered already is not asked again; what lay in the queue comes beside what is sent anew.
        assert tasks[0].client not in {task.client for task in again}
        assert (later.client, later.activation) in {(task.client, task.activation) for task in again}
        hands.answer(tasks[1])
        hands.answer(later)
        server.end()
    (record,) = resumed.diary.records
    assert sorted(o.client for o in record.outcomes) == sorted(
        (tasks[0].client, tasks[1].client, later.client)
    )
    assert record.accepted == 3


def test_a_slow_client_holds_nobody_up_and_its_update_counts_late(tmp_path: Path) -> None:
    federation = Federation(buffered(rounds=3, in_flight=2, buffer_size=1), tmp_path)
    with served(federation) as (server, hands):
        slow, task = hands.take(2)
        for _ in range(2):
            hands.answer(task)
            (task,) = hands.take(1)
        assert task.model.address.version == 3
        hands.answer(slow)
        server.end()
    assert outcomes(federation.diary.records[-1]) == [(slow.client, "accepted", 2)]
    assert federation.diary.records[-1].delta_norm > 0


def test_a_client_is_not_asked_twice_for_one_version(tmp_path: Path) -> None:
    federation = Federation(buffered(rounds=1, in_flight=5, buffer_size=5), tmp_path)
    with served(federation) as (server, hands):
        asked = hands.take(5)
        hands.answer(asked[0])
        asked += hands.take(1)
        for task in asked[1:5]:
            hands.answer(task)
        server.end()
    assert len({task.client for task in asked}) == 6


def test_who_is_too_stale_is_named_its_place_is_filled_and_its_answer_dropped(tmp_path: Path) -> None:
    recipe = buffered(rounds=3, in_flight=2, buffer_size=1, max_staleness=0)
    federation = Federation(recipe, tmp_path)
    with served(federation) as (server, hands):
        slow, quick = hands.take(2)
        hands.answer(quick)
        tasks = hands.take(2)  # for the one that answered and for the one that is too late
        assert [task.model.address.version for task in tasks] == [2, 2]
        hands.send(dataclasses.replace(hands.answer(tasks[0]), client=slow.client, round=1))
        hands.answer(hands.take(1)[0])
        server.end()
    second = federation.diary.records[1]
    assert (slow.client, "stale", 1) in outcomes(second)
    assert (tasks[0].client, "accepted", 0) in outcomes(second)
    assert second.accepted == 1
    assert any(f"client {slow.client}: stale" in note for note in federation.diary.notes)


def test_strangers_and_repeats_change_nothing_and_are_named(tmp_path: Path) -> None:
    federation = Federation(buffered(rounds=1), tmp_path)
    with served(federation) as (server, hands):
        first, second, *_ = hands.take(4)
        update = hands.answer(first)
        hands.send(update)
        hands.send(dataclasses.replace(update, run="another"))
        hands.send(dataclasses.replace(update, activation=7))
        hands.send(dataclasses.replace(update, round=9, base_version=9, client=second.client))
        hands.answer(second)
        server.end()
    (record,) = federation.diary.records
    assert len(record.outcomes) == 2
    assert record.refused == {"other_run": 1, "not_asked": 2, "duplicate": 1}
    assert any(note.endswith("duplicate") for note in federation.diary.notes)


def test_a_task_that_is_a_dead_letter_is_not_waited_for(tmp_path: Path) -> None:
    federation = Federation(buffered(rounds=1), tmp_path)
    with served(federation) as (server, hands):
        tasks = hands.take(4)
        hands.reject(tasks[0], "delivery_limit")
        (replacement,) = hands.take(1)
        hands.answer(tasks[1])
        hands.answer(replacement)
        server.end()
    found = {o.client: o for o in federation.diary.records[0].outcomes}
    assert found[tasks[0].client].outcome == "refused"
    assert "dead letter (delivery_limit)" in found[tasks[0].client].detail


def test_when_everybody_refuses_the_run_ends_and_says_why(tmp_path: Path) -> None:
    federation = Federation(buffered(), tmp_path)
    with served(federation) as (server, hands):
        for _ in range(federation.recipe.split.clients):
            hands.refuse(hands.take(1)[0])
        with pytest.raises(FedILError, match=r"round 1: every client refused; the first says no: no data"):
            server.end()


def test_a_client_that_does_not_answer_in_time_is_given_up_and_replaced(tmp_path: Path) -> None:
    clock, recipe = Clock(), buffered(rounds=1, in_flight=3, deadline_seconds=60.0)
    federation = Federation(recipe, tmp_path, clock=clock)
    with served(federation) as (server, hands):
        silent = hands.take(2)
        (task,) = hands.take(1)
        clock.now = 50.0
        hands.answer(task)
        (late,) = hands.take(1)
        clock.now = 70.0
        hands.take(2)
        hands.answer(late)
        server.end()
    (record,) = federation.diary.records
    found = {o.client: (o.outcome, o.detail) for o in record.outcomes}
    for task in silent:
        assert found[task.client] == ("missing", "no answer within 60 s")
    assert record.accepted == 2


def test_silence_ends_the_run_and_says_what_to_do(tmp_path: Path) -> None:
    clock = Clock()
    federation = Federation(buffered(deadline_seconds=60.0), tmp_path, clock=clock)
    with served(federation) as (server, hands):
        hands.take(4)
        clock.now = 60.0
        with pytest.raises(FedILError, match=r"no client has answered for 60 s: start workers or raise"):
            server.end()


def test_clients_of_a_site_that_went_away_give_their_places_to_others(tmp_path: Path) -> None:
    sites = TwoSites()
    federation = Federation(buffered(rounds=2, in_flight=6, buffer_size=5), tmp_path, sites=sites)
    with served(federation) as (server, hands):
        tasks = hands.take(3)
        hands.answer(tasks[0])
        sites.gone = "there"
        hands.answer(tasks[1])
        hands.answer(tasks[2])
        # Three answers are all that there can be: the buffer does not wait for five.
        for task in hands.take(3):
            assert task.model.address.version == 2
            hands.answer(task)
        server.end()
    first = {o.client: (o.outcome, o.detail) for o in federation.diary.records[0].outcomes}
    assert [first[client][0] for client in range(3)] == ["accepted"] * 3
    assert [first[client] for client in range(3, 6)] == [("missing", "its site has no worker")] * 3
    assert [o.client for o in federation.diary.records[1].outcomes] == [0, 1, 2]


def test_a_damaged_list_of_who_was_asked_is_named_with_what_to_do(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    assert folder.journal() is None
    folder.save_journal({"version": 3, "flights": [[1, 2, 3]]})
    assert folder.journal() == {"version": 3, "flights": [[1, 2, 3]]}
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointDamaged, match="delete it to ask clients anew"):
        folder.journal()
