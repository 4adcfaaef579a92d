"""What somebody with a site's password and other software than ours can send: it is refused once, and never again."""

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

from broker_config.brokers.topology import BODIES, DEAD, DEAD_LETTERS, UPDATES, body_queue, updates_queue
from broker_config.protocol.chunks import OVERHEAD_BYTES, split
from broker_config.protocol.errors import MessageRejected
from broker_config.transports.rabbitmq.bodies import BODY_HEADER
from broker_config.transports.rabbitmq.transport import RabbitDelivery, RabbitTransport
from tests.integration.configured_brokers import Brokers, configured_brokers
from tests.integration.rabbitmq_peeking import queue_exists

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
    queue = updates_queue(uuid.uuid4().hex)
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


# Headers, in the bytes of AMQP: most clients would not write such


@dataclass(frozen=True)
class Written:
    """Properties whose table of headers is written as it is."""

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
LONG_PLACE = b"fedil.body.%b.%b" % (b"a" * 300, b"0" * 32)
WIDE_PLACE = b"fedil.body.%b.%b" % ("ä".encode() * 150, b"0" * 32)

ODD = {
    "a name that is no text": header(b"\xff\xfe", text(b"x")),
    "a date beyond all calendars": header("x-t", LATE),
    "2000 tables in each other": header("x-n", nested(2000)),
    "20000 tables in each other": header("x-n", nested(20_000)),
    "2000 lists in each other": header("x-n", nested(2000, b"A")),
    "just as much as fits": header("x-fedil-z", text(b"a" * 130_970)),
    "a mark that is a table": header("x-fedil-redelivered", nested(300)),
    "a reason that is a table": header("x-fedil-reason", nested(300)),
    "a reason that is no text": header("x-fedil-reason", text(b"\xff")),
    "a place beyond all calendars": header(BODY_HEADER, LATE),
}
NO_PLACE = {
    "longer than the name of a queue": text(LONG_PLACE),
    "longer in bytes than in characters": text(WIDE_PLACE),
    "a table": nested(300),
    "no text": text(b"\xff"),
    "a number": b"I" + struct.pack(">i", 5),
}


def send(channel: BlockingChannel, queue: str, table: bytes, body: bytes) -> None:
    kind = UPDATES if UPDATES.holds(queue) else DEAD
    exchange, key = kind.exchange_of(queue).name, kind.routing_key(queue)
    channel.basic_publish(exchange, key, body, Written(table), mandatory=True)


def test_pika_still_reads_tables_where_we_catch_what_it_cannot_read(server: RabbitTransport) -> None:
    properties = b"".join(Written(header("x-t", LATE)).encode())
    decoded = pika.BasicProperties().decode(properties)
    assert (decoded.headers, decoded.user_id) == ({}, USER)
    with pytest.raises(Exception, match=r"year|range|too large"):
        pika.data.decode_table.__wrapped__(properties, 2)


@pytest.mark.parametrize("name", ODD)
def test_a_message_with_odd_headers_is_refused_once_and_those_behind_it_come(
    server: RabbitTransport, channel: BlockingChannel, updates: str, name: str
) -> None:
    send(channel, updates, ODD[name], b"garbage")
    send(channel, updates, b"", b"update")
    odd = take(server, updates)
    assert (bytes(odd.body), odd.sender, odd.redelivered) == (b"garbage", USER, False)
    odd.reject("not_fedil")
    check_the_next(server, updates)
    letter = take(server, DEAD_LETTERS)
    assert (bytes(letter.body), letter.reason) == (b"garbage", "not_fedil")
    letter.acknowledge()


def test_what_can_be_read_but_not_written_again_is_refused_once(
    server: RabbitTransport, channel: BlockingChannel, updates: str
) -> None:
    send(channel, updates, header("x-fedil-n", nested(400)), b"garbage")
    odd = take(server, updates)
    further_down(200, lambda: odd.reject("not_fedil"))
    assert server.receive(updates, NOTHING) is None
    letter = take(server, DEAD_LETTERS)
    assert letter.reason == "not_fedil"
    letter.acknowledge()


def further_down(num_calls: int, do: Callable[[], None]) -> None:
    """Where Python has less room left for calls than it had for reading"""
    if num_calls:
        further_down(num_calls - 1, do)
    else:
        do()


@pytest.mark.parametrize("name", NO_PLACE)
def test_a_notice_that_names_no_place_is_refused_once_and_those_behind_it_come(
    server: RabbitTransport, channel: BlockingChannel, updates: str, name: str
) -> None:
    send(channel, updates, header(BODY_HEADER, NO_PLACE[name]), b"")
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


