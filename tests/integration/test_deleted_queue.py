"""Somebody deletes a queue in the middle of a run: clients are asked again, and no bit changes."""

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from broker_config.brokers.topology import DEAD_LETTERS, models_queue, tasks_queue, updates_queue
from server_worker.run.digests import Outcome
from tests.federation import SOON, Federation, Hands, Over, OverBrokers, at_work, blobs_recipe
from tests.integration.rabbitmq_direct import delete_queue
from tests.services import Service

BUFFERED = {"mode": "buffered", "in_flight": 3, "buffer_size": 3}
IN_BOTH_MODES = pytest.mark.parametrize("federation", [{}, BUFFERED], ids=["rounds", "buffered"])


def check_it_ends(
    served: "Future[Outcome]", over_brokers: OverBrokers, folder: Path, queue: str = ""
) -> None:
    """With a worker, all rounds, and a word about the queue that was deleted: the site's if nothing is said."""
    with at_work(over_brokers.participant()):
        assert served.result(SOON).rounds_done == over_brokers.recipe.rounds
    check_outcome(over_brokers, folder, queue)


def check_outcome(over_brokers: OverBrokers, folder: Path, queue: str = "") -> None:
    told = f"{queue or tasks_queue(over_brokers.site)} was deleted"
    assert any(told in note for note in over_brokers.diary.notes)
    if over_brokers.recipe.federation.mode == "rounds":  # in buffered mode the order of answers decides
        undisturbed = Federation(over_brokers.recipe, folder)
        undisturbed.play()
        assert over_brokers.digests() == undisturbed.digests()


@IN_BOTH_MODES
def test_clients_whose_tasks_went_with_their_queue_are_asked_again(
    over: Over, rabbitmq: Service, tmp_path: Path, federation: dict[str, Any]
) -> None:
    over_brokers = over(blobs_recipe(federation=federation))
    hands, served = Hands(over_brokers), over_brokers.serve()
    for task in hands.take(3):
        hands.give_back(task)
    hands.transport.close()
    delete_queue(rabbitmq.url, hands.tasks)
    check_it_ends(served, over_brokers, tmp_path / "undisturbed")


@IN_BOTH_MODES
def test_a_queue_that_is_deleted_while_its_workers_train_and_wait_stops_nobody(
    over: Over, rabbitmq: Service, tmp_path: Path, federation: dict[str, Any]
) -> None:
    over_brokers = over(blobs_recipe(federation=federation))
    hands, served = Hands(over_brokers), over_brokers.serve()
    (task,) = hands.take(1)
    update, deleted = hands.train(task), threading.Event()

    def delete(_: int, answered: int) -> None:
        if (
            answered == 2 and not deleted.is_set()
        ):  # the other worker waits for a task, and this one still trains
            delete_queue(rabbitmq.url, hands.tasks)
            deleted.set()

    over_brokers.diary.on_update = delete
    with at_work(over_brokers.participant()):
        assert deleted.wait(SOON)
        hands.send(update)
        hands.settle(task)
        assert served.result(SOON).rounds_done == over_brokers.recipe.rounds
    check_outcome(over_brokers, tmp_path / "undisturbed")


@IN_BOTH_MODES
def test_a_queue_that_is_deleted_before_tasks_are_sent_to_it_ends_no_run(
    over: Over, rabbitmq: Service, tmp_path: Path, federation: dict[str, Any]
) -> None:
    over_brokers = over(blobs_recipe(federation=federation))
    hands = Hands(over_brokers)
    hands.transport.close()

    def delete(round_number: int, name: str) -> None:
        if (round_number, name) == (2, "broadcast"):
            delete_queue(rabbitmq.url, hands.tasks)

    over_brokers.diary.phase = delete  # type: ignore[method-assign]
    served = over_brokers.serve()
    check_it_ends(served, over_brokers, tmp_path / "undisturbed")


