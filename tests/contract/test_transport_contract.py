"""The promises of every transport about queues. Add a new transport to BROKERS in transports.py."""

import threading
import time
import uuid
from collections import Counter

import numpy as np
import pytest

from broker_config.brokers.topology import DEAD_LETTERS, DEFAULT_SITE, models_queue
from broker_config.protocol.errors import BrokerUnavailable, MessageRejected, QueueMissing
from broker_config.transports.interface import DELIVERY_LIMIT, Buffers, Delivery, Transport
from ops.local.services.process import wait_until
from tests.contract.transports import NOTHING, SOON, Connect, big_body, take


def dead_letter(transport: Transport, body: bytes) -> Delivery:
    """The dead letter with this body; others belong to other tests."""
    while True:
        delivery = take(transport, DEAD_LETTERS)
        found = delivery.body == body  # before the acknowledgement, which may delete the body
        delivery.acknowledge()
        if found:
            return delivery


# Queues


def test_publishing_to_an_undeclared_queue_raises_queue_missing(transport: Transport) -> None:
    with pytest.raises(QueueMissing):
        transport.publish(f"fedil.tasks.{uuid.uuid4().hex}", [b"task"])


def test_receiving_from_an_undeclared_queue_raises_queue_missing(transport: Transport) -> None:
    with pytest.raises(QueueMissing):
        transport.receive(f"fedil.tasks.{uuid.uuid4().hex}", NOTHING)


def test_declaring_a_queue_again_keeps_its_messages(transport: Transport, queue: str) -> None:
    transport.publish(queue, [b"task"])
    transport.declare(queue)
    assert bytes(take(transport, queue).body) == b"task"


def test_depth_counts_ready_messages(connect: Connect, transport: Transport, queue: str) -> None:
    assert transport.depth(queue) == 0
    for _ in range(3):
        transport.publish(queue, [b"task"])
    watching = connect()
    assert wait_until(lambda: watching.depth(queue) == 3, SOON)
    take(transport, queue).acknowledge()
    assert wait_until(lambda: watching.depth(queue) == 2, SOON)
    assert watching.depth(f"fedil.tasks.{uuid.uuid4().hex}") is None
    # Asking for a missing queue changes nothing.
    assert watching.depth(queue) == 2


def test_depth_of_a_model_log_says_whether_it_exists(
    connect: Connect, transport: Transport, run: str
) -> None:
    log, watching = models_queue(run), connect()
    assert watching.depth(log) is None
    transport.append_model(run, 1, [b"weights"])
    assert watching.depth(log) is not None
    transport.retire(run, [DEFAULT_SITE])
    assert watching.depth(log) is None


def test_bytes_are_counted_by_kind_of_queue(connect: Connect, transport: Transport, queue: str) -> None:
    other = connect()
    transport.publish(queue, [b"1234", b"567"])
    take(other, queue).acknowledge()
    assert transport.bytes_sent["task"] == 7
    assert other.bytes_received["task"] == 7
    assert not other.bytes_sent


def test_messages_are_delivered_in_the_order_of_publishing(transport: Transport, queue: str) -> None:
    bodies = [b"%d" % number for number in range(20)]
    for body in bodies:
        transport.publish(queue, [body])
    assert [bytes(take(transport, queue).body) for _ in bodies] == bodies


def test_the_first_of_several_queues_that_has_a_message_delivers(
    transport: Transport, queue: str, connect: Connect
) -> None:
    other, publishing = f"{queue}-other", connect()
    transport.declare(other)
    for number in range(3):
        publishing.publish(other, [b"%d" % number])
    publishing.publish(queue, [b"first"])
    received = [take(transport, [queue, other]) for _ in range(4)]
    assert [bytes(delivery.body) for delivery in received] == [b"first", b"0", b"1", b"2"]
    assert [delivery.queue for delivery in received] == [queue, other, other, other]
    assert transport.receive([queue, other], NOTHING) is None
    # One that comes later, while both are waited for
    for each in (other, queue):
        publishing.publish(each, [each.encode()])
        assert take(transport, [queue, other]).queue == each


