"""What every transport promises. A new one is added to BROKERS and changes nothing else here."""

import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from broker_config.embedded import serve
from broker_config.errors import BrokerUnavailable, ModelMissing, QueueMissing
from broker_config.stores.memory import MemoryStore
from broker_config.topology import DEAD_LETTERS
from broker_config.transports import connect_transport
from broker_config.transports.interface import DELIVERY_LIMIT, Buffers, Delivery, ModelAddress, Transport
from broker_config.transports.memory import EmbeddedBroker

Connect = Callable[[], Transport]
SOON = 20.0
"""Seconds within which a message that is there must come, however busy the machine."""
NOTHING = 0.3
"""Seconds after which we believe that no message comes."""


@contextmanager
def memory() -> Iterator[Connect]:
    broker = EmbeddedBroker()
    yield lambda: connect_transport("memory://", broker)


@contextmanager
def memory_chunked() -> Iterator[Connect]:
    broker = EmbeddedBroker(max_message_bytes=100_000)
    yield lambda: connect_transport("memory://", broker)


@contextmanager
def memory_socket() -> Iterator[Connect]:
    with (
        tempfile.TemporaryDirectory() as directory,
        serve(EmbeddedBroker(), MemoryStore(), Path(directory) / "broker.sock") as server,
    ):
        yield lambda: connect_transport(server.url)


BROKERS: dict[str, Callable[[], AbstractContextManager[Connect]]] = {
    "memory": memory,
    "memory-chunked": memory_chunked,
    "memory-socket": memory_socket,
}


@pytest.fixture(params=BROKERS)
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    with BROKERS[request.param]() as make:
        opened: list[Transport] = []

        def open_and_remember() -> Transport:
            opened.append(make())
            return opened[-1]

        yield open_and_remember
        for transport in opened:
            transport.close()


@pytest.fixture
def transport(connect: Connect) -> Transport:
    return connect()


@pytest.fixture
def queue(transport: Transport) -> str:
    name = f"fedil.tasks.{uuid.uuid4().hex}"
    transport.declare(name, DEAD_LETTERS)
    return name


@pytest.fixture
def run() -> str:
    return f"run-{uuid.uuid4().hex}"


def take(transport: Transport, queue: str) -> Delivery:
    delivery = transport.receive(queue, SOON)
    assert delivery is not None
    return delivery


def dead_letter(transport: Transport, body: bytes) -> Delivery:
    """The dead letter with this body; others are of other tests."""
    while True:
        delivery = take(transport, DEAD_LETTERS)
        delivery.acknowledge()
        if bytes(delivery.body) == body:
            return delivery


def big_body(num_bytes: int) -> bytes:
    return np.random.default_rng(0).bytes(num_bytes)


# Queues


def test_publishing_to_a_queue_that_nobody_declared_is_refused(transport: Transport) -> None:
    with pytest.raises(QueueMissing):
        transport.publish(f"fedil.tasks.{uuid.uuid4().hex}", [b"task"])


def test_receiving_from_a_queue_that_nobody_declared_is_refused(transport: Transport) -> None:
    with pytest.raises(QueueMissing):
        transport.receive(f"fedil.tasks.{uuid.uuid4().hex}", NOTHING)


def test_declaring_a_queue_again_keeps_what_is_in_it(transport: Transport, queue: str) -> None:
    transport.publish(queue, [b"task"])
    transport.declare(queue)
    assert bytes(take(transport, queue).body) == b"task"


def test_messages_come_in_the_order_of_publishing(transport: Transport, queue: str) -> None:
    bodies = [b"%d" % number for number in range(20)]
    for body in bodies:
        transport.publish(queue, [body])
    assert [bytes(take(transport, queue).body) for _ in bodies] == bodies


def test_a_fresh_message_is_neither_redelivered_nor_has_a_reason(transport: Transport, queue: str) -> None:
    transport.publish(queue, [b"task"])
    delivery = take(transport, queue)
    assert (delivery.redelivered, delivery.reason) == (False, None)


def test_receiving_from_an_empty_queue_gives_nothing_after_the_time_out(
    transport: Transport, queue: str
) -> None:
    started = time.monotonic()
    assert transport.receive(queue, NOTHING) is None
    assert NOTHING * 0.9 < time.monotonic() - started < SOON


def test_a_waiting_consumer_gets_what_is_published_meanwhile(
    connect: Connect, transport: Transport, queue: str
) -> None:
    publisher = connect()
    later = threading.Timer(NOTHING, publisher.publish, (queue, [b"task"]))
    later.start()
    assert bytes(take(transport, queue).body) == b"task"
    later.join()


def test_what_the_sender_changes_after_publishing_does_not_change_the_message(
    transport: Transport, queue: str
) -> None:
    weights = np.ones(1000, np.uint8)
    transport.publish(queue, [weights.data])
    weights[:] = 2
    assert bytes(take(transport, queue).body) == b"\1" * 1000


