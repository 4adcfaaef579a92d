"""Queue depths on a real RabbitMQ: reading them affects nothing else and needs no permissions."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker_config.brokers.topology import DEAD_LETTERS, tasks_queue, updates_queue
from broker_config.protocol.errors import BrokerRefused
from broker_config.transports.rabbitmq.transport import RabbitTransport
from ops.local.services.process import wait_until
from tests.integration.configured_brokers import configured_brokers
from tests.services import Service

SOON = 60.0


@pytest.fixture
def transport(rabbitmq: Service) -> Iterator[RabbitTransport]:
    with closing(RabbitTransport(rabbitmq.url)) as transport:
        yield transport


def test_the_depth_of_a_missing_queue_closes_no_other_channel(transport: RabbitTransport) -> None:
    queue, missing = updates_queue(uuid.uuid4().hex), updates_queue(uuid.uuid4().hex)
    transport.declare(queue)
    for body in (b"held", b"waits"):
        transport.publish(queue, [body])
    held = transport.receive(queue, SOON)
    assert held is not None
    publishing = transport._session.publisher._channel
    for _ in range(3):
        assert transport.depth(missing) is None
        assert transport.depth(queue) == 1
    assert publishing is not None
    assert publishing.is_open
    assert transport._session.publisher._channel is publishing
    held.acknowledge()
    assert transport.depth(queue) == 1


def test_repeated_depths_use_one_channel(transport: RabbitTransport) -> None:
    queue = updates_queue(uuid.uuid4().hex)
    transport.declare(queue)
    transport.depth(queue)
    channel = transport._depths._channel
    for _ in range(5):
        assert transport.depth(queue) == 0
    assert transport._depths._channel is channel


def test_a_site_needs_no_further_permissions(tmp_path: Path) -> None:
    with (
        configured_brokers(tmp_path, "north") as brokers,
        closing(RabbitTransport(brokers.broker_url("server"))) as server,
        closing(RabbitTransport(brokers.broker_url("site-north"))) as north,
    ):
        queue = tasks_queue("north")
        assert north.depth(queue) == 0
        server.publish(queue, [b"task"])
        assert wait_until(lambda: north.depth(queue) == 1, SOON)
        assert north.depth(DEAD_LETTERS) == 0
        # It still has no permission to read.
        with pytest.raises(BrokerRefused):
            north.receive(DEAD_LETTERS, 0.0)