def check_the_next(server: RabbitTransport, updates: str) -> None:
    good = take(server, updates)
    assert bytes(good.body) == b"update"
    good.acknowledge()
    assert server.receive(updates, NOTHING) is None


ALL = [*ODD.values(), *(header(BODY_HEADER, value) for value in NO_PLACE.values())]


def test_odd_letters_among_the_dead_can_be_looked_at_and_put_back(
    brokers: Brokers, server: RabbitTransport, channel: BlockingChannel, updates: str
) -> None:
    for table in ALL:
        send(channel, DEAD_LETTERS, table, b"")
    with closing(RabbitTransport(brokers.broker_url("server"))) as looking:
        letters = [take(looking, DEAD_LETTERS) for _ in ALL]
        assert {letter.reason for letter in letters} == {"unknown"}
        for letter in letters:
            letter.requeue()
    for _ in ALL:
        take(server, DEAD_LETTERS).acknowledge()
    assert server.receive(DEAD_LETTERS, NOTHING) is None


def test_a_run_whose_updates_are_odd_can_be_retired(
    brokers: Brokers, server: RabbitTransport, channel: BlockingChannel, updates: str
) -> None:
    for table in ALL:
        send(channel, updates, table, b"")
    server.retire(UPDATES.routing_key(updates))
    assert not queue_exists(brokers.broker_url("server"), updates)


# Bodies, and senders that do not end


def make_place(channel: BlockingChannel) -> tuple[str, str]:
    """Its name and its key"""
    place = body_queue(USER, uuid.uuid4().hex)
    key = BODIES.routing_key(place)
    channel.queue_declare(place, durable=True, arguments=BODIES.arguments)
    channel.queue_bind(place, BODIES.exchange.name, key)
    return place, key


def beginning() -> bytes:
    """The first of two chunks, of a body that nobody has sent before"""
    return next(split([os.urandom(2)], OVERHEAD_BYTES + 1))


@contextmanager
def sent_on_and_on(brokers: Brokers, exchange: str, key: str, body: bytes) -> Iterator[None]:
    """Faster than anybody reads one by one, with a lead; it ends late, for the sake of a test that fails."""
    ready, stop = threading.Event(), threading.Event()

    def send_on() -> None:
        with pika.BlockingConnection(pika.URLParameters(brokers.broker_url(USER))) as connection:
            channel, until = connection.channel(), time.monotonic() + 2 * SOON
            properties = pika.BasicProperties(user_id=USER)
            while not stop.is_set() and time.monotonic() < until:
                for _ in range(500):
                    channel.basic_publish(exchange, key, body, properties)
                connection.process_data_events(0)
                ready.set()

    sender = threading.Thread(target=send_on)
    sender.start()
    assert ready.wait(SOON)
    try:
        yield
    finally:
        stop.set()
        sender.join()


def test_a_body_of_ever_new_beginnings_is_refused_at_the_second(
    server: RabbitTransport, channel: BlockingChannel, updates: str
) -> None:
    place, key = make_place(channel)
    for _ in range(50):
        channel.basic_publish(
            BODIES.exchange.name, key, beginning(), pika.BasicProperties(user_id=USER), mandatory=True
        )
    send(channel, updates, header(BODY_HEADER, text(place.encode())), b"")
    update = take(server, updates)
    with pytest.raises(MessageRejected, match=r"contradiction.*another body"):
        _ = update.body
    update.reject("contradiction")
    assert server.receive(updates, NOTHING) is None


def test_a_body_whose_sender_repeats_it_for_ever_is_given_up(
    brokers: Brokers, server: RabbitTransport, channel: BlockingChannel, updates: str
) -> None:
    place, key = make_place(channel)
    send(channel, updates, header(BODY_HEADER, text(place.encode())), b"")
    update = take(server, updates)
    with sent_on_and_on(brokers, BODIES.exchange.name, key, beginning()):
        began = time.monotonic()
        with pytest.raises(MessageRejected, match="body_missing"):
            _ = update.body
        assert time.monotonic() - began < SOON
    update.acknowledge()
    assert not queue_exists(brokers.broker_url("server"), place)


def test_a_run_is_retired_while_somebody_sends_on_and_on(
    brokers: Brokers, server: RabbitTransport, updates: str
) -> None:
    run = UPDATES.routing_key(updates)
    with sent_on_and_on(brokers, UPDATES.exchange.name, run, b"x"):
        began = time.monotonic()
        server.retire(run)
        assert time.monotonic() - began < SOON
    assert not queue_exists(brokers.broker_url("server"), updates)
