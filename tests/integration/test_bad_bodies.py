"""Updates that travel in chunks, and dead letters, over real RabbitMQ: what is broken, and what only looks so."""

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker_config.brokers.topology import DEAD_LETTERS, body_queue
from broker_config.protocol.chunks import OVERHEAD_BYTES, split
from broker_config.protocol.messages import Update
from broker_config.protocol.wire import encode_message
from broker_config.transports.rabbitmq.connection import Connection
from broker_config.transports.rabbitmq.large_messages import BODY_HEADER
from broker_config.transports.rabbitmq.publisher import CHUNK_BYTES, Publisher
from broker_config.transports.rabbitmq.queue_admin import QueueAdmin
from broker_config.transports.rabbitmq.url import parse_url
from server_worker.round.dead_letters import MANY_LETTERS
from tests.federation import SOON, Federation, Hands, Over, blobs_recipe
from tests.serving import Looks, until

LARGE = blobs_recipe(rounds=1, network={"name": "mlp", "width": 1100})
"""Its updates have 4.9 MB"""


@contextmanager
def publisher_to(url: str) -> Iterator[Publisher]:
    connection = Connection(parse_url(url), "testing", reconnects=True)
    try:
        yield Publisher(connection)
    finally:
        connection.close()


def post_frames(publisher: Publisher, queue: str, frames: Iterable[bytes]) -> None:
    """A notice, and what it speaks of: any chunks in any order."""
    place = body_queue(publisher.connection.address.user, uuid.uuid4().hex)
    QueueAdmin(publisher.connection).declare(place)
    for frame in frames:
        publisher.publish(place, frame)
    publisher.publish(queue, b"", {BODY_HEADER: place})