def test_a_first_delivery_is_not_redelivered_and_has_no_reason(transport: Transport, queue: str) -> None:
    transport.publish(queue, [b"task"])
    delivery = take(transport, queue)
    assert (delivery.redelivered, delivery.reason) == (False, None)


def test_receiving_from_an_empty_queue_returns_none_after_the_timeout(
    transport: Transport, queue: str
) -> None:
    started = time.monotonic()
    assert transport.receive(queue, NOTHING) is None
    assert NOTHING * 0.9 < time.monotonic() - started < SOON


def test_a_waiting_consumer_receives_a_message_published_meanwhile(
    connect: Connect, transport: Transport, queue: str
) -> None:
    publisher = connect()
    later = threading.Timer(NOTHING, publisher.publish, (queue, [b"task"]))
    later.start()
    assert bytes(take(transport, queue).body) == b"task"
    later.join()


def test_changing_the_buffer_after_publishing_does_not_change_the_message(
    transport: Transport, queue: str
) -> None:
    weights = np.ones(1000, np.uint8)
    transport.publish(queue, [weights.data])
    weights[:] = 2
    assert bytes(take(transport, queue).body) == b"\1" * 1000


def test_a_body_of_40_megabytes_arrives_complete(transport: Transport, queue: str) -> None:
    body = big_body(40_000_000)
    transport.publish(queue, [body])
    assert take(transport, queue).body == body


@pytest.mark.parametrize(
    "pieces",
    [[], [b""], [b"%d," % number for number in range(5000)], [b"", b"a", memoryview(b"bc"), b""]],
    ids=["none", "one empty", "five thousand", "some empty"],
)
def test_a_body_may_be_published_in_any_pieces(transport: Transport, queue: str, pieces: Buffers) -> None:
    transport.publish(queue, pieces)
    assert bytes(take(transport, queue).body) == b"".join(pieces)


# Acknowledge, requeue, reject


def test_an_unacknowledged_message_is_redelivered_and_marked_so(
    connect: Connect, transport: Transport, queue: str
) -> None:
    transport.publish(queue, [b"task"])
    lost = connect()
    take(lost, queue)
    lost.close()
    back = take(transport, queue)
    assert (bytes(back.body), back.redelivered) == (b"task", True)


def test_unacknowledged_messages_are_redelivered_in_order_before_newer_ones(
    connect: Connect, transport: Transport, queue: str
) -> None:
    for body in (b"1", b"2", b"3"):
        transport.publish(queue, [body])
    lost = connect()
    take(lost, queue)
    take(lost, queue)
    lost.close()
    assert [bytes(take(transport, queue).body) for _ in range(3)] == [b"1", b"2", b"3"]


def test_an_acknowledged_message_is_not_redelivered(
    connect: Connect, transport: Transport, queue: str
) -> None:
    transport.publish(queue, [b"task"])
    worker = connect()
    take(worker, queue).acknowledge()
    worker.close()
    assert transport.receive(queue, NOTHING) is None


def test_an_unacknowledged_message_is_delivered_to_no_other_consumer(
    connect: Connect, transport: Transport, queue: str
) -> None:
    transport.publish(queue, [b"task"])
    take(transport, queue)
    assert connect().receive(queue, NOTHING) is None


