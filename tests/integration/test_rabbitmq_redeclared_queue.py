"""RabbitMQ 3.10 moves a subscription to a queue that was deleted and declared again, and then loses its messages."""

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from broker_config.brokers.topology import DEAD_LETTERS, tasks_queue
from broker_config.protocol.errors import BrokerUnavailable
from broker_config.transports.rabbitmq import consumer as rabbitmq_consumer
from broker_config.transports.rabbitmq.transport import RabbitTransport
from ops.local.services.process import wait_until
from tests.services import Service

SOON = 60.0


@pytest.fixture
def server(rabbitmq: Service) -> Iterator[RabbitTransport]:
    with closing(RabbitTransport(rabbitmq.url)) as transport:
        yield transport


@pytest.fixture
def worker(rabbitmq: Service) -> Iterator[RabbitTransport]:
    with closing(RabbitTransport(rabbitmq.url)) as transport:
        yield transport


def test_a_worker_that_waits_at_a_deleted_and_redeclared_queue_receives_its_tasks(
    server: RabbitTransport, worker: RabbitTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbitmq_consumer, "RESUBSCRIBE_SECONDS", 1.0)
    queue = tasks_queue(uuid.uuid4().hex)
    server.declare(queue, DEAD_LETTERS)
    assert worker.receive(queue, 0.3) is None
    server._session.queues.delete(queue)
    server.declare(queue)
    server.publish(queue, [b"task"])
    deadline, delivery = time.monotonic() + SOON, None
    while delivery is None and time.monotonic() < deadline:
        with suppress(BrokerUnavailable):  # or it notices that the queue was deleted, and asks again
            delivery = worker.receive(queue, 0.2)
    assert delivery is not None
    assert bytes(delivery.body) == b"task"
    delivery.acknowledge()


def test_replacing_the_channel_loses_no_message(
    server: RabbitTransport, worker: RabbitTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbitmq_consumer, "RESUBSCRIBE_SECONDS", 0.0)
    queue = tasks_queue(uuid.uuid4().hex)
    server.declare(queue, DEAD_LETTERS)
    got = []
    for number in range(20):
        assert worker.receive(queue, 0.01) is None
        server.publish(queue, [b"%d" % number])
        delivery = worker.receive(queue, SOON)
        assert delivery is not None
        got.append(int(bytes(delivery.body)))
        worker.receive(queue, 0.01)  # while it is held
        delivery.acknowledge()
    assert got == list(range(20))


def test_a_second_server_does_not_delete_a_queue_that_the_first_is_declaring(
    rabbitmq: Service, server: RabbitTransport, worker: RabbitTransport
) -> None:
    queue = tasks_queue(uuid.uuid4().hex)
    with ExitStack() as stack:
        second = stack.enter_context(closing(RabbitTransport(rabbitmq.url)))
        first = threading.Thread(target=server.declare, args=(queue, DEAD_LETTERS))
        first.start()
        assert wait_until(lambda: second.depth(queue) is not None, SOON)
        assert worker.receive(queue, 0.0) is None
        assert worker.receive(queue, 0.1) is None  # subscribes
        second.declare(queue, DEAD_LETTERS)
        first.join()
    server.publish(queue, [b"task"])
    delivery = worker.receive(queue, rabbitmq_consumer.RESUBSCRIBE_SECONDS / 2)
    assert delivery is not None
    delivery.acknowledge()
