"""The RabbitMQ transport beyond the contract, on a real broker."""

import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from types import FrameType
from urllib.parse import urlsplit

import numpy as np
import pika
import pytest

from broker_config.brokers.topology import DEAD_LETTERS, TASKS, tasks_queue, updates_queue
from broker_config.protocol.errors import BrokerRefused, BrokerUnavailable, MessageRejected, QueueMissing
from broker_config.transports.interface import DELIVERY_LIMIT
from broker_config.transports.rabbitmq.connection import Connection
from broker_config.transports.rabbitmq.delivery import RabbitDelivery
from broker_config.transports.rabbitmq.transport import RabbitTransport
from broker_config.transports.rabbitmq.url import parse_url
from tests.integration.fake_handshake import START, TUNE, broker_that_sends, encoded
from tests.integration.rabbitmq_direct import (
    SOON,
    delete_queue,
    headers_of_next,
    in_another_process,
    killed_during,
    publish_directly,
    queue_exists,
)
from tests.services import Service

Connect = Callable[..., RabbitTransport]
NOTHING = 0.3
BIG = 20_000_000
"""Several chunks"""


@pytest.fixture
def connect(rabbitmq: Service) -> Iterator[Connect]:
    opened: list[RabbitTransport] = []

    def open_and_remember(options: str = "") -> RabbitTransport:
        opened.append(RabbitTransport(rabbitmq.url + options))
        return opened[-1]

    yield open_and_remember
    for transport in opened:
        transport.close()


@pytest.fixture
def transport(connect: Connect) -> RabbitTransport:
    return connect()


@pytest.fixture
def queue(transport: RabbitTransport) -> str:
    name = updates_queue(uuid.uuid4().hex)
    transport.declare(name, DEAD_LETTERS)
    return name


@pytest.fixture
def tasks(transport: RabbitTransport) -> str:
    name = tasks_queue(uuid.uuid4().hex)
    transport.declare(name, DEAD_LETTERS)
    return name


def take(transport: RabbitTransport, queue: str) -> RabbitDelivery:
    delivery = transport.receive(queue, SOON)
    assert delivery is not None
    return delivery


def body_of(num_bytes: int) -> bytes:
    return np.random.default_rng(0).bytes(num_bytes)


# The connection


def test_a_consumer_that_computes_for_longer_than_three_heartbeats_keeps_its_task(
    connect: Connect, transport: RabbitTransport, tasks: str
) -> None:
    worker = connect("?heartbeat=2")
    worker.publish(tasks, [b"task"])
    delivery = take(worker, tasks)
    ends, steps = time.monotonic() + 7.0, 0
    while time.monotonic() < ends:
        steps += 1
    worker.publish(tasks, [b"result"])
    delivery.acknowledge()
    result = take(transport, tasks)
    assert (bytes(result.body), result.redelivered) == (b"result", False)


def test_the_error_for_a_wrong_password_names_the_user_and_not_the_password(rabbitmq: Service) -> None:
    with pytest.raises(BrokerRefused, match="'guest'") as refused:
        RabbitTransport(rabbitmq.url.replace("guest:guest", "guest:hush"))
    assert "hush" not in str(refused.value)


def test_the_error_for_an_unknown_virtual_host_names_it(rabbitmq: Service) -> None:
    with pytest.raises(BrokerRefused, match="'nowhere'"):
        RabbitTransport(rabbitmq.url.replace("%2F", "nowhere"))


def test_every_node_that_an_address_names_is_tried(rabbitmq: Service) -> None:
    here = urlsplit(rabbitmq.url).netloc.rpartition("@")[2]
    addresses = parse_url(f"amqp://guest:guest@127.0.0.1:1,{here}/")
    for in_order in (addresses, addresses[::-1]):
        with closing(Connection(in_order, "testing", reconnects=True)) as connection, connection.exclusive():
            assert connection.address.endpoint == here
    refused = parse_url(f"amqp://guest:wrong@127.0.0.1:1,{here}/")
    with (
        closing(Connection(refused, "testing", reconnects=True)) as connection,
        pytest.raises(BrokerRefused, match="refused the user 'guest'"),
        connection.exclusive(),
    ):
        pass


def test_a_port_without_a_broker_is_unavailable() -> None:
    with pytest.raises(BrokerUnavailable, match=r"no RabbitMQ answers at 127\.0\.0\.1:1 "):
        RabbitTransport("amqp://guest:hush@127.0.0.1:1/")