@IN_BOTH_MODES
def test_answers_that_went_with_the_runs_queue_are_asked_for_again(
    over: Over, rabbitmq: Service, tmp_path: Path, federation: dict[str, Any]
) -> None:
    """Workers find no queue either, and take the run for one that is over; those who ask again know better."""
    over_brokers = over(blobs_recipe(federation=federation))
    queue = updates_queue(over_brokers.recipe.name, over_brokers.site)
    deleted = threading.Event()

    def delete(_: int, answered: int) -> None:
        if answered == 1 and not deleted.is_set():
            delete_queue(rabbitmq.url, queue)
            deleted.set()

    over_brokers.diary.on_update = delete
    served = over_brokers.serve()
    with at_work(over_brokers.participant()):
        assert served.result(SOON).rounds_done == over_brokers.recipe.rounds
    assert deleted.is_set()
    check_outcome(over_brokers, tmp_path / "undisturbed", queue)


def test_a_run_whose_queue_is_deleted_again_and_again_ends_all_the_same(
    over: Over, rabbitmq: Service, tmp_path: Path
) -> None:
    over_brokers = over(blobs_recipe())
    queue = updates_queue(over_brokers.recipe.name, over_brokers.site)
    seen: set[int] = set()

    def delete(round_number: int, answered: int) -> None:
        if answered == 2 and round_number not in seen:
            seen.add(round_number)
            delete_queue(rabbitmq.url, queue)

    over_brokers.diary.on_update = delete
    served = over_brokers.serve()
    with at_work(over_brokers.participant()):
        assert served.result(SOON).rounds_done == over_brokers.recipe.rounds
    assert len(seen) == over_brokers.recipe.rounds
    check_outcome(over_brokers, tmp_path / "undisturbed", queue)


def test_a_bad_message_that_finds_no_dead_letters_ends_no_run(over: Over, rabbitmq: Service) -> None:
    over_brokers = over(blobs_recipe())
    hands, served = Hands(over_brokers), over_brokers.serve()
    tasks = hands.take(3)
    delete_queue(rabbitmq.url, DEAD_LETTERS)
    hands.post([b"garbage"])
    for task in tasks:
        hands.give_back(task)
    with at_work(over_brokers.participant()):
        assert served.result(SOON).rounds_done == over_brokers.recipe.rounds
    assert b"garbage" in list(hands.dead_letters())


@IN_BOTH_MODES
def test_a_model_log_that_is_deleted_before_anybody_has_read_it_is_written_again(
    over: Over, rabbitmq: Service, tmp_path: Path, federation: dict[str, Any]
) -> None:
    over_brokers = over(blobs_recipe(federation=federation))
    queue = models_queue(over_brokers.recipe.name)
    hands, served = Hands(over_brokers), over_brokers.serve()
    tasks = hands.take(3)
    delete_queue(rabbitmq.url, queue)
    for task in tasks:
        hands.give_back(task)
    hands.transport.close()
    check_it_ends(served, over_brokers, tmp_path / "undisturbed", queue)


def test_all_that_a_run_has_at_the_broker_may_go_at_once(
    over: Over, rabbitmq: Service, tmp_path: Path
) -> None:
    over_brokers = over(blobs_recipe())
    hands, served = Hands(over_brokers), over_brokers.serve()
    hands.take(1)
    for queue in (hands.tasks, hands.updates, models_queue(over_brokers.recipe.name)):
        delete_queue(rabbitmq.url, queue)
    hands.transport.close()
    check_it_ends(served, over_brokers, tmp_path / "undisturbed")


def test_a_task_that_is_given_back_to_a_deleted_queue_does_not_hide_the_deletion(
    over: Over, rabbitmq: Service, tmp_path: Path
) -> None:
    over_brokers = over(blobs_recipe())
    hands, served = Hands(over_brokers), over_brokers.serve()
    (task,) = hands.take(1)
    delete_queue(rabbitmq.url, hands.tasks)
    hands.give_back(task)
    hands.transport.close()
    check_it_ends(served, over_brokers, tmp_path / "undisturbed")