def frames_of(update: Update, stride: int = CHUNK_BYTES // 4) -> list[bytes]:
    body = encode_message(update)
    return list(split(body, stride + OVERHEAD_BYTES, uuid.uuid4().bytes))


def flipped(frame: bytes) -> bytes:
    return frame[:1000] + bytes([frame[1000] ^ 1]) + frame[1001:]


def under_the_same_id(frames: Sequence[bytes], others: Sequence[bytes]) -> list[bytes]:
    """The second chunk tells of a body of another size."""
    body = uuid.uuid4().bytes
    parts = [bytes(5_000_000), bytes(4_000_000)]
    first, second = (list(split([part], 2_000_000, body)) for part in parts)
    return [first[0], second[1]]


def beginning_of(num_bytes: int) -> list[bytes]:
    return [next(split([bytes(num_bytes)], CHUNK_BYTES, uuid.uuid4().bytes))]


BROKEN: dict[str, tuple[str, Callable[[Sequence[bytes], Sequence[bytes]], Iterable[bytes]]]] = {
    "a chunk cut short": ("digest", lambda f, _: [f[0], f[1][:-10], *f[2:]]),
    "a chunk with a flipped bit": ("digest", lambda f, _: [flipped(f[0]), *f[1:]]),
    "a chunk that is garbage": ("not_fedil", lambda f, _: [f[0], b"hello", *f[1:]]),
    "a chunk that is missing": ("body_missing", lambda f, _: [f[0], *f[2:]]),
    "a chunk of another body": ("contradiction", lambda f, others: [f[0], others[1], *f[2:]]),
    "no chunk at all": ("body_missing", lambda *_: []),
    "chunks that contradict each other": ("contradiction", under_the_same_id),
    "the beginning of more than an update can be": ("too_large", lambda *_: beginning_of(100_000_000)),
}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    federation = Federation(LARGE, tmp_path_factory.mktemp("large"))
    federation.play()
    return federation.digests()


def test_broken_bodies_are_refused_by_reason_and_chunks_may_come_in_any_order_and_twice(
    over: Over, large: tuple[str, str]
) -> None:
    federation = over(LARGE)
    hands = Hands(federation)
    hands.dead_letters()
    server = federation.serve()
    tasks = hands.take(3)
    first, second, third = (frames_of(hands.train(task)) for task in tasks)
    assert len(first) > 3
    with publisher_to(federation.broker_url) as publisher:
        for make in (make for _, make in BROKEN.values()):
            post_frames(publisher, hands.updates, make(first, second))
        post_frames(publisher, hands.updates, reversed(first))
        post_frames(publisher, hands.updates, [second[0], *second])
        post_frames(publisher, hands.updates, third)
        outcome = server.result(SOON)
    assert (outcome.model_digest, outcome.ledger_digest) == large
    reasons = [reason for reason, _ in BROKEN.values()]
    (record,) = federation.diary.records
    assert record.refused == {reason: reasons.count(reason) for reason in reasons}
    refused = [note for note in federation.diary.notes if note.startswith("message refused")]
    assert [note.partition("(")[2].partition(")")[0] for note in refused] == reasons
    assert sorted(map(str, dead_reasons(hands))) == sorted(reasons)
    for task in tasks:
        hands.settle(task)


def dead_reasons(hands: Hands) -> list[str | None]:
    """Their bodies are broken: only the reasons are looked at."""
    reasons = []
    while (letter := hands.transport.receive(DEAD_LETTERS, 0.0)) is not None:
        reasons.append(letter.reason)
        letter.acknowledge()
    return reasons


# Dead letters


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def test_a_task_that_somebody_put_among_the_updates_makes_nobody_give_up_its_client(
    over: Over, looks: Looks
) -> None:
    federation = over(blobs_recipe(rounds=1))
    hands, server = Hands(federation), federation.serve()
    tasks = hands.take(3)
    hands.send(tasks[0])
    until(lambda: any("misplaced" in note for note in federation.diary.notes))
    looks.until_the_next()
    for task in tasks:
        hands.answer(task)
    server.result(SOON)
    (record,) = federation.diary.records
    assert record.refused == {"misplaced": 1}
    assert {outcome.outcome for outcome in record.outcomes} <= {"accepted", "rejected_cosine"}


def test_a_dead_task_is_found_behind_many_other_letters(over: Over, looks: Looks) -> None:
    federation = over(blobs_recipe(rounds=1))
    hands, server = Hands(federation), federation.serve()
    poisoned, *others = hands.take(3)
    for number in range(150):
        hands.transport.publish(DEAD_LETTERS, [b"garbage %d" % number])
    hands.transport.publish(DEAD_LETTERS, encode_message(dataclasses.replace(poisoned, run="another")))
    hands.reject(poisoned, "delivery_limit")
    for task in others:
        hands.answer(task)
    hands.answer(hands.take(1)[0])  # somebody else is asked as well
    server.result(SOON)
    outcomes = {outcome.client: outcome for outcome in federation.diary.records[0].outcomes}
    assert outcomes[poisoned.client].outcome == "refused"
    assert outcomes[poisoned.client].detail == "its task is a dead letter (delivery_limit)"
    assert len(hands.dead_letters()) >= 152, "letters stay for people to see"


def test_a_dead_task_is_found_behind_thousands_of_letters_and_they_go_back_at_once(
    over: Over, looks: Looks
) -> None:
    federation, many = over(blobs_recipe(rounds=1)), MANY_LETTERS
    hands, server = Hands(federation), federation.coordinate()
    poisoned, *others = hands.take(3)
    for number in range(many):
        hands.transport.publish(DEAD_LETTERS, [b"garbage %d" % number])
    hands.reject(poisoned, "delivery_limit")
    looks.until_the_next()
    for task in others:
        hands.answer(task)
    hands.answer(hands.take(1)[0])
    server.result(SOON)
    outcomes = {outcome.client: outcome for outcome in federation.diary.records[0].outcomes}
    assert outcomes[poisoned.client].detail == "its task is a dead letter (delivery_limit)"
    assert sum(f"dead letters in {DEAD_LETTERS}" in note for note in federation.diary.notes) == 1
    assert len(hands.dead_letters()) >= many + 1, "letters stay for people to see"


@pytest.mark.parametrize(
    "settings", [{"clients_per_round": 3}, {"mode": "buffered", "in_flight": 3, "buffer_size": 3}]
)
def test_dead_letters_of_an_earlier_life_are_not_believed(
    over: Over, looks: Looks, settings: dict[str, Any]
) -> None:
    federation = over(blobs_recipe(rounds=1, federation=settings))
    hands, server = Hands(federation), federation.serve()
    tasks = hands.take(3)
    federation.stop.set()
    assert server.result(SOON).stopped
    hands.reject(tasks[0], "delivery_limit")
    with federation.resumed() as again:
        server = again.serve()
        looks.until_the_next()
        for task in tasks:  # perhaps its owner has put right what killed the workers
            hands.send(hands.train(task))
        server.result(SOON)
        outcomes = [outcome.outcome for outcome in again.diary.records[0].outcomes]
    assert len(outcomes) == 3
    assert set(outcomes) <= {"accepted", "rejected_cosine"}


def test_leftovers_behind_garbage_are_counted_before_anybody_is_asked_again(
    over: Over, tmp_path: Path
) -> None:
    federation = over(blobs_recipe(rounds=1))
    hands, server = Hands(federation), federation.serve()
    tasks = hands.take(3)
    federation.stop.set()
    assert server.result(SOON).stopped
    again = federation.resumed()
    with again:
        hands = Hands(again)
        for number in range(3):
            hands.post([b"garbage %d" % number])
        for task in tasks:
            hands.send(hands.train(task))
        assert again.serve().result(SOON).rounds_done == 1
        assert again.diary.records[0].refused == {"not_fedil": 3}
        assert hands.transport.receive(hands.tasks, 0.0) is None, "somebody was asked again"
