"""ReconnectingTransport on a broker whose connections can be cut."""

import pytest

from broker_config.process.retry import RetryPolicy
from broker_config.protocol.errors import (
    BrokerBlocked,
    BrokerRefused,
    BrokerUnavailable,
    MessageRejected,
    QueueMissing,
)
from broker_config.transports.interface import Buffers, Transport
from broker_config.transports.memory.broker import EmbeddedBroker
from broker_config.transports.memory.transport import MemoryTransport
from broker_config.transports.reconnecting import ReconnectingTransport

QUEUE = "fedil.tasks.here"


class Outage:
    """Connections to one broker. `cut` closes the last one and lets the next `refusals` attempts fail."""

    def __init__(self) -> None:
        self.broker = EmbeddedBroker()
        self.broker.declare([QUEUE])
        self.connections: list[MemoryTransport] = []
        self.refusals = 0

    def connect(self) -> Transport:
        if self.refusals:
            self.refusals -= 1
            raise BrokerUnavailable("no answer")
        self.connections.append(MemoryTransport(self.broker))
        return self.connections[-1]

    def cut(self, refusals: int = 1) -> None:
        self.connections[-1].close()
        self.refusals = refusals


@pytest.fixture
def outage() -> Outage:
    return Outage()


def reconnecting(outage: Outage) -> ReconnectingTransport:
    return ReconnectingTransport(outage.connect, RetryPolicy(seconds=30.0))


def test_a_publish_is_repeated_on_a_new_connection(outage: Outage) -> None:
    transport = reconnecting(outage)
    outage.cut()
    transport.publish(QUEUE, [b"task"])
    delivery = transport.receive(QUEUE, 5.0)
    assert delivery is not None
    assert bytes(delivery.body) == b"task"
    assert len(outage.connections) == 2


def test_a_message_settled_after_its_connection_was_lost_is_redelivered(outage: Outage) -> None:
    transport = reconnecting(outage)
    transport.publish(QUEUE, [b"task"])
    lost = transport.receive(QUEUE, 5.0)
    assert lost is not None
    outage.cut()
    lost.acknowledge()
    again = transport.receive(QUEUE, 5.0)
    assert again is not None
    assert (bytes(again.body), again.redelivered) == (b"task", True)


def test_other_errors_are_not_retried(outage: Outage) -> None:
    transport = reconnecting(outage)
    with pytest.raises(QueueMissing):
        transport.publish("fedil.tasks.nowhere", [b"task"])

    def refuse() -> Transport:
        raise BrokerRefused("wrong password")

    with pytest.raises(BrokerRefused):
        ReconnectingTransport(refuse, RetryPolicy())


def test_a_closed_transport_is_unavailable(outage: Outage) -> None:
    transport = reconnecting(outage)
    transport.close()
    with pytest.raises(BrokerUnavailable):
        transport.publish(QUEUE, [b"task"])


def test_a_blocked_broker_costs_neither_the_connection_nor_unacknowledged_messages(
    outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = reconnecting(outage)
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


def test_max_body_bytes_applies_to_every_connection(outage: Outage) -> None:
    transport = reconnecting(outage)
    assert transport.max_body_bytes == outage.connections[0].max_body_bytes
    transport.max_body_bytes = 4
    transport.publish(QUEUE, [b"12345"])
    for _ in range(2):
        delivery = transport.receive(QUEUE, 5.0)
        assert delivery is not None
        assert delivery.body_is_inline
        with pytest.raises(MessageRejected, match="too_large"):
            _ = delivery.body
        delivery.requeue()
        outage.cut()
    assert (transport.max_body_bytes, len(outage.connections)) == (4, 2)
    transport.max_body_bytes = 5
    delivery = transport.receive(QUEUE, 5.0)
    assert delivery is not None
    assert bytes(delivery.body) == b"12345"


def test_bytes_of_lost_connections_are_counted(outage: Outage) -> None:
    transport = reconnecting(outage)
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
