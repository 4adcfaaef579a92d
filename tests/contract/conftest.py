import uuid
from collections.abc import Iterator

import pytest

from broker_config.brokers.topology import DEAD_LETTERS
from broker_config.transports.interface import Transport
from tests.contract.transports import BROKERS, Connect


@pytest.fixture(params=BROKERS)
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    with BROKERS[request.param](request) as make:
        opened: list[Transport] = []

        def open_and_remember() -> Transport:
            opened.append(make())
            return opened[-1]

        yield open_and_remember
        for transport in opened:
            transport.close()


@pytest.fixture
def transport(connect: Connect) -> Transport:
    return connect()


@pytest.fixture
def queue(transport: Transport) -> str:
    name = f"fedil.tasks.{uuid.uuid4().hex}"
    transport.declare(name, DEAD_LETTERS)
    return name


@pytest.fixture
def run() -> str:
    return f"run-{uuid.uuid4().hex}"