def test_a_body_of_40_megabytes_arrives_whole(transport: Transport, queue: str) -> None:
    body = big_body(40_000_000)
    transport.publish(queue, [body])
    assert take(transport, queue).body == body


@pytest.mark.parametrize(
    "pieces",
    [[], [b""], [b"%d," % number for number in range(5000)], [b"", b"a", memoryview(b"bc"), b""]],
    ids=["none", "one empty", "five thousand", "some empty"],
)
def test_a_body_may_come_in_any_pieces(transport: Transport, queue: str, pieces: Buffers) -> None:
    transport.publish(queue, pieces)
    assert bytes(take(transport, queue).body) == b"".join(pieces)


# Acknowledging, giving back, rejecting


def test_an_unacknowledged_message_comes_back_marked_redelivered(
    connect: Connect, transport: Transport, queue: str
) -> None:
    transport.publish(queue, [b"task"])
    lost = connect()
    take(lost, queue)
    lost.close()
    back = take(transport, queue)
    assert (bytes(back.body), back.redelivered) == (b"task", True)


def test_several_unacknowledged_messages_come_back_in_their_order_before_the_rest(
    connect: Connect, transport: Transport, queue: str
) -> None:
    for body in (b"1", b"2", b"3"):
        transport.publish(queue, [body])
    lost = connect()
    take(lost, queue)
    take(lost, queue)
    lost.close()
    assert [bytes(take(transport, queue).body) for _ in range(3)] == [b"1", b"2", b"3"]


def test_an_acknowledged_message_does_not_come_back(
    connect: Connect, transport: Transport, queue: str
) -> None:
    transport.publish(queue, [b"task"])
    worker = connect()
    take(worker, queue).acknowledge()
    worker.close()
    assert transport.receive(queue, NOTHING) is None


def test_a_message_in_somebodys_hands_goes_to_nobody_else(
    connect: Connect, transport: Transport, queue: str
) -> None:
    transport.publish(queue, [b"task"])
    take(transport, queue)
    assert connect().receive(queue, NOTHING) is None


def test_a_message_that_was_given_back_goes_to_somebody_else_at_once(
    connect: Connect, transport: Transport, queue: str
) -> None:
    transport.publish(queue, [b"task"])
    take(connect(), queue).requeue()
    back = take(transport, queue)
    assert (bytes(back.body), back.redelivered) == (b"task", True)


def test_a_rejected_message_is_dead_lettered_with_its_reason_and_does_not_return(
    transport: Transport, queue: str
) -> None:
    body = uuid.uuid4().bytes
    transport.publish(queue, [body])
    take(transport, queue).reject("schema")
    assert dead_letter(transport, body).reason == "schema"
    assert transport.receive(queue, NOTHING) is None


def test_a_big_body_is_dead_lettered_whole(transport: Transport, queue: str) -> None:
    body = big_body(1_000_000)
    transport.publish(queue, [body])
    take(transport, queue).reject("digest")
    assert dead_letter(transport, body).reason == "digest"


def test_a_message_that_outlives_too_many_consumers_is_dead_lettered(
    connect: Connect, transport: Transport, queue: str
) -> None:
    body = uuid.uuid4().bytes
    transport.publish(queue, [body])
    for _ in range(DELIVERY_LIMIT):
        victim = connect()
        take(victim, queue)
        victim.close()
    assert transport.receive(queue, NOTHING) is None
    assert dead_letter(transport, body).reason == "delivery_limit"


def test_giving_back_politely_does_not_count_towards_the_delivery_limit(
    connect: Connect, transport: Transport, queue: str
) -> None:
    transport.publish(queue, [b"task"])
    for _ in range(2 * DELIVERY_LIMIT):
        take(transport, queue).requeue()
    lost = connect()
    take(lost, queue)
    lost.close()
    assert bytes(take(transport, queue).body) == b"task"


def test_a_closed_transport_says_so(connect: Connect, queue: str) -> None:
    transport = connect()
    transport.close()
    with pytest.raises(BrokerUnavailable):
        transport.publish(queue, [b"task"])


def test_closing_twice_is_harmless(connect: Connect) -> None:
    transport = connect()
    transport.close()
    transport.close()


def test_what_went_back_can_no_longer_be_acknowledged(
    connect: Connect, transport: Transport, queue: str
) -> None:
    transport.publish(queue, [b"task"])
    lost = connect()
    delivery = take(lost, queue)
    lost.close()
    with pytest.raises(BrokerUnavailable):
        delivery.acknowledge()
    assert bytes(take(transport, queue).body) == b"task"


# Many at once


def test_two_consumers_compete_and_each_message_goes_to_one(
    connect: Connect, transport: Transport, queue: str
) -> None:
    for number in range(10):
        transport.publish(queue, [b"%d" % number])
    ours, theirs = transport, connect()
    taken = [bytes(take(who, queue).body) for _ in range(5) for who in (ours, theirs)]
    assert sorted(taken) == [b"%d" % number for number in range(10)]


