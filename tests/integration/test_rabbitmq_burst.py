"""Many messages in a row to a real RabbitMQ: in order, all confirmed, and what goes wrong with one is said."""

import uuid
from collections.abc import Iterator
from contextlib import closing

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker_config.brokers.topology import UPDATES_EXCHANGE, updates_queue
from broker_config.protocol.errors import BrokerUnavailable, FedILError, QueueMissing
from broker_config.transports.rabbitmq import burst as rabbitmq_burst
from broker_config.transports.rabbitmq.burst import BENEATH, Burst
from broker_config.transports.rabbitmq.connection import Line
from broker_config.transports.rabbitmq.publisher import Outlet
from broker_config.transports.rabbitmq.transport import RabbitTransport
from broker_config.transports.rabbitmq.url import account_of
from ops.local.services import Service
from tests.integration.rabbitmq_peeking import SOON

MANY = [b"%d" % number for number in range(50)]


@pytest.fixture
def outlet(rabbitmq: Service) -> Iterator[Outlet]:
    with closing(Line(account_of(rabbitmq.url), "publishing", heals=True)) as line:
        yield Outlet(line)


@pytest.fixture
def transport(rabbitmq: Service) -> Iterator[RabbitTransport]:
    with closing(RabbitTransport(rabbitmq.url)) as transport:
        yield transport


@pytest.fixture
def queue(transport: RabbitTransport) -> str:
    name = updates_queue(uuid.uuid4().hex)
    transport.declare(name)
    return name


def send(outlet: Outlet, queue: str, bodies: list[bytes]) -> None:
    outlet.put_all(queue, bodies, "update")


def received(transport: RabbitTransport, queue: str, count: int) -> list[bytes]:
    bodies = []
    for _ in range(count):
        delivery = transport.receive(queue, SOON)
        assert delivery is not None
        bodies.append(bytes(delivery.body))
        delivery.acknowledge()
    return bodies


def test_pika_still_has_what_we_use() -> None:
    assert hasattr(BlockingChannel, BENEATH[1])
    assert BENEATH[0] in BlockingChannel.__init__.__code__.co_names


def test_all_arrive_in_their_order(outlet: Outlet, transport: RabbitTransport, queue: str) -> None:
    send(outlet, queue, MANY)
    assert outlet.bytes_sent["update"] == len(b"".join(MANY))
    assert received(transport, queue, len(MANY)) == MANY


def test_several_are_under_way_and_none_when_it_returns(
    outlet: Outlet, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: list[int] = []
    put, finish = Burst.put, Burst.finish

    def counting_put(burst: Burst, *message: object) -> None:
        put(burst, *message)  # type: ignore[arg-type]
        under_way.append(len(burst._under_way))

    def counting_finish(burst: Burst) -> None:
        finish(burst)
        under_way.append(len(burst._under_way))

    monkeypatch.setattr(Burst, "put", counting_put)
    monkeypatch.setattr(Burst, "finish", counting_finish)
    send(outlet, queue, [bytes(100_000)] * 40)
    assert 1 < max(under_way) + 1 <= rabbitmq_burst._WIDTH
    assert under_way[-1] == 0


@pytest.mark.parametrize("gone", BENEATH)
def test_without_pikas_inner_channel_it_works_as_well(
    outlet: Outlet,
    transport: RabbitTransport,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
    gone: str,
) -> None:
    monkeypatch.setattr(rabbitmq_burst, "BENEATH", tuple(f"{name}_{name == gone}" for name in BENEATH))
    send(outlet, queue, MANY)
    assert received(transport, queue, len(MANY)) == MANY
    with pytest.raises(QueueMissing):
        send(outlet, updates_queue("nobody"), MANY)


def test_a_missing_queue_is_named_and_the_next_is_served(
    outlet: Outlet, transport: RabbitTransport, queue: str
) -> None:
    for _ in range(2):
        with pytest.raises(QueueMissing, match=r"fedil\.updates\.nobody"):
            send(outlet, updates_queue("nobody"), MANY)
        send(outlet, queue, MANY[:3])
        assert received(transport, queue, 3) == MANY[:3]


def test_what_the_broker_does_not_take_is_said(rabbitmq: Service, outlet: Outlet) -> None:
    run = uuid.uuid4().hex
    small = {"x-max-length": 2, "x-overflow": "reject-publish"}
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        channel.queue_declare(updates_queue(run), durable=True, arguments=small)
        channel.queue_bind(updates_queue(run), UPDATES_EXCHANGE.name, run)
        with pytest.raises(BrokerUnavailable, match="could not take a message"):
            send(outlet, updates_queue(run), MANY)
        channel.queue_purge(updates_queue(run))
        send(outlet, updates_queue(run), MANY[:1])
        channel.queue_delete(updates_queue(run))


def test_who_cannot_make_the_next_message_leaves_nothing_under_way(
    outlet: Outlet, transport: RabbitTransport, queue: str
) -> None:
    def breaking() -> Iterator[bytes]:
        yield b"first"
        raise FedILError("no second")

    with pytest.raises(FedILError, match="no second"):
        outlet.put_all(queue, breaking(), "update")
    send(outlet, queue, [b"next"])
    assert received(transport, queue, 2) == [b"first", b"next"]
