"""The model log on a real stream: chunks, segments, retention, dead writers."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker_config.brokers.topology import lead_queue, models_queue, updates_queue
from broker_config.process.retry import RetryPolicy
from broker_config.protocol.chunks import Assembler
from broker_config.protocol.errors import BrokerUnavailable, MessageRejected, ModelMissing, QueueMissing
from broker_config.transports.rabbitmq.publisher import Headers, Outlet, family_of
from broker_config.transports.rabbitmq.stream import _Tap
from broker_config.transports.rabbitmq.transport import RabbitTransport
from broker_config.transports.reconnecting import ReconnectingTransport
from ops.local.services import Service
from ops.local.services.process import wait_until
from tests.integration.rabbitmq_peeking import SOON, delete_queue, in_another_process, killed_in_the_middle

MODEL = 12_000_000
"""Several chunks; the smallest segment has room for one and a half"""


@pytest.fixture
def transport(rabbitmq: Service) -> Iterator[RabbitTransport]:
    transport = RabbitTransport(rabbitmq.url)
    yield transport
    transport.close()


@pytest.fixture
def run(transport: RabbitTransport) -> Iterator[str]:
    name = f"run-{uuid.uuid4().hex}"
    yield name
    transport.retire(name)


def weights(version: int, num_bytes: int = MODEL) -> bytes:
    return np.random.default_rng(version).bytes(num_bytes)


def test_every_version_is_found_across_segments_and_after_old_ones_were_dropped(
    transport: RabbitTransport, run: str
) -> None:
    addresses = []
    for version in range(12):
        addresses.append(transport.append_model(run, version, [weights(version)], kept=2))
        for kept in addresses[-2:]:
            assert transport.read_model(kept) == weights(kept.version)
    with pytest.raises(ModelMissing):
        transport.read_model(addresses[0])
    assert transport.bytes_sent["model"] >= 12 * MODEL
    assert transport.bytes_received["model"] >= 12 * MODEL


def test_a_stream_whose_binding_the_broker_lost_is_bound_again(
    rabbitmq: Service, transport: RabbitTransport, run: str
) -> None:
    """As after a kill: RabbitMQ restores streams late, and sometimes without their routes."""
    transport.append_model(run, 1, [weights(1)])
    queue = models_queue(run)
    family = family_of(queue)

    def unbind() -> None:
        with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
            connection.channel().queue_unbind(
                queue, family.exchange_of(queue).name, family.routing_key(queue)
            )

    unbind()
    with pytest.raises(BrokerUnavailable):
        transport.append_model(run, 2, [weights(2)])
    assert transport.read_model(transport.append_model(run, 2, [weights(2)])) == weights(2)
    unbind()
    with closing(RabbitTransport(rabbitmq.url)) as successor:
        assert successor.read_model(successor.append_model(run, 3, [weights(3)])) == weights(3)


def test_a_version_that_the_stream_dropped_is_missing_though_it_was_to_be_kept(
    rabbitmq: Service, transport: RabbitTransport, run: str
) -> None:
    too_small = {
        "x-queue-type": "stream",
        "x-max-length-bytes": 2 * MODEL,
        "x-stream-max-segment-size-bytes": MODEL // 2,
    }
    transport.declare()
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        channel.queue_declare(models_queue(run), durable=True, arguments=too_small)
        channel.queue_bind(models_queue(run), "fedil.models", run)
    addresses = [transport.append_model(run, version, [weights(version)], kept=8) for version in range(8)]
    with pytest.raises(ModelMissing):
        transport.read_model(addresses[0])
    assert transport.read_model(addresses[-1]) == weights(7)


def test_a_reading_that_failed_leaves_no_channel_behind_and_harms_nothing_else(
    transport: RabbitTransport, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = updates_queue(run)
    transport.declare(updates)
    transport.publish(updates, [b"held"])
    held = transport.receive(updates, SOON)
    assert held is not None
    address = transport.append_model(run, 1, [weights(1)])
    opened: list[BlockingChannel] = []
    begin = _Tap.begin

    def remembering(tap: _Tap, queue: str, offset: int | str) -> None:
        opened.append(tap._channel)
        begin(tap, queue, offset)

    monkeypatch.setattr(_Tap, "begin", remembering)
    with monkeypatch.context() as patch:
        patch.setattr(Assembler, "add", refusing)
        for _ in range(3):
            with pytest.raises(MessageRejected):
                transport.read_model(address)
    looking, *reading = opened[::2] + opened[1::2]
    assert looking.is_open
    assert not any(channel.is_open for channel in reading[2:])
    del opened[:]
    for _ in range(3):
        assert transport.read_model(address) == weights(1)
    assert len({id(channel) for channel in opened}) == 2
    held.acknowledge()


def refusing(assembler: Assembler, frame: bytes) -> None:
    raise MessageRejected("digest", "a test's chunk")


def test_a_model_log_that_is_deleted_under_a_reader_is_missing_when_asked_again(
    rabbitmq: Service, transport: RabbitTransport, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = transport.append_model(run, 1, [weights(1, 40_000_000)])
    ask_for = _Tap.ask_for

    def deleting(tap: _Tap, num_left: int, taken: Any) -> None:
        if num_left == 10:
            delete_queue(rabbitmq.url, models_queue(run))
        ask_for(tap, num_left, taken)

    monkeypatch.setattr(_Tap, "ask_for", deleting)
    with pytest.raises(BrokerUnavailable, match="ask again"):
        transport.read_model(address)
    with pytest.raises(ModelMissing):
        transport.read_model(address)


def test_a_writer_that_died_in_the_middle_leaves_what_was_there(
    rabbitmq: Service, transport: RabbitTransport, run: str
) -> None:
    first = transport.append_model(run, 1, [weights(1)])
    code = f"""
