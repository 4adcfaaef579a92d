"""TTLs and expiry of queues: an expired task is dead-lettered, and nothing expires within a week."""

import time
import uuid
from collections.abc import Iterator
from contextlib import closing

import pika
import pytest

from broker_config.brokers.topology import (
    BODIES,
    DEAD,
    DEAD_LETTERS,
    LEAD,
    QUEUE_KINDS,
    TASKS,
    UPDATES,
    tasks_queue,
)
from broker_config.transports.rabbitmq.delivery import RabbitDelivery
from broker_config.transports.rabbitmq.transport import RabbitTransport
from tests.integration.rabbitmq_direct import SOON
from tests.services import Service

TTL_SECONDS, NOTHING = 3.0, 0.3
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def transport(rabbitmq: Service) -> Iterator[RabbitTransport]:
    with closing(RabbitTransport(rabbitmq.url)) as transport:
        yield transport


@pytest.fixture
def queue(rabbitmq: Service, transport: RabbitTransport) -> str:
    """A task queue with a TTL of some seconds instead of a week."""
    name = tasks_queue(uuid.uuid4().hex)
    transport.declare(DEAD_LETTERS)
    arguments = {**TASKS.arguments, "x-message-ttl": round(1000 * TTL_SECONDS)}
    exchange = TASKS.exchange_of(name)
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments=arguments)
        channel.exchange_declare(exchange.name, exchange.type, durable=True)
        channel.queue_bind(name, exchange.name, TASKS.routing_key(name))
    return name


def take(transport: RabbitTransport, queue: str) -> RabbitDelivery:
    delivery = transport.receive(queue, SOON)
    assert delivery is not None
    return delivery


def dead_letter(transport: RabbitTransport, body: bytes) -> RabbitDelivery:
    while True:
        letter = take(transport, DEAD_LETTERS)
        letter.acknowledge()
        if bytes(letter.body) == body:
            return letter


def test_an_expired_task_is_dead_lettered_with_its_reason(transport: RabbitTransport, queue: str) -> None:
    body = uuid.uuid4().bytes
    transport.publish(queue, [body])
    letter = dead_letter(transport, body)
    assert (letter.reason, letter.sender) == ("expired", "guest")
    assert transport.receive(queue, NOTHING) is None


def test_an_unacknowledged_task_does_not_expire(transport: RabbitTransport, queue: str) -> None:
    body = uuid.uuid4().bytes
    transport.publish(queue, [body])
    held = take(transport, queue)
    time.sleep(2 * TTL_SECONDS)
    held.acknowledge()
    assert transport.receive(queue, NOTHING) is None
    while (letter := transport.receive(DEAD_LETTERS, NOTHING)) is not None:
        assert bytes(letter.body) != body
        letter.acknowledge()


def test_a_requeued_task_has_its_full_ttl_again(
    rabbitmq: Service, transport: RabbitTransport, queue: str
) -> None:
    body = uuid.uuid4().bytes
    transport.publish(queue, [body])
    held = take(transport, queue)
    with closing(RabbitTransport(rabbitmq.url)) as another:
        time.sleep(1.5 * TTL_SECONDS)
        held.requeue()
        again = take(another, queue)
        assert (bytes(again.body), again.redelivered) == (body, True)
        again.acknowledge()


def test_an_expired_task_of_a_lost_worker_is_dead_lettered(
    rabbitmq: Service, transport: RabbitTransport, queue: str
) -> None:
    body = uuid.uuid4().bytes
    transport.publish(queue, [body])
    with closing(RabbitTransport(rabbitmq.url)) as lost:
        take(lost, queue)
        time.sleep(1.5 * TTL_SECONDS)
    assert dead_letter(transport, body).reason == "expired"


def test_nothing_expires_within_a_week() -> None:
    lifetimes = {
        kind.name: min(
            int(value) for name, value in kind.options.items() if name in ("x-expires", "x-message-ttl")
        )
        for kind in QUEUE_KINDS
        if {"x-expires", "x-message-ttl"} & kind.options.keys()
    }
    assert lifetimes.keys() == {TASKS.name, UPDATES.name, LEAD.name, BODIES.name, DEAD.name}
    assert min(lifetimes.values()) >= 7 * DAY_MS
    assert lifetimes[UPDATES.name] == 30 * DAY_MS
    # A body outlives the dead letters that refer to it, and an expired task is dead-lettered.
    assert lifetimes[BODIES.name] >= 2 * lifetimes[DEAD.name]
    assert TASKS.options["x-dead-letter-exchange"] == DEAD.exchange.name
