"""What a server makes of its queue and of the dead letters, with the real loops."""

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from broker_config.brokers.topology import DEAD_LETTERS, updates_queue
from broker_config.protocol.errors import BrokerUnavailable, FedILError
from broker_config.protocol.messages import Refusal, TrainTask
from broker_config.protocol.wire import encode_arrays, encode_message
from broker_config.transports.interface import Delivery, Transport
from broker_config.transports.memory.transport import MemoryTransport
from server_worker.round.dead_letters import MANY_LETTERS, DeadTasks
from server_worker.run.recipe import Recipe
from tests.federation import RUN, SITE, Federation, Hands, blobs_recipe
from tests.serving import Clock, Looks, served, until

LEARNED = {"accepted", "rejected_cosine"}


def recipe_of(mode: str) -> Recipe:
    settings: dict[str, Any] = {"clients_per_round": 3}
    if mode == "buffered":
        settings = {"mode": mode, "in_flight": 3, "buffer_size": 3}
    return blobs_recipe(rounds=1, federation=settings)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def asked_by_a_server_that_died(federation: Federation) -> list[TrainTask]:
    """They lie in their queue."""
    with served(federation) as (server, hands):
        tasks = hands.take(3)
        server.die()
        for task in reversed(tasks):
            hands.give_back(task)
    return tasks


@pytest.mark.parametrize("mode", ["rounds", "buffered"])
def test_dead_letters_of_an_earlier_life_are_not_believed(tmp_path: Path, looks: Looks, mode: str) -> None:
    first = Federation(recipe_of(mode), tmp_path)
    tasks = asked_by_a_server_that_died(first)
    owner = Hands(first)
    (killer,) = owner.take(1)
    owner.reject(killer, "delivery_limit")
    owner.transport.close()
    second = Federation(recipe_of(mode), tmp_path, broker=first.broker)
    with served(second) as (server, hands):
        looks.until_the_next()
        for task in tasks:  # perhaps its owner has put right what killed the workers
            hands.send(hands.train(task))
        assert server.end() is not None
    (record,) = second.diary.records
    assert len(record.outcomes) == 3
    assert {outcome.outcome for outcome in record.outcomes} <= LEARNED


@pytest.mark.parametrize("mode", ["rounds", "buffered"])
def test_a_task_of_an_earlier_life_that_dies_now_says_nothing_of_the_one_that_was_sent_since(
    tmp_path: Path, looks: Looks, mode: str
) -> None:
    first = Federation(recipe_of(mode), tmp_path)
    old = asked_by_a_server_that_died(first)
    second = Federation(recipe_of(mode), tmp_path, broker=first.broker)
    with served(second) as (server, hands):
        again = {task.client: task for task in hands.take(6) if task not in old}
        first_client, second_client, third_client = (task.client for task in old)
        hands.transport.publish(DEAD_LETTERS, encode_message(old[0]))
        looks.until_the_next()
        hands.transport.publish(DEAD_LETTERS, encode_message(again[second_client]))  # this one is believed
        looks.until_the_next()
        for client in (first_client, third_client):
            hands.send(hands.train(again[client]))
        hands.answer(hands.take(1)[0])  # somebody else was asked instead
        assert server.end() is not None
    found = {outcome.client: outcome for outcome in second.diary.records[0].outcomes}
    assert found[first_client].outcome in LEARNED
    assert found[second_client].outcome == "refused"
    assert "its task is a dead letter" in found[second_client].detail


def test_a_dead_task_is_found_behind_thousands_of_letters_which_stay_as_they_were(
    tmp_path: Path, looks: Looks
) -> None:
    federation = Federation(recipe_of("rounds"), tmp_path)
    bodies = [b"garbage %d" % number for number in range(3 * MANY_LETTERS)]
    with served(federation) as (server, hands):
        poisoned, *others = hands.take(3)
        for body in bodies:
            hands.transport.publish(DEAD_LETTERS, [body])
        hands.reject(poisoned, "x" * 10**5)
        looks.until_the_next()
        for task in others:
            hands.answer(task)
        hands.answer(hands.take(1)[0])
        assert server.end() is not None
        assert list(hands.dead_letters())[: len(bodies)] == bodies
    outcome = next(o for o in federation.diary.records[0].outcomes if o.client == poisoned.client)
    assert outcome.outcome == "refused"
    assert len(outcome.detail) < 1100
    told = [note for note in federation.diary.notes if "dead letters in" in note]
    assert told in (
        [f"{len(bodies)} dead letters in {DEAD_LETTERS}: see why, then purge that queue"],
        [f"{len(bodies) + 1} dead letters in {DEAD_LETTERS}: see why, then purge that queue"],
    )


def test_letters_go_back_as_they_were_from_a_connection_of_its_own(tmp_path: Path) -> None:
    federation, opened = Federation(recipe_of("rounds"), tmp_path), list[Transport]()

    def look() -> Transport:
        opened.append(federation.connect())
        return opened[-1]

    around = dataclasses.replace(federation.coordinator()._context, connect_for_inspection=look)
    dead_tasks, transport = DeadTasks(RUN, around), federation.connect()
    bodies = [b"garbage %d" % number for number in range(3)]
    for body in bodies:
        transport.publish(DEAD_LETTERS, [body])
    dead_tasks.look(lambda *_: None)
    letters = [transport.receive(DEAD_LETTERS, 0.0) for _ in bodies]
    assert [bytes(letter.body) for letter in letters if letter] == bodies
    assert all(letter.redelivered for letter in letters if letter), "somebody has looked at them"
    assert len(opened) == 1
    for each in opened:
        with pytest.raises(BrokerUnavailable, match="closed"):
            each.receive(DEAD_LETTERS, 0.0)