@pytest.mark.parametrize("frames", [(), (START,), (START, TUNE)])
def test_a_broker_that_disconnects_during_the_handshake_is_unavailable(frames: tuple[bytes, ...]) -> None:
    with broker_that_sends(*frames) as url, pytest.raises(BrokerUnavailable):
        RabbitTransport(url)


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        (
            320,
            "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'",
            BrokerUnavailable,
        ),
        (541, "INTERNAL_ERROR - access to vhost '/' refused: vhost '/' is down", BrokerUnavailable),
        (
            530,
            "NOT_ALLOWED - access to vhost '/' refused: connection limit (9) is reached",
            BrokerUnavailable,
        ),
        (530, "NOT_ALLOWED - access to vhost '/' refused for user 'guest'", BrokerRefused),
        (403, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN", BrokerRefused),
    ],
)
def test_only_a_refused_login_or_virtual_host_raises_broker_refused(
    code: int, text: str, error: type[Exception]
) -> None:
    close = encoded(pika.spec.Connection.Close(code, text, 0, 0))
    for frames in ((START, close), (START, TUNE, close)):
        with broker_that_sends(*frames) as url, pytest.raises(error):
            RabbitTransport(url)


def test_an_error_in_the_heartbeat_thread_is_logged_and_does_not_end_it(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    called_again, calls = threading.Event(), []

    def service_heartbeats(connection: Connection) -> None:
        calls.append(connection)
        if len(calls) == 1:
            raise RuntimeError("unexpected")
        called_again.set()

    monkeypatch.setattr(Connection, "service_heartbeats", service_heartbeats)
    connect("?heartbeat=2")
    assert called_again.wait(SOON)
    assert "unexpected" in caplog.text


def test_a_missing_queue_affects_nothing_else(transport: RabbitTransport, queue: str) -> None:
    transport.publish(queue, [b"1"])
    held = take(transport, queue)
    with pytest.raises(QueueMissing):
        transport.publish(tasks_queue("unknown"), [b"task"])
    with pytest.raises(QueueMissing):
        transport.receive(tasks_queue("unknown"), NOTHING)
    held.acknowledge()
    transport.publish(queue, [b"2"])
    assert bytes(take(transport, queue).body) == b"2"


def test_a_name_outside_the_topology_is_refused(transport: RabbitTransport) -> None:
    for name in ("elsewhere", tasks_queue("#"), "fedil.tasks."):
        with pytest.raises(QueueMissing, match="not a queue of FedIL"):
            transport.declare(name)


def test_an_exception_in_a_signal_handler_closes_the_connection(
    connect: Connect, transport: RabbitTransport, queue: str
) -> None:
    class Interrupted(Exception):
        pass

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise Interrupted

    transport.publish(queue, [b"held"])
    worker = connect()
    held = take(worker, queue)
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, NOTHING)
    try:
        with pytest.raises(Interrupted):
            worker.receive(queue, SOON)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert take(transport, queue).redelivered
    held.requeue()  # no effect: the broker has requeued it
    with pytest.raises(BrokerUnavailable):
        worker.receive(queue, NOTHING)


# Queues


def test_the_sender_is_the_user_id_that_the_broker_validated(transport: RabbitTransport, tasks: str) -> None:
    transport.publish(tasks, [b"task"])
    assert take(transport, tasks).sender == "guest"


def test_a_waiting_consumer_is_unavailable_after_its_queue_was_deleted(
    rabbitmq: Service, transport: RabbitTransport, tasks: str
) -> None:
    assert transport.receive(tasks, NOTHING) is None
    delete_queue(rabbitmq.url, tasks)
    # It might be moving to another node of a cluster.
    with pytest.raises(BrokerUnavailable, match="ask again"):
        transport.receive(tasks, SOON)
    with pytest.raises(QueueMissing):
        transport.receive(tasks, SOON)
    transport.declare(tasks)
    transport.publish(tasks, [b"task"])
    assert bytes(take(transport, tasks).body) == b"task"


def test_closing_requeues_buffered_messages_without_counting_a_delivery(
    connect: Connect, transport: RabbitTransport, tasks: str
) -> None:
    leaving = connect()
    assert leaving.receive(tasks, NOTHING) is None
    transport.publish(tasks, [b"task"])
    for _ in range(DELIVERY_LIMIT + 1):
        follower = connect()
        assert follower.receive(tasks, NOTHING) is None  # the transport that is leaving has buffered it
        leaving.close()
        leaving = follower
    leaving.close()
    assert bytes(take(transport, tasks).body) == b"task"


def test_a_queue_that_exists_with_other_arguments_is_used_as_it_is(
    rabbitmq: Service, transport: RabbitTransport
) -> None:
    name = tasks_queue(uuid.uuid4().hex)
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        connection.channel().queue_declare(name, durable=True)
    transport.declare(name)
    transport.publish(name, [b"task"])
    assert bytes(take(transport, name).body) == b"task"


# Large messages


