"""A series of messages to a real RabbitMQ: in order, all confirmed, and an error for each that is not."""

import uuid
from collections.abc import Iterator
from contextlib import closing

import pika
import pytest

from broker_config.brokers.topology import updates_queue
from broker_config.protocol.errors import FedILError, QueueFull, QueueMissing
from broker_config.transports.rabbitmq import pipelined_publisher
from broker_config.transports.rabbitmq.connection import Connection
from broker_config.transports.rabbitmq.pipelined_publisher import PipelinedPublisher
from broker_config.transports.rabbitmq.publisher import Publisher
from broker_config.transports.rabbitmq.queue_admin import route
from broker_config.transports.rabbitmq.transport import RabbitTransport
from broker_config.transports.rabbitmq.url import parse_url
from tests.integration.rabbitmq_direct import SOON
from tests.services import Service

MANY = [b"%d" % number for number in range(50)]


@pytest.fixture
def publisher(rabbitmq: Service) -> Iterator[Publisher]:
    with closing(Connection(parse_url(rabbitmq.url), "publishing", reconnects=True)) as connection:
        yield Publisher(connection)


@pytest.fixture
def transport(rabbitmq: Service) -> Iterator[RabbitTransport]:
    with closing(RabbitTransport(rabbitmq.url)) as transport:
        yield transport


@pytest.fixture
def queue(transport: RabbitTransport) -> str:
    name = updates_queue(uuid.uuid4().hex)
    transport.declare(name)
    return name


def send(publisher: Publisher, queue: str, bodies: list[bytes]) -> None:
    publisher.publish_all(queue, bodies, "update")


def received(transport: RabbitTransport, queue: str, count: int) -> list[bytes]:
    bodies = []
    for _ in range(count):
        delivery = transport.receive(queue, SOON)
        assert delivery is not None
        bodies.append(bytes(delivery.body))
        delivery.acknowledge()
    return bodies


def test_all_messages_arrive_in_order(publisher: Publisher, transport: RabbitTransport, queue: str) -> None:
    send(publisher, queue, MANY)
    assert publisher.bytes_sent["update"] == len(b"".join(MANY))
    assert received(transport, queue, len(MANY)) == MANY


def test_several_messages_are_unconfirmed_and_none_at_the_end(
    publisher: Publisher, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unconfirmed: list[int] = []
    publish, wait = PipelinedPublisher.publish, PipelinedPublisher.wait_for_confirms

    def counting_publish(pipeline: PipelinedPublisher, *message: object) -> None:
        publish(pipeline, *message)  # type: ignore[arg-type]
        unconfirmed.append(len(pipeline._unconfirmed))

    def counting_wait(pipeline: PipelinedPublisher) -> None:
        wait(pipeline)
        unconfirmed.append(len(pipeline._unconfirmed))

    monkeypatch.setattr(PipelinedPublisher, "publish", counting_publish)
    monkeypatch.setattr(PipelinedPublisher, "wait_for_confirms", counting_wait)
    send(publisher, queue, [bytes(100_000)] * 40)
    assert 1 < max(unconfirmed) + 1 <= pipelined_publisher._MAX_UNCONFIRMED
    assert unconfirmed[-1] == 0


def test_without_pikas_private_names_each_message_is_confirmed_before_the_next(
    publisher: Publisher,
    transport: RabbitTransport,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipelined_publisher, "start_confirms", lambda *_: None)
    send(publisher, queue, MANY)
    assert received(transport, queue, len(MANY)) == MANY
    with pytest.raises(QueueMissing):
        send(publisher, updates_queue("unknown"), MANY)


def test_the_error_for_a_missing_queue_names_it_and_the_next_publish_works(
    publisher: Publisher, transport: RabbitTransport, queue: str
) -> None:
    for _ in range(2):
        with pytest.raises(QueueMissing, match=r"fedil\.updates\.default\.unknown"):
            send(publisher, updates_queue("unknown"), MANY)
        send(publisher, queue, MANY[:3])
        assert received(transport, queue, 3) == MANY[:3]


def test_a_message_that_the_broker_nacks_is_an_error(rabbitmq: Service, publisher: Publisher) -> None:
    run = uuid.uuid4().hex
    small = {"x-max-length": 2, "x-overflow": "reject-publish"}
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare(route(updates_queue(run))[0], "direct", durable=True)
        channel.queue_declare(updates_queue(run), durable=True, arguments=small)
        channel.queue_bind(updates_queue(run), *route(updates_queue(run)))
        with pytest.raises(QueueFull, match="takes no message"):
            send(publisher, updates_queue(run), MANY)
        channel.queue_purge(updates_queue(run))
        send(publisher, updates_queue(run), MANY[:1])
        channel.queue_delete(updates_queue(run))


def test_an_error_of_the_caller_leaves_no_unconfirmed_message(
    publisher: Publisher, transport: RabbitTransport, queue: str
) -> None:
    def breaking() -> Iterator[bytes]:
        yield b"first"
        raise FedILError("no second")

    with pytest.raises(FedILError, match="no second"):
        publisher.publish_all(queue, breaking(), "update")
    send(publisher, queue, [b"next"])
    assert received(transport, queue, 2) == [b"first", b"next"]