def test_a_requeued_message_is_delivered_to_another_consumer_at_once(
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


def test_a_large_body_is_dead_lettered_complete(transport: Transport, queue: str) -> None:
    body = big_body(1_000_000)
    transport.publish(queue, [body])
    take(transport, queue).reject("digest")
    assert dead_letter(transport, body).reason == "digest"


def test_a_message_above_the_delivery_limit_is_dead_lettered(
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


def test_requeueing_does_not_count_towards_the_delivery_limit(
    connect: Connect, transport: Transport, queue: str
) -> None:
    transport.publish(queue, [b"task"])
    for _ in range(2 * DELIVERY_LIMIT):
        take(transport, queue).requeue()
    lost = connect()
    take(lost, queue)
    lost.close()
    assert bytes(take(transport, queue).body) == b"task"


def test_a_closed_transport_is_unavailable(connect: Connect, queue: str) -> None:
    transport = connect()
    transport.close()
    with pytest.raises(BrokerUnavailable):
        transport.publish(queue, [b"task"])


def test_closing_twice_is_harmless(connect: Connect) -> None:
    transport = connect()
    transport.close()
    transport.close()


def test_a_delivery_of_a_closed_transport_cannot_be_acknowledged(
    connect: Connect, transport: Transport, queue: str
) -> None:
    transport.publish(queue, [b"task"])
    lost = connect()
    delivery = take(lost, queue)
    lost.close()
    with pytest.raises(BrokerUnavailable):
        delivery.acknowledge()
    assert bytes(take(transport, queue).body) == b"task"


def test_a_delivery_has_its_sender_if_the_broker_has_users(
    request: pytest.FixtureRequest, transport: Transport, queue: str
) -> None:
    transport.publish(queue, [b"task"])
    knows_users = not request.node.callspec.id.startswith("memory")
    assert take(transport, queue).sender == ("guest" if knows_users else None)


@pytest.mark.parametrize("num_bytes", [1000, 9_000_000])
def test_a_delivery_with_a_released_body_can_be_acknowledged(
    connect: Connect, transport: Transport, queue: str, num_bytes: int
) -> None:
    body = big_body(num_bytes)
    transport.publish(queue, [body])
    worker = connect()
    delivery = take(worker, queue)
    assert delivery.body == body
    delivery.release_body()
    delivery.acknowledge()
    worker.close()
    assert transport.receive(queue, NOTHING) is None


def test_a_large_body_is_complete_after_requeue_and_redelivery(
    connect: Connect, transport: Transport, queue: str
) -> None:
    body = big_body(9_000_000)
    transport.publish(queue, [body])
    take(transport, queue).requeue()
    lost = connect()
    assert take(lost, queue).body == body
    lost.close()
    assert take(transport, queue).body == body


@pytest.mark.parametrize("num_bytes", [1000, 9_000_000])
def test_a_body_above_max_body_bytes_is_rejected_and_can_be_dead_lettered(
    connect: Connect, transport: Transport, queue: str, num_bytes: int
) -> None:
    body = uuid.uuid4().bytes + big_body(num_bytes - 16)
    reader = connect()
    for limit, fits in ((num_bytes, True), (num_bytes - 1, False)):
        transport.publish(queue, [body])
        reader.max_body_bytes = limit
        delivery = take(reader, queue)
        if fits:
            assert delivery.body == body
            delivery.acknowledge()
        else:
            with pytest.raises(MessageRejected) as rejected:
                _ = delivery.body
            assert rejected.value.reason == "too_large"
            delivery.reject(rejected.value.reason)
    assert dead_letter(transport, body).reason == "too_large"
    assert reader.receive(queue, NOTHING) is None


def test_a_small_body_is_inline_and_another_is_fetched_when_it_is_read(
    transport: Transport, queue: str
) -> None:
    for body in (b"task", big_body(9_000_000)):
        transport.publish(queue, [body])
        delivery = take(transport, queue)
        assert delivery.body_is_inline or len(body) > 1000
        before = transport.bytes_received["task"]
        assert delivery.body == body
        # Only a body that is not inline is received now.
        assert (transport.bytes_received["task"] == before) == delivery.body_is_inline
        delivery.acknowledge()


# Concurrency


def test_each_message_goes_to_one_of_two_competing_consumers(
    connect: Connect, transport: Transport, queue: str
) -> None:
    for number in range(10):
        transport.publish(queue, [b"%d" % number])
    ours, theirs = transport, connect()
    taken = [bytes(take(each, queue).body) for _ in range(5) for each in (ours, theirs)]
    assert sorted(taken) == [b"%d" % number for number in range(10)]


def test_a_waiting_consumer_does_not_block_others(connect: Connect, transport: Transport, queue: str) -> None:
    other = f"{queue}.other"
    transport.declare(other)
    waiter = threading.Thread(target=connect().receive, args=(other, SOON))
    waiter.start()
    transport.publish(queue, [b"task"])
    take(transport, queue).acknowledge()
    assert waiter.is_alive()
    transport.publish(other, [b"now it may go"])
    waiter.join()


def test_no_message_is_lost_or_processed_twice_by_threads_that_disconnect_and_requeue(
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