def test_a_body_of_100_megabytes_has_its_own_queue_until_it_is_acknowledged(
    rabbitmq: Service, connect: Connect, transport: RabbitTransport, queue: str
) -> None:
    body = body_of(100_000_000)
    transport.publish(queue, [body])
    holder = headers_of_next(rabbitmq.url, queue)["x-fedil-body"]
    assert holder.startswith("fedil.body.guest.")
    reader = connect()
    delivery = take(reader, queue)
    assert delivery.body == body
    assert queue_exists(rabbitmq.url, holder)
    delivery.acknowledge()
    reader.close()
    assert not queue_exists(rabbitmq.url, holder)
    assert transport.bytes_sent["update"] >= len(body)
    assert reader.bytes_received["update"] >= len(body)


def test_a_body_whose_queue_was_deleted_is_rejected(
    rabbitmq: Service, transport: RabbitTransport, queue: str
) -> None:
    transport.publish(queue, [body_of(BIG)])
    delete_queue(rabbitmq.url, headers_of_next(rabbitmq.url, queue)["x-fedil-body"])
    delivery = take(transport, queue)
    with pytest.raises(MessageRejected) as rejected:
        _ = delivery.body
    assert rejected.value.reason == "body_missing"
    delivery.acknowledge()


def test_a_large_body_above_max_body_bytes_is_rejected_and_dead_lettered(
    connect: Connect, queue: str
) -> None:
    reader = connect()
    reader.publish(queue, [body_of(BIG)])
    reader.max_body_bytes = BIG - 1
    delivery = take(reader, queue)
    with pytest.raises(MessageRejected) as rejected:
        _ = delivery.body
    assert rejected.value.reason == "too_large"
    delivery.reject("too_large")
    assert reader.receive(queue, NOTHING) is None


def test_a_large_body_can_be_skipped_without_fetching_it(
    rabbitmq: Service, connect: Connect, transport: RabbitTransport, queue: str
) -> None:
    """As the server does with dead letters: tasks are small."""
    transport.publish(queue, [body_of(BIG)])
    take(transport, queue).reject("schema")
    small = uuid.uuid4().bytes
    transport.publish(queue, [small])
    take(transport, queue).reject("schema")
    reader = connect()
    seen = []
    while (letter := reader.receive(DEAD_LETTERS, 0.0)) is not None:
        if letter.body_is_inline:
            seen.append(bytes(letter.body))
    assert small in seen
    assert reader.bytes_received["dead"] < BIG
    reader.close()


def test_a_reference_to_another_queue_neither_reads_nor_deletes_it(
    rabbitmq: Service, transport: RabbitTransport, tasks: str, queue: str
) -> None:
    exchange, key = TASKS.exchange_of(tasks).name, TASKS.routing_key(tasks)
    publish_directly(rabbitmq.url, exchange, key, {"x-fedil-body": queue})
    delivery = take(transport, tasks)
    with pytest.raises(MessageRejected, match="schema"):
        _ = delivery.body
    delivery.acknowledge()
    assert queue_exists(rabbitmq.url, queue)


def test_a_rejected_large_body_can_be_read_from_the_dead_letters(
    connect: Connect, transport: RabbitTransport, queue: str
) -> None:
    body = body_of(BIG) + uuid.uuid4().bytes
    transport.publish(queue, [body])
    take(transport, queue).reject("schema")
    while (letter := take(transport, DEAD_LETTERS)).body != body:
        letter.acknowledge()
    assert letter.reason == "schema"
    letter.acknowledge()


def test_a_large_body_is_redelivered_complete_after_its_reader_was_killed(
    rabbitmq: Service, transport: RabbitTransport, queue: str
) -> None:
    body = body_of(BIG)
    transport.publish(queue, [body])
    code = f"""
from broker_config.transports import connect_transport
connect_transport({rabbitmq.url!r}).receive({queue!r}, {SOON}).body
"""
    killed_during(code, "broker_config.protocol.chunks:Assembler.add", 3)
    delivery = take(transport, queue)
    assert delivery.redelivered
    assert delivery.body == body


def test_a_large_body_whose_writer_was_killed_is_never_delivered(
    rabbitmq: Service, transport: RabbitTransport, queue: str
) -> None:
    code = f"""
from broker_config.transports import connect_transport
connect_transport({rabbitmq.url!r}).publish({queue!r}, [bytes({BIG})])
"""
    killed_during(code, "broker_config.transports.rabbitmq.pipelined_publisher:PipelinedPublisher.publish", 3)
    assert transport.receive(queue, NOTHING) is None


def test_reading_a_large_body_needs_little_more_memory_than_the_body(
    rabbitmq: Service, transport: RabbitTransport, queue: str
) -> None:
    num_bytes, spare = 200_000_000, 50_000_000
    transport.publish(queue, [bytes(num_bytes)])
    code = f"""
from pathlib import Path
from broker_config.transports import connect_transport
def kib(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
delivery = connect_transport({rabbitmq.url!r}).receive({queue!r}, {SOON})
before = kib("VmRSS")
assert len(delivery.body) == {num_bytes}
print((kib("VmHWM") - before) * 1024)
delivery.acknowledge()
"""
    assert int(in_another_process(code)) < num_bytes + spare
