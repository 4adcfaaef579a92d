"""The model log on a real stream: chunks, segments, retention, killed writers."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from broker_config.brokers.topology import DEFAULT_SITE, lead_queue, models_queue, updates_queue
from broker_config.process.retry import RetryPolicy
from broker_config.protocol.chunks import Assembler
from broker_config.protocol.errors import BrokerUnavailable, MessageRejected, ModelMissing, QueueMissing
from broker_config.transports.rabbitmq import model_log
from broker_config.transports.rabbitmq.model_log import ModelLog
from broker_config.transports.rabbitmq.publisher import Headers, Publisher
from broker_config.transports.rabbitmq.queue_admin import route
from broker_config.transports.rabbitmq.stream_reader import StreamMessage, StreamReader
from broker_config.transports.rabbitmq.transport import RabbitTransport
from broker_config.transports.reconnecting import ReconnectingTransport
from ops.local.services.process import wait_until
from tests.integration.rabbitmq_direct import SOON, delete_queue, in_another_process, killed_during
from tests.services import Service

MODEL = 12_000_000
"""Several chunks; the smallest segment holds one and a half models"""


@pytest.fixture
def transport(rabbitmq: Service) -> Iterator[RabbitTransport]:
    transport = RabbitTransport(rabbitmq.url)
    yield transport
    transport.close()


@pytest.fixture
def run(transport: RabbitTransport) -> Iterator[str]:
    name = f"run-{uuid.uuid4().hex}"
    yield name
    transport.retire(name, [DEFAULT_SITE])


def weights(version: int, num_bytes: int = MODEL) -> bytes:
    return np.random.default_rng(version).bytes(num_bytes)


def test_kept_versions_are_read_across_segments_and_after_old_ones_were_dropped(
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


def test_a_stream_that_lost_its_binding_is_bound_again(
    rabbitmq: Service, transport: RabbitTransport, run: str
) -> None:
    """After a kill RabbitMQ may restore a stream without its bindings."""
    transport.append_model(run, 1, [weights(1)])
    queue = models_queue(run)

    def unbind() -> None:
        with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
            connection.channel().queue_unbind(queue, *route(queue))

    unbind()
    with pytest.raises(BrokerUnavailable):
        transport.append_model(run, 2, [weights(2)])
    assert transport.read_model(transport.append_model(run, 2, [weights(2)])) == weights(2)
    unbind()
    with closing(RabbitTransport(rabbitmq.url)) as successor:
        assert successor.read_model(successor.append_model(run, 3, [weights(3)])) == weights(3)


def test_a_kept_version_that_the_stream_dropped_is_missing(
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


def test_a_reader_waits_for_a_replica_that_is_behind_but_not_for_ever(
    transport: RabbitTransport, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport.append_model(run, 1, [weights(1)])
    behind, last = transport._models._last(run), ModelLog._last
    address = transport.append_model(run, 2, [weights(2)])
    reads: list[str] = []

    def lagging(log: ModelLog, run: str) -> StreamMessage | None:
        reads.append(run)
        return behind if len(reads) < 3 else last(log, run)

    monkeypatch.setattr(ModelLog, "_last", lagging)
    assert transport.read_model(address) == weights(2)
    assert len(reads) == 3
    monkeypatch.setattr(ModelLog, "_last", lambda *_: behind)
    monkeypatch.setattr(model_log, "_BEHIND_SECONDS", 0.2)
    with pytest.raises(ModelMissing):
        transport.read_model(address)


def test_a_failed_read_leaves_no_open_channel_and_affects_nothing_else(
    transport: RabbitTransport, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = updates_queue(run)
    transport.declare(updates)
    transport.publish(updates, [b"held"])
    held = transport.receive(updates, SOON)
    assert held is not None
    address = transport.append_model(run, 1, [weights(1)])
    opened: list[BlockingChannel] = []
    subscribe = StreamReader.subscribe

    def recording(reader: StreamReader, queue: str, offset: int | str) -> None:
        opened.append(reader.channel)
        subscribe(reader, queue, offset)

    monkeypatch.setattr(StreamReader, "subscribe", recording)
    with monkeypatch.context() as patch:
        patch.setattr(Assembler, "add", refusing)
        for _ in range(3):
            with pytest.raises(MessageRejected):
                transport.read_model(address)
    end, *chunks = opened[::2] + opened[1::2]
    assert end.is_open
    assert not any(channel.is_open for channel in chunks[2:])
    del opened[:]
    for _ in range(3):
        assert transport.read_model(address) == weights(1)
    assert len({id(channel) for channel in opened}) == 2
    held.acknowledge()


def refusing(assembler: Assembler, frame: bytes) -> None:
    raise MessageRejected("digest", "a test's chunk")


def test_a_model_log_that_is_deleted_during_a_read_is_missing_in_the_next(
    rabbitmq: Service, transport: RabbitTransport, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = transport.append_model(run, 1, [weights(1, 40_000_000)])
    request = StreamReader.request

    def deleting(reader: StreamReader, num_left: int) -> None:
        if num_left == 10:
            delete_queue(rabbitmq.url, models_queue(run))
        request(reader, num_left)

    monkeypatch.setattr(StreamReader, "request", deleting)
    with pytest.raises(BrokerUnavailable, match="ask again"):
        transport.read_model(address)
    with pytest.raises(ModelMissing):
        transport.read_model(address)


def test_a_writer_that_was_killed_leaves_the_earlier_versions(
    rabbitmq: Service, transport: RabbitTransport, run: str
) -> None:
    first = transport.append_model(run, 1, [weights(1)])
    code = f"""