def test_letters_are_looked_through_only_when_there_are_others_than_before_or_after_a_while(
    tmp_path: Path,
) -> None:
    clock, looks = Clock(), list[Transport]()
    federation = Federation(recipe_of("rounds"), tmp_path, clock=clock)

    def look() -> Transport:
        looks.append(federation.connect())
        return looks[-1]

    federation.connect_for_inspection = look  # type: ignore[method-assign]
    dead_tasks, transport = DeadTasks(RUN, federation.coordinator()._context), federation.connect()

    def looks_now() -> bool:
        before = len(looks)
        dead_tasks.look(lambda *_: None)
        return len(looks) > before

    assert not looks_now()  # there are none
    transport.publish(DEAD_LETTERS, [b"one"])
    assert looks_now()
    clock.now += 59.0
    assert not looks_now()
    transport.publish(DEAD_LETTERS, [b"two"])
    assert looks_now()
    clock.now += 60.0
    assert looks_now()


# Copies, garbage and deadlines


def test_of_many_copies_of_an_answer_one_is_kept_for_the_next_life(tmp_path: Path) -> None:
    first = Federation(recipe_of("rounds"), tmp_path)
    with served(first) as (server, hands):
        task, *others = hands.take(3)
        update = hands.answer(task)
        for _ in range(5):
            hands.send(update)
        until(lambda: sum(note.endswith("duplicate") for note in first.diary.notes) == 5)
        server.die()
        assert waiting(hands.transport) == 1
    second = Federation(recipe_of("rounds"), tmp_path, broker=first.broker)
    with served(second) as (server, hands):
        for other in others:
            hands.send(hands.train(other))
        assert server.end() is not None
    (record,) = second.diary.records
    assert {outcome.outcome for outcome in record.outcomes} <= LEARNED
    assert record.refused == {}


def waiting(transport: Transport) -> int:
    held: list[Delivery] = []
    while (delivery := transport.receive(updates_queue(RUN, SITE), 0.0)) is not None:
        held.append(delivery)
    for delivery in reversed(held):
        delivery.requeue()
    return len(held)


def test_what_lies_in_the_queue_at_the_deadline_counts_also_behind_garbage(tmp_path: Path) -> None:
    clock = Clock()
    federation = Federation(recipe_of("rounds"), tmp_path, clock=clock)

    def too_late(_: int, answered: int) -> None:
        """While the first answer is taken the others come, and time is over."""
        if answered == 1:
            update = hands.train(tasks[1])
            for body in ([b"hello"], [b"world"]):
                hands.post(body)
            hands.send(update)
            hands.send(update)
            hands.send(hands.train(tasks[2]))
            clock.now = 1e6

    federation.diary.on_update = too_late
    with served(federation) as (server, hands):
        tasks = hands.take(3)
        hands.send(hands.train(tasks[0]))
        assert server.end() is not None
    (record,) = federation.diary.records
    assert {outcome.outcome for outcome in record.outcomes} <= LEARNED
    assert record.refused == {"not_fedil": 2, "duplicate": 1}


@pytest.mark.parametrize("mode", ["rounds", "buffered"])
def test_who_goes_on_sending_what_does_not_count_cannot_put_a_deadline_off(tmp_path: Path, mode: str) -> None:
    federation = Federation(recipe_of(mode), tmp_path, clock=(clock := Clock()))
    ended = threading.Event()
    with served(federation) as (server, hands):
        hands.take(3)
        sender = Hands(federation)

        def trickle() -> None:
            while not ended.is_set():
                sender.send(Refusal(RUN, 0, 0, 0, "old", "news"))
                clock.now += 1.0

        sending = threading.Thread(target=trickle)
        sending.start()
        try:
            with pytest.raises(FedILError, match=r"quorum is 3|no client has answered"):
                server.end()
        finally:
            ended.set()
            sending.join()


def test_who_goes_on_sending_dead_letters_keeps_no_server_looking(tmp_path: Path, looks: Looks) -> None:
    federation = Federation(recipe_of("rounds"), tmp_path)
    ended = threading.Event()
    with served(federation) as (server, hands):
        tasks, flooding = hands.take(3), MemoryTransport(federation.broker)

        def flood() -> None:
            while not ended.is_set():
                flooding.publish(DEAD_LETTERS, [b"garbage"])

        sending = threading.Thread(target=flood)
        sending.start()
        try:
            looks.until_the_next()
            for task in tasks:
                hands.answer(task)
            assert server.end() is not None
        finally:
            ended.set()
            sending.join()


def test_what_is_said_of_a_bad_message_is_one_short_line_and_names_the_reason_once(tmp_path: Path) -> None:
    federation = Federation(recipe_of("rounds"), tmp_path)
    with served(federation) as (server, hands):
        task, *others = hands.take(3)
        fields = vars(Refusal(RUN, 1, task.client, 1, "no", "no data"))
        hands.post(encode_arrays("Refusal", fields | {"line\n" * 10**5: 1}, {}))
        hands.post([b"hello"])
        for each in (task, *others):
            hands.answer(each)
        assert server.end() is not None
    notes = [note for note in federation.diary.notes if note.startswith("message refused")]
    assert len(notes) == 2
    assert notes[0].startswith("message refused (schema): field ")
    assert len(notes[0]) < 1100
    assert "\n" not in notes[0]
    assert notes[1] == f"message refused (not_fedil): the first bytes are not ours; from site {SITE}"
