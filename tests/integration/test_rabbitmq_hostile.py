"""Messages from a site with software of its own: malformed ones are rejected once, and never redelivered."""

import os
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pika
import pika.data
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker_config.brokers.topology import (
    BODIES,
    DEAD_LETTERS,
    UPDATES,
    body_queue,
    run_of,
    updates_queue,
)
from broker_config.protocol.chunks import OVERHEAD_BYTES, split
from broker_config.protocol.errors import MessageRejected, QueueFull
from broker_config.transports.rabbitmq.delivery import RabbitDelivery
from broker_config.transports.rabbitmq.large_messages import BODY_HEADER
from broker_config.transports.rabbitmq.publisher import CHUNK_BYTES
from broker_config.transports.rabbitmq.queue_admin import route
from broker_config.transports.rabbitmq.transport import RabbitTransport
from ops.local.services.process import wait_until
from tests.integration.configured_brokers import Brokers, configured_brokers
from tests.integration.rabbitmq_direct import queue_exists

USER = "site-north"
SOON, NOTHING = 60.0, 0.3


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with configured_brokers(tmp_path_factory.mktemp("brokers"), "north") as brokers:
        yield brokers


@pytest.fixture
def server(brokers: Brokers) -> Iterator[RabbitTransport]:
    with closing(RabbitTransport(brokers.broker_url("server"))) as transport:
        yield transport


@pytest.fixture
def updates(server: RabbitTransport) -> Iterator[str]:
    queue = updates_queue(uuid.uuid4().hex, "north")
    server.declare(queue, DEAD_LETTERS)
    yield queue
    while (letter := server.receive(DEAD_LETTERS, 0.0)) is not None:
        letter.acknowledge()


@contextmanager
def site(brokers: Brokers) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(brokers.broker_url(USER))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


@pytest.fixture
def channel(brokers: Brokers) -> Iterator[BlockingChannel]:
    with site(brokers) as channel:
        yield channel


def take(transport: RabbitTransport, queue: str) -> RabbitDelivery:
    delivery = transport.receive(queue, SOON)
    assert delivery is not None
    return delivery


# Headers as AMQP bytes, which most clients cannot produce


@dataclass(frozen=True)
class RawProperties:
    """Properties whose header table is encoded already."""

    table: bytes
    INDEX = pika.BasicProperties.INDEX

    def encode(self) -> list[bytes]:
        flags = pika.BasicProperties.FLAG_HEADERS | pika.BasicProperties.FLAG_USER_ID
        return [struct.pack(">HI", flags, len(self.table)), self.table, short(USER.encode())]


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def header(name: str | bytes, value: bytes) -> bytes:
    return short(name if isinstance(name, bytes) else name.encode()) + value


def text(value: bytes) -> bytes:
    return b"S" + struct.pack(">I", len(value)) + value


def nested(depth: int, kind: bytes = b"F") -> bytes:
    value = b"V"
    for _ in range(depth):
        inner = short(b"") + value if kind == b"F" else value
        value = kind + struct.pack(">I", len(inner)) + inner
    return value


LATE = b"T" + struct.pack(">Q", 2**63 - 1)
LONG_NAME = b"fedil.body.%b.%b" % (b"a" * 300, b"0" * 32)
WIDE_NAME = b"fedil.body.%b.%b" % ("ä".encode() * 150, b"0" * 32)

BAD_HEADERS = {
    "a name that is not UTF-8": header(b"\xff\xfe", text(b"x")),
    "a date out of range": header("x-t", LATE),
    "2000 nested tables": header("x-n", nested(2000)),
    "20000 nested tables": header("x-n", nested(20_000)),
    "2000 nested lists": header("x-n", nested(2000, b"A")),
    "as large as a frame": header("x-fedil-z", text(b"a" * 130_970)),
    "a redelivered mark that is a table": header("x-fedil-redelivered", nested(300)),
    "a reason that is a table": header("x-fedil-reason", nested(300)),
    "a reason that is not UTF-8": header("x-fedil-reason", text(b"\xff")),
    "a reference that is a date out of range": header(BODY_HEADER, LATE),
}
BAD_REFERENCES = {
    "longer than a queue name": text(LONG_NAME),
    "longer in bytes than in characters": text(WIDE_NAME),
    "a table": nested(300),
    "not UTF-8": text(b"\xff"),
    "a number": b"I" + struct.pack(">i", 5),
}