from broker_config.transports import connect_transport
connect_transport({rabbitmq.url!r}).append_model({run!r}, 2, [bytes({MODEL})])
"""
    killed_during(code, "broker_config.transports.rabbitmq.publisher:Publisher.publish", 2)
    assert transport.read_model(first) == weights(1)
    second = transport.append_model(run, 2, [weights(2)])
    assert transport.read_model(first) == weights(1)
    assert transport.read_model(second) == weights(2)


# What a reader knows from the body before


def test_a_reader_of_one_version_after_another_asks_for_the_next_before_it_looks_at_the_end_of_the_log(
    rabbitmq: Service, transport: RabbitTransport, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = read_offsets(monkeypatch)
    with closing(RabbitTransport(rabbitmq.url)) as reader:
        for version in range(12):
            address = transport.append_model(run, version, [weights(version)], entries=2)
            extra = transport.append_model(run, version, [b"extra"], entry="extra", entries=2)
            del offsets[:]
            assert reader.read_model(address) == weights(version)
            assert bytes(reader.read_model(extra)) == b"extra"
            assert [offset == "last" for offset in offsets] == [version == 0, version > 0, False, True], (
                offsets
            )


def test_a_version_far_after_the_one_before_is_found_from_the_end_of_the_log(
    rabbitmq: Service, transport: RabbitTransport, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = [transport.append_model(run, version, [weights(version)], kept=8) for version in range(6)]
    offsets = read_offsets(monkeypatch)
    with closing(RabbitTransport(rabbitmq.url)) as reader:
        for version, looks_first in ((0, True), (5, True), (4, True), (5, False)):
            del offsets[:]
            assert reader.read_model(addresses[version]) == weights(version)
            assert [offset == "last" for offset in offsets] == [looks_first, not looks_first]


def test_a_version_that_was_written_anew_is_read_as_it_is_now_at_its_earlier_address_too(
    rabbitmq: Service, transport: RabbitTransport, run: str
) -> None:
    first = transport.append_model(run, 1, [weights(1)])
    second = transport.append_model(run, 2, [weights(2)])
    transport.append_model(run, 2, [weights(3)])
    with closing(RabbitTransport(rabbitmq.url)) as reader:
        assert reader.read_model(first) == weights(1)
        assert reader.read_model(second) == weights(3)


def test_reading_opens_no_channel_for_every_version(
    rabbitmq: Service, transport: RabbitTransport, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[BlockingChannel] = []
    subscribe = StreamReader.subscribe

    def recording(reader: StreamReader, queue: str, offset: int | str) -> None:
        opened.append(reader.channel)
        subscribe(reader, queue, offset)

    monkeypatch.setattr(StreamReader, "subscribe", recording)
    with closing(RabbitTransport(rabbitmq.url)) as reader:
        for version in range(6):
            address = transport.append_model(run, version, [b"one chunk"])
            assert bytes(reader.read_model(address)) == b"one chunk"
        theirs = [
            channel for channel in opened if channel.connection is reader._session.receiving._connection
        ]
    assert len(theirs) == 12
    assert len({id(channel) for channel in theirs}) == 2


def test_what_is_known_of_a_log_that_was_made_anew_misleads_no_reader(
    rabbitmq: Service, transport: RabbitTransport, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_log, "_EMPTY_SECONDS", 1.0)
    for leading, following in ((0, 4), (4, 0)):
        for version in range(leading):
            transport.append_model(run, 100 + version, [b"one chunk"])
        address = transport.append_model(run, 1, [weights(1)])
        with closing(RabbitTransport(rabbitmq.url)) as reader:
            assert reader.read_model(address) == weights(1)
            transport.retire(run, [DEFAULT_SITE])
            for version in range(following):
                transport.append_model(run, 200 + version, [b"one chunk"])
            others = [transport.append_model(run, version, [weights(version)]) for version in (7, 8)]
            for other in others:
                assert reader.read_model(other) == weights(other.version)
        transport.retire(run, [DEFAULT_SITE])


# What the leader knows about the end of its log


def read_offsets(monkeypatch: pytest.MonkeyPatch) -> list[int | str]:
    """The offsets from which any reader starts from now on."""
    offsets: list[int | str] = []
    subscribe = StreamReader.subscribe

    def recording(reader: StreamReader, queue: str, offset: int | str) -> None:
        offsets.append(offset)
        subscribe(reader, queue, offset)

    monkeypatch.setattr(StreamReader, "subscribe", recording)
    return offsets


def test_the_leader_reads_the_end_of_its_log_once_and_other_writers_every_time(
    rabbitmq: Service, transport: RabbitTransport, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert transport.acquire_leadership(run, SOON)
    transport.append_model(run, 1, [weights(1)])
    offsets = read_offsets(monkeypatch)
    addresses = [transport.append_model(run, version, [weights(version)]) for version in (2, 3)]
    assert offsets == []
    with closing(RabbitTransport(rabbitmq.url)) as other:
        assert [other.read_model(address) for address in addresses] == [weights(2), weights(3)]
        del offsets[:]
        for version in (4, 5):
            other.append_model(run, version, [weights(version)])
        assert offsets == ["last", "last"]


def test_versions_of_another_leader_between_two_of_ours_are_kept(
    rabbitmq: Service, transport: RabbitTransport, run: str
) -> None:
    assert transport.acquire_leadership(run, SOON)
    for version in (1, 2):
        transport.append_model(run, version, [weights(version)], kept=4)
    # The server that lost its leadership may not know it yet, and continues.
    delete_queue(rabbitmq.url, lead_queue(run))
    assert wait_until(lambda: transport._elections[run].term() is None, SOON)
    with closing(RabbitTransport(rabbitmq.url)) as other:
        assert other.acquire_leadership(run, SOON)
        theirs = other.append_model(run, 3, [weights(3)], kept=4)
        ours = transport.append_model(run, 4, [weights(4)], kept=4)
        for reader in (transport, other):
            assert reader.read_model(theirs) == weights(3)
            assert reader.read_model(ours) == weights(4)
    # In a new term it does not use what it knew in the earlier one.
    assert transport.acquire_leadership(run, SOON)
    transport.append_model(run, 5, [weights(5)], kept=4)
    assert transport.read_model(theirs) == weights(3)


def test_after_an_error_the_leader_reads_the_end_again(
    transport: RabbitTransport, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert transport.acquire_leadership(run, SOON)
    first = transport.append_model(run, 1, [weights(1)])
    publish, sent = Publisher.publish, []
    with monkeypatch.context() as patch:

        def losing(publisher: Publisher, queue: str, body: bytes, headers: Headers | None = None) -> None:
            publish(publisher, queue, body, headers)
            sent.append(body)
            if len(sent) == 2:
                raise BrokerUnavailable("a lost confirm")

        patch.setattr(Publisher, "publish", losing)
        with pytest.raises(BrokerUnavailable):
            transport.append_model(run, 2, [weights(2)])
    offsets = read_offsets(monkeypatch)
    second = transport.append_model(run, 2, [weights(2)])
    assert offsets == ["last"]
    assert transport.read_model(first) == weights(1)
    assert transport.read_model(second) == weights(2)


def test_versions_are_read_after_two_concurrent_writers(
    rabbitmq: Service, transport: RabbitTransport, run: str
) -> None:
    assert transport.acquire_leadership(run, SOON)
    ours = [transport.append_model(run, 1, [weights(1)])]
    with closing(RabbitTransport(rabbitmq.url)) as other:
        for version in (7, 8):
            other.append_model(run, version, [weights(version)])
    ours.append(transport.append_model(run, 2, [weights(2)]))
    assert [transport.read_model(address) for address in ours] == [weights(1), weights(2)]


def test_reading_a_large_model_needs_little_more_memory_than_the_model(
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


def test_appending_is_repeated_while_the_stream_cannot_be_written_to(
    rabbitmq: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, publish, failures = uuid.uuid4().hex, Publisher.publish, ["once"]

    def not_yet(publisher: Publisher, queue: str, *message: Any) -> None:
        if queue == models_queue(run) and failures:
            failures.pop()
            raise QueueMissing("no leader")
        publish(publisher, queue, *message)

    with closing(ReconnectingTransport(lambda: RabbitTransport(rabbitmq.url), RetryPolicy())) as transport:
        transport.append_model(run, 1, [b"one"])
        monkeypatch.setattr(Publisher, "publish", not_yet)
        address = transport.append_model(run, 2, [b"two"])
        assert failures == []
        assert bytes(transport.read_model(address)) == b"two"
        transport.retire(run, [DEFAULT_SITE])
