"""The transports under test in the contract suites, and shared helpers. Add a new transport to BROKERS."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from broker_config.embedded.server import BrokerServer
from broker_config.transports import connect_transport
from broker_config.transports.interface import Delivery, Transport
from broker_config.transports.memory.broker import EmbeddedBroker
from broker_config.transports.memory.transport import MemoryTransport
from tests.memory_store import new_store
from tests.services import Service

Connect = Callable[[], Transport]
SOON = 60.0
"""Seconds within which an existing message must be delivered, also on a busy machine."""
NOTHING = 0.3
"""Seconds without a delivery after which a queue counts as empty."""


@contextmanager
def memory(_: pytest.FixtureRequest) -> Iterator[Connect]:
    broker = EmbeddedBroker()
    yield lambda: MemoryTransport(broker)


@contextmanager
def memory_socket(_: pytest.FixtureRequest) -> Iterator[Connect]:
    with (
        tempfile.TemporaryDirectory() as directory,
        BrokerServer(EmbeddedBroker(), new_store(), Path(directory) / "broker.sock") as server,
    ):
        yield lambda: connect_transport(server.url)


@contextmanager
def rabbitmq(request: pytest.FixtureRequest) -> Iterator[Connect]:
    service: Service = request.getfixturevalue("rabbitmq")
    yield lambda: connect_transport(service.url)


BROKERS: dict[str, Callable[[pytest.FixtureRequest], AbstractContextManager[Connect]]] = {
    "memory": memory,
    "memory-socket": memory_socket,
    "rabbitmq": rabbitmq,
}


def take(transport: Transport, queue: str | Sequence[str]) -> Delivery:
    delivery = transport.receive(queue, SOON)
    assert delivery is not None
    return delivery


def big_body(num_bytes: int) -> bytes:
    return np.random.default_rng(0).bytes(num_bytes)