def send(channel: BlockingChannel, queue: str, table: bytes, body: bytes) -> None:
    channel.basic_publish(*route(queue), body, RawProperties(table), mandatory=True)


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_a_message_with_malformed_headers_is_rejected_once_and_the_next_is_delivered(
    server: RabbitTransport, channel: BlockingChannel, updates: str, name: str
) -> None:
    send(channel, updates, BAD_HEADERS[name], b"garbage")
    send(channel, updates, b"", b"update")
    odd = take(server, updates)
    assert (bytes(odd.body), odd.sender, odd.redelivered) == (b"garbage", USER, False)
    odd.reject("not_fedil")
    check_the_next(server, updates)
    letter = take(server, DEAD_LETTERS)
    assert (bytes(letter.body), letter.reason) == (b"garbage", "not_fedil")
    letter.acknowledge()


def test_headers_that_cannot_be_encoded_again_are_rejected_once(
    server: RabbitTransport, channel: BlockingChannel, updates: str
) -> None:
    send(channel, updates, header("x-fedil-n", nested(400)), b"garbage")
    odd = take(server, updates)
    deeper(200, lambda: odd.reject("not_fedil"))
    assert server.receive(updates, NOTHING) is None
    letter = take(server, DEAD_LETTERS)
    assert letter.reason == "not_fedil"
    letter.acknowledge()


def deeper(num_calls: int, call: Callable[[], None]) -> None:
    """Calls with less stack left than there was for decoding."""
    if num_calls:
        deeper(num_calls - 1, call)
    else:
        call()


@pytest.mark.parametrize("name", BAD_REFERENCES)
def test_a_reference_without_a_body_queue_is_rejected_once_and_the_next_is_delivered(
    server: RabbitTransport, channel: BlockingChannel, updates: str, name: str
) -> None:
    send(channel, updates, header(BODY_HEADER, BAD_REFERENCES[name]), b"")
    send(channel, updates, b"", b"update")
    odd = take(server, updates)
    assert not odd.body_is_inline
    with pytest.raises(MessageRejected, match="schema"):
        _ = odd.body
    odd.reject("schema")
    check_the_next(server, updates)
    letter = take(server, DEAD_LETTERS)
    assert (bytes(letter.body), letter.reason) == (b"", "schema")
    letter.acknowledge()


@pytest.mark.parametrize("words", ["due to timeout", "is down or inaccessible"])
def test_a_body_queue_named_like_an_outage_is_a_missing_body_and_the_next_is_delivered(
    server: RabbitTransport, channel: BlockingChannel, updates: str, words: str
) -> None:
    """RabbitMQ quotes the name in the error, and the server would wait for ever for the end of that outage."""
    reference = text(body_queue(f"north.{words}", "0" * 32).encode())
    send(channel, updates, header(BODY_HEADER, reference), b"")
    send(channel, updates, b"", b"update")
    odd = take(server, updates)
    with pytest.raises(MessageRejected, match="body_missing"):
        _ = odd.body
    odd.reject("body_missing")
    check_the_next(server, updates)


def check_the_next(server: RabbitTransport, updates: str) -> None:
    good = take(server, updates)
    assert bytes(good.body) == b"update"
    good.acknowledge()
    assert server.receive(updates, NOTHING) is None


ALL = [*BAD_HEADERS.values(), *(header(BODY_HEADER, value) for value in BAD_REFERENCES.values())]


def test_malformed_dead_letters_can_be_received_and_requeued(
    brokers: Brokers, server: RabbitTransport, channel: BlockingChannel, updates: str
) -> None:
    for table in ALL:
        send(channel, DEAD_LETTERS, table, b"")
    with closing(RabbitTransport(brokers.broker_url("server"))) as reader:
        letters = [take(reader, DEAD_LETTERS) for _ in ALL]
        assert {letter.reason for letter in letters} == {"unknown"}
        for letter in letters:
            letter.requeue()
    for _ in ALL:
        take(server, DEAD_LETTERS).acknowledge()
    assert server.receive(DEAD_LETTERS, NOTHING) is None


def test_a_run_with_malformed_updates_can_be_retired(
    brokers: Brokers, server: RabbitTransport, channel: BlockingChannel, updates: str
) -> None:
    for table in ALL:
        send(channel, updates, table, b"")
    server.retire(str(run_of(updates)), ["north"])
    assert not queue_exists(brokers.broker_url("server"), updates)


# Bodies, and senders that do not stop


