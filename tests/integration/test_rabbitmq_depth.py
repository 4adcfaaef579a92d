"""How many messages wait, asked of a real RabbitMQ: it disturbs nothing and needs no rights."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker_config.brokers.topology import DEAD_LETTERS, tasks_queue, updates_queue
from broker_config.protocol.errors import BrokerRefused
from broker_config.transports.rabbitmq.transport import RabbitTransport
from ops.local.services import Service
from ops.local.services.process import wait_until
from tests.integration.configured_brokers import configured_brokers

SOON = 60.0


@pytest.fixture
def transport(rabbitmq: Service) -> Iterator[RabbitTransport]:
    with closing(RabbitTransport(rabbitmq.url)) as transport:
        yield transport


def test_a_missing_queue_costs_neither_channels_nor_what_is_held(transport: RabbitTransport) -> None:
    queue, nowhere = updates_queue(uuid.uuid4().hex), updates_queue(uuid.uuid4().hex)
    transport.declare(queue)
    for body in (b"held", b"waits"):
        transport.publish(queue, [body])
    held = transport.receive(queue, SOON)
    assert held is not None
    publishing = transport._outlet._channel
    for _ in range(3):
        assert transport.depth(nowhere) is None
        assert transport.depth(queue) == 1
    assert publishing is not None
    assert publishing.is_open
    assert transport._outlet._channel is publishing
    held.acknowledge()
    assert transport.depth(queue) == 1


def test_asking_again_and_again_opens_one_channel(transport: RabbitTransport) -> None:
    queue = updates_queue(uuid.uuid4().hex)
    transport.declare(queue)
    transport.depth(queue)
    channel = transport._plumb._channel
    for _ in range(5):
        assert transport.depth(queue) == 0
    assert transport._plumb._channel is channel


def test_a_site_needs_no_further_rights(tmp_path: Path) -> None:
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
        # And it is as locked out as before.
        with pytest.raises(BrokerRefused):
            north.receive(DEAD_LETTERS, 0.0)
