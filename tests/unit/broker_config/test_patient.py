"""The transport that outlives its broker, on a broker that can be taken away."""

import threading
from collections.abc import Callable

import pytest

from broker_config.protocol.errors import (
    BrokerBlocked,
    BrokerRefused,
    BrokerUnavailable,
    MessageRejected,
    QueueMissing,
)
from broker_config.transports.interface import Buffers, Transport
from broker_config.transports.memory.transport import EmbeddedBroker, MemoryTransport
from broker_config.transports.reconnecting import GivenUp, Patience, PatientTransport

QUEUE = "fedil.tasks.here"


class Outage:
    """Connections to one broker, which `cut` ends; the next `refusals` attempts find nobody."""

    def __init__(self) -> None:
        self.broker = EmbeddedBroker()
        self.broker.declare([QUEUE])
        self.connections: list[MemoryTransport] = []
        self.refusals = 0

    def connect(self) -> Transport:
        if self.refusals:
            self.refusals -= 1
            raise BrokerUnavailable("nobody answers")
        self.connections.append(MemoryTransport(self.broker))
        return self.connections[-1]

    def cut(self, refusals: int = 1) -> None:
        self.connections[-1].close()
        self.refusals = refusals


@pytest.fixture
def outage() -> Outage:
    return Outage()


def patient(
    outage: Outage, stop: Callable[[], bool] = lambda: False, seconds: float = 30.0
) -> PatientTransport:
    return PatientTransport(outage.connect, Patience(seconds, stop))


def test_a_publish_is_repeated_on_a_new_connection(outage: Outage) -> None:
    transport = patient(outage)
    outage.cut()
    transport.publish(QUEUE, [b"task"])
    delivery = transport.receive(QUEUE, 5.0)
    assert delivery is not None
    assert bytes(delivery.body) == b"task"
    assert len(outage.connections) == 2


def test_settling_what_was_lost_with_its_connection_is_harmless_and_it_comes_again(outage: Outage) -> None:
    transport = patient(outage)
    transport.publish(QUEUE, [b"task"])
    lost = transport.receive(QUEUE, 5.0)
    assert lost is not None
    outage.cut()
    lost.acknowledge()
    again = transport.receive(QUEUE, 5.0)
    assert again is not None
    assert (bytes(again.body), again.redelivered) == (b"task", True)


def test_who_was_asked_to_stop_does_not_wait(outage: Outage) -> None:
    stop = threading.Event()
    transport = patient(outage, stop.is_set)
    outage.cut(refusals=1000)
    stop.set()
    with pytest.raises(GivenUp):
        transport.receive(QUEUE, 0.1)


def test_whoever_waits_can_tell_what_for(outage: Outage) -> None:
    told: list[str] = []
    transport = PatientTransport(outage.connect, Patience(30.0, tell=told.append))
    assert told == []
    outage.cut(refusals=2)
    transport.publish(QUEUE, [b"task"])
    assert len(told) >= 2
    assert all(told)


def test_patience_ends(outage: Outage) -> None:
    transport = patient(outage, seconds=0.3)
    outage.cut(refusals=1000)
    with pytest.raises(GivenUp):
        transport.publish(QUEUE, [b"task"])


def test_what_waiting_cannot_mend_is_said_at_once(outage: Outage) -> None:
    transport = patient(outage)
    with pytest.raises(QueueMissing):
        transport.publish("fedil.tasks.nowhere", [b"task"])

    def refuse() -> Transport:
        raise BrokerRefused("wrong password")

    with pytest.raises(BrokerRefused):
        PatientTransport(refuse, Patience())


def test_closed_is_closed(outage: Outage) -> None:
    transport = patient(outage)
    transport.close()
    with pytest.raises(BrokerUnavailable):
        transport.publish(QUEUE, [b"task"])


def test_a_broker_that_takes_no_messages_for_now_costs_no_connection_and_nothing_that_is_held(
    outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = patient(outage)
    transport.publish(QUEUE, [b"held"])
    held = transport.receive(QUEUE, 5.0)
    assert held is not None
    publish, blocked = outage.connections[-1].publish, [True, True]

    def publish_later(queue: str, body: Buffers) -> None:
        if blocked:
            blocked.pop()
            raise BrokerBlocked("a memory alarm")
        publish(queue, body)

    monkeypatch.setattr(outage.connections[-1], "publish", publish_later)
    transport.publish(QUEUE, [b"answer"])
    held.acknowledge()
    answer = transport.receive(QUEUE, 5.0)
    assert answer is not None
    assert (bytes(answer.body), len(outage.connections)) == (b"answer", 1)


def test_the_limit_of_bodies_holds_on_every_connection(outage: Outage) -> None:
    transport = patient(outage)
    assert transport.max_body_bytes == outage.connections[0].max_body_bytes
    transport.max_body_bytes = 4
    transport.publish(QUEUE, [b"12345"])
    for _ in range(2):
        delivery = transport.receive(QUEUE, 5.0)
        assert delivery is not None
        assert delivery.is_at_hand
        with pytest.raises(MessageRejected, match="too_large"):
            _ = delivery.body
        delivery.requeue()
        outage.cut()
    assert (transport.max_body_bytes, len(outage.connections)) == (4, 2)
    transport.max_body_bytes = 5
    delivery = transport.receive(QUEUE, 5.0)
    assert delivery is not None
    assert bytes(delivery.body) == b"12345"


def test_bytes_of_lost_connections_still_count(outage: Outage) -> None:
    transport = PatientTransport(outage.connect, Patience())
    transport.publish(QUEUE, [b"12345"])
    outage.cut()
    transport.publish(QUEUE, [b"678"])
    assert len(outage.connections) == 2
    assert transport.bytes_sent == {"task": 8}
    for _ in range(2):
        assert transport.receive(QUEUE, 1.0) is not None
    assert transport.bytes_received == {"task": 8}
    outage.cut()
    assert transport.depth(QUEUE) == 2
    assert transport.bytes_received == {"task": 8}