def test_a_waiting_consumer_does_not_hold_up_others(
    connect: Connect, transport: Transport, queue: str
) -> None:
    other = f"{queue}.other"
    transport.declare(other)
    waiter = threading.Thread(target=connect().receive, args=(other, SOON))
    waiter.start()
    transport.publish(queue, [b"task"])
    take(transport, queue).acknowledge()
    assert waiter.is_alive()
    transport.publish(other, [b"now it may go"])
    waiter.join()


def test_nothing_is_lost_or_doubled_among_many_threads_that_fail_and_give_back(
    connect: Connect, transport: Transport, queue: str
) -> None:
    num_publishers, num_consumers, num_each = 3, 4, 40
    done: Counter[bytes] = Counter()
    lock = threading.Lock()
    everything = num_publishers * num_each

    def publish(publisher: int, own: Transport) -> None:
        for number in range(num_each):
            own.publish(queue, [b"%d." % publisher, b"%d" % number])

    def consume(own: Transport) -> None:
        random = np.random.default_rng()
        deadline = time.monotonic() + SOON
        while done.total() < everything and time.monotonic() < deadline:
            delivery = own.receive(queue, 0.05)
            if delivery is None:
                continue
            fate = random.random()
            # Only first deliveries fail, so that none reaches the delivery limit.
            if fate < 0.1 and not delivery.redelivered:
                own.close()
                with lock:
                    own = connect()
            elif fate < 0.2:
                delivery.requeue()
            else:
                delivery.acknowledge()
                with lock:
                    done[bytes(delivery.body)] += 1

    threads = [threading.Thread(target=publish, args=(n, connect())) for n in range(num_publishers)]
    threads += [threading.Thread(target=consume, args=(connect(),)) for _ in range(num_consumers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == everything
    assert set(done.values()) == {1}
    assert transport.receive(queue, NOTHING) is None


# Models


def test_a_model_is_read_by_many_and_as_often_as_they_like(
    connect: Connect, transport: Transport, run: str
) -> None:
    body = big_body(3_000_000)
    address = transport.append_model(run, 1, [body[:1000], body[1000:]])
    for reader in (transport, connect(), connect()):
        assert bytes(reader.read_model(address)) == body
        assert bytes(reader.read_model(address)) == body


def test_an_address_says_run_and_version(transport: Transport, run: str) -> None:
    address = transport.append_model(run, 7, [b"weights"])
    assert (address.run, address.version) == (run, 7)


def test_the_version_before_the_newest_is_still_there(transport: Transport, run: str) -> None:
    first = transport.append_model(run, 1, [b"one"])
    second = transport.append_model(run, 2, [b"two"])
    assert bytes(transport.read_model(first)) == b"one"
    assert bytes(transport.read_model(second)) == b"two"


def test_writing_a_version_again_replaces_it(transport: Transport, run: str) -> None:
    transport.append_model(run, 1, [b"before the crash"])
    address = transport.append_model(run, 1, [b"after"])
    assert bytes(transport.read_model(address)) == b"after"


def test_writing_a_version_again_does_not_push_another_out(transport: Transport, run: str) -> None:
    first = transport.append_model(run, 1, [b"one"])
    for _ in range(3):
        transport.append_model(run, 2, [b"two"])
    assert bytes(transport.read_model(first)) == b"one"


def test_a_version_written_again_is_as_young_as_its_last_writing(transport: Transport, run: str) -> None:
    for version in (1, 2):
        transport.append_model(run, version, [b"before the crash"])
    restored = transport.append_model(run, 1, [b"restored"])
    transport.append_model(run, 3, [b"later"])
    assert bytes(transport.read_model(restored)) == b"restored"


def test_an_old_version_leaves_the_log(transport: Transport, run: str) -> None:
    first = transport.append_model(run, 1, [b"one"])
    for version in range(2, 30):
        transport.append_model(run, version, [b"later"])
    with pytest.raises(ModelMissing):
        transport.read_model(first)


def test_a_run_may_go_on_from_an_older_version(transport: Transport, run: str) -> None:
    for version in (8, 9):
        transport.append_model(run, version, [b"to be forgotten"])
    address = transport.append_model(run, 3, [b"restored"])
    assert bytes(transport.read_model(address)) == b"restored"


def test_the_model_of_an_unknown_run_is_missing(transport: Transport, run: str) -> None:
    with pytest.raises(ModelMissing):
        transport.read_model(ModelAddress(run, 1, 0))


def test_runs_do_not_see_each_others_models(transport: Transport, run: str) -> None:
    ours = transport.append_model(run, 1, [b"ours"])
    theirs = transport.append_model(f"{run}-other", 1, [b"theirs"])
    assert bytes(transport.read_model(ours)) == b"ours"
    assert bytes(transport.read_model(theirs)) == b"theirs"


def test_what_the_server_trains_after_appending_does_not_change_the_model(
    transport: Transport, run: str
) -> None:
    weights = np.ones(1000, np.uint8)
    address = transport.append_model(run, 1, [weights.data])
    weights[:] = 2
    assert bytes(transport.read_model(address)) == b"\1" * 1000
