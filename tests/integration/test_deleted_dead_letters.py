"""Somebody deletes the queue of dead letters, and then there is one."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from broker_config.brokers.topology import DEAD_LETTERS, tasks_queue, updates_queue
from broker_config.process.retry import RetryPolicy
from broker_config.protocol.errors import BrokerUnavailable
from broker_config.transports import connect_transport
from broker_config.transports.interface import Delivery, Transport
from broker_config.transports.reconnecting import ReconnectingTransport
from tests.integration.configured_brokers import Brokers, configured_brokers
from tests.integration.rabbitmq_direct import SOON, delete_queue

UPDATES, NORTH = updates_queue("run"), tasks_queue("north")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with configured_brokers(tmp_path_factory.mktemp("brokers"), "north") as brokers:
        yield brokers


@pytest.fixture
def server(brokers: Brokers) -> Iterator[Transport]:
    with closing(connect_transport(brokers.broker_url("server"))) as transport:
        transport.declare(UPDATES, NORTH, DEAD_LETTERS)
        yield transport


def took(transport: Transport, queue: str) -> Delivery:
    delivery = transport.receive(queue, SOON)
    assert delivery is not None
    return delivery


def test_a_server_makes_it_again_and_loses_no_letter(brokers: Brokers, server: Transport) -> None:
    server.publish(UPDATES, [b"garbage"])
    bad = took(server, UPDATES)
    delete_queue(brokers.broker_url("server"), DEAD_LETTERS)
    bad.reject("odd")
    letter = took(server, DEAD_LETTERS)
    assert (bytes(letter.body), letter.reason) == (b"garbage", "odd")
    letter.acknowledge()
    assert server.receive(UPDATES, 0.0) is None


def test_a_site_may_not_and_gives_the_task_back_until_somebody_has(
    brokers: Brokers, server: Transport
) -> None:
    with closing(connect_transport(brokers.broker_url("site-north"))) as north:
        server.publish(NORTH, [b"poison"])
        task = took(north, NORTH)
        delete_queue(brokers.broker_url("server"), DEAD_LETTERS)
        with pytest.raises(BrokerUnavailable, match=f"{DEAD_LETTERS} is not there"):
            task.reject("odd")
        again = took(north, NORTH)
        server.declare(DEAD_LETTERS)
        again.reject("odd")
    letter = took(server, DEAD_LETTERS)
    assert (bytes(letter.body), letter.reason, letter.sender) == (b"poison", "odd", "site-north")
    letter.acknowledge()


def test_a_worker_lives_on_meanwhile(brokers: Brokers, server: Transport) -> None:
    url = brokers.broker_url("site-north")
    with closing(ReconnectingTransport(lambda: connect_transport(url), RetryPolicy())) as north:
        server.publish(NORTH, [b"poison"])
        task = took(north, NORTH)
        delete_queue(brokers.broker_url("server"), DEAD_LETTERS)
        task.reject("odd")  # as a participant does, which catches nothing here
        assert bytes(took(north, NORTH).body) == b"poison"