from broker_config.transports import connect_transport
connect_transport({rabbitmq.url!r}).append_model({run!r}, 2, [bytes({MODEL})])
"""
    killed_in_the_middle(code, "broker_config.transports.rabbitmq.publisher:Outlet.put", 2)
    assert transport.read_model(first) == weights(1)
    second = transport.append_model(run, 2, [weights(2)])
    assert transport.read_model(first) == weights(1)
    assert transport.read_model(second) == weights(2)


# What the leader remembers of its own log


def looks(monkeypatch: pytest.MonkeyPatch) -> list[int | str]:
    """The offsets from which anybody reads a log from now on."""
    offsets: list[int | str] = []
    begin = _Tap.begin

    def remembering(tap: _Tap, queue: str, offset: int | str) -> None:
        offsets.append(offset)
        begin(tap, queue, offset)

    monkeypatch.setattr(_Tap, "begin", remembering)
    return offsets


def test_the_leader_looks_at_its_log_once_and_whoever_does_not_lead_every_time(
    rabbitmq: Service, transport: RabbitTransport, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert transport.acquire_leadership(run, SOON)
    transport.append_model(run, 1, [weights(1)])
    offsets = looks(monkeypatch)
    addresses = [transport.append_model(run, version, [weights(version)]) for version in (2, 3)]
    assert offsets == []
    with closing(RabbitTransport(rabbitmq.url)) as other:
        assert [other.read_model(address) for address in addresses] == [weights(2), weights(3)]
        del offsets[:]
        for version in (4, 5):
            other.append_model(run, version, [weights(version)])
        assert offsets == ["last", "last"]


def test_another_leader_that_wrote_between_two_of_our_versions_is_not_forgotten(
    rabbitmq: Service, transport: RabbitTransport, run: str
) -> None:
    assert transport.acquire_leadership(run, SOON)
    for version in (1, 2):
        transport.append_model(run, version, [weights(version)], kept=4)
    # Whoever lost the lead may not know it yet, and goes on.
    delete_queue(rabbitmq.url, lead_queue(run))
    assert wait_until(lambda: transport._leads[run].hold() is None, SOON)
    with closing(RabbitTransport(rabbitmq.url)) as other:
        assert other.acquire_leadership(run, SOON)
        theirs = other.append_model(run, 3, [weights(3)], kept=4)
        ours = transport.append_model(run, 4, [weights(4)], kept=4)
        for reader in (transport, other):
            assert reader.read_model(theirs) == weights(3)
            assert reader.read_model(ours) == weights(4)
    # And whoever leads again does not go on from what it knew then.
    assert transport.acquire_leadership(run, SOON)
    transport.append_model(run, 5, [weights(5)], kept=4)
    assert transport.read_model(theirs) == weights(3)


def test_after_trouble_the_leader_looks_again(
    transport: RabbitTransport, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert transport.acquire_leadership(run, SOON)
    first = transport.append_model(run, 1, [weights(1)])
    put, sent = Outlet.put, []
    with monkeypatch.context() as patch:

        def losing(outlet: Outlet, queue: str, body: bytes, headers: Headers | None = None) -> None:
            put(outlet, queue, body, headers)
            sent.append(body)
            if len(sent) == 2:
                raise BrokerUnavailable("a lost confirm")

        patch.setattr(Outlet, "put", losing)
        with pytest.raises(BrokerUnavailable):
            transport.append_model(run, 2, [weights(2)])
    offsets = looks(monkeypatch)
    second = transport.append_model(run, 2, [weights(2)])
    assert offsets == ["last"]
    assert transport.read_model(first) == weights(1)
    assert transport.read_model(second) == weights(2)


def test_versions_are_found_where_two_have_written_without_knowing_of_each_other(
    rabbitmq: Service, transport: RabbitTransport, run: str
) -> None:
    assert transport.acquire_leadership(run, SOON)
    ours = [transport.append_model(run, 1, [weights(1)])]
    with closing(RabbitTransport(rabbitmq.url)) as other:
        for version in (7, 8):
            other.append_model(run, version, [weights(version)])
    ours.append(transport.append_model(run, 2, [weights(2)]))
    assert [transport.read_model(address) for address in ours] == [weights(1), weights(2)]


def test_reading_a_big_model_needs_little_more_memory_than_the_model(
    rabbitmq: Service, transport: RabbitTransport, run: str
) -> None:
    num_bytes, spare = 200_000_000, 50_000_000
    address = transport.append_model(run, 1, [bytes(num_bytes)])
    code = f"""
from pathlib import Path
from broker_config.transports import connect_transport
from broker_config.transports.interface import ModelAddress
def kib(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
transport = connect_transport({rabbitmq.url!r})
before = kib("VmRSS")
assert len(transport.read_model({address!r})) == {num_bytes}
print((kib("VmHWM") - before) * 1024)
transport.close()
"""
    assert int(in_another_process(code)) < num_bytes + spare


def test_a_stream_that_cannot_be_written_to_yet_is_tried_again(
    rabbitmq: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, put, failures = uuid.uuid4().hex, Outlet.put, ["once"]

    def not_yet(outlet: Outlet, queue: str, *about: Any) -> None:
        if queue == models_queue(run) and failures:
            failures.pop()
            raise QueueMissing("no leader")
        put(outlet, queue, *about)

    with closing(ReconnectingTransport(lambda: RabbitTransport(rabbitmq.url), RetryPolicy())) as transport:
        transport.append_model(run, 1, [b"one"])
        monkeypatch.setattr(Outlet, "put", not_yet)
        address = transport.append_model(run, 2, [b"two"])
        assert failures == []
        assert bytes(transport.read_model(address)) == b"two"
        transport.retire(run)