def declare_body_queue(channel: BlockingChannel) -> tuple[str, str]:
    """Its name and its routing key"""
    holder = body_queue(USER, uuid.uuid4().hex)
    key = BODIES.routing_key(holder)
    channel.queue_declare(holder, durable=True, arguments=BODIES.arguments)
    channel.queue_bind(holder, BODIES.exchange.name, key)
    return holder, key


def beginning() -> bytes:
    """The first of two chunks of a new body"""
    return next(split([os.urandom(2)], OVERHEAD_BYTES + 1))


@contextmanager
def published_endlessly(brokers: Brokers, exchange: str, key: str, body: bytes) -> Iterator[None]:
    """Publishes faster than a reader gets messages one by one, until the context ends or a deadline passes."""
    ready, stop = threading.Event(), threading.Event()

    def publish_on() -> None:
        with pika.BlockingConnection(pika.URLParameters(brokers.broker_url(USER))) as connection:
            channel, until = connection.channel(), time.monotonic() + 2 * SOON
            properties = pika.BasicProperties(user_id=USER)
            while not stop.is_set() and time.monotonic() < until:
                for _ in range(500):
                    channel.basic_publish(exchange, key, body, properties)
                connection.process_data_events(0)
                ready.set()

    sender = threading.Thread(target=publish_on)
    sender.start()
    assert ready.wait(SOON)
    try:
        yield
    finally:
        stop.set()
        sender.join()


def test_chunks_of_different_bodies_in_one_queue_are_rejected_at_the_second(
    server: RabbitTransport, channel: BlockingChannel, updates: str
) -> None:
    holder, key = declare_body_queue(channel)
    for _ in range(50):
        channel.basic_publish(
            BODIES.exchange.name, key, beginning(), pika.BasicProperties(user_id=USER), mandatory=True
        )
    send(channel, updates, header(BODY_HEADER, text(holder.encode())), b"")
    update = take(server, updates)
    with pytest.raises(MessageRejected, match=r"contradiction.*another body"):
        _ = update.body
    update.reject("contradiction")
    assert server.receive(updates, NOTHING) is None


def test_a_body_whose_sender_repeats_a_chunk_endlessly_is_given_up(
    brokers: Brokers, server: RabbitTransport, channel: BlockingChannel, updates: str
) -> None:
    holder, key = declare_body_queue(channel)
    send(channel, updates, header(BODY_HEADER, text(holder.encode())), b"")
    update = take(server, updates)
    with published_endlessly(brokers, BODIES.exchange.name, key, beginning()):
        began = time.monotonic()
        with pytest.raises(MessageRejected, match="body_missing"):
            _ = update.body
        assert time.monotonic() - began < SOON
    update.acknowledge()
    assert not queue_exists(brokers.broker_url("server"), holder)


def test_a_site_that_sends_without_end_fills_only_its_own_queue_which_is_bounded(
    brokers: Brokers, server: RabbitTransport, updates: str
) -> None:
    south = updates_queue(str(run_of(updates)), "south")
    server.declare(south)
    most = int(UPDATES.arguments["x-max-length"])
    with closing(RabbitTransport(brokers.broker_url(USER))) as north:
        with published_endlessly(brokers, *route(updates), b"garbage"):
            assert wait_until(lambda: (server.depth(updates) or 0) >= most, SOON)
            server.publish(south, [b"update"])
            update = server.receive([updates, south], SOON), server.receive([south, updates], SOON)
            assert [bytes(each.body) for each in update if each] == [b"garbage", b"update"]
        assert (server.depth(updates) or 0) <= most
        server.publish(south, [b"x"])
        while (server.depth(updates) or 0) < most:
            north.publish(updates, [b"garbage"])
        with pytest.raises(QueueFull, match="takes no message"):
            north.publish(updates, [bytes(2 * CHUNK_BYTES)])
        assert not brokers.management.get("queues/fedil?name=%5Efedil.body&use_regex=true&page=1")["items"]
        take(server, updates).acknowledge()
        north.publish(updates, [b"update"])


def test_a_run_is_retired_while_a_sender_publishes_endlessly(
    brokers: Brokers, server: RabbitTransport, updates: str
) -> None:
    run = str(run_of(updates))
    with published_endlessly(brokers, *route(updates), b"x"):
        began = time.monotonic()
        server.retire(run, ["north"])
        assert time.monotonic() - began < SOON
    assert not queue_exists(brokers.broker_url("server"), updates)
