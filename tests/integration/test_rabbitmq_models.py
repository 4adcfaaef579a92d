"""The model log on a real stream: chunks, segments, retention, dead writers."""

import uuid
from collections.abc import Iterator

import numpy as np
import pika
import pytest

from broker_config.errors import ModelMissing
from broker_config.topology import models_queue
from broker_config.transports.rabbitmq import RabbitTransport
from ops.services import Service
from tests.integration.rabbitmq_peeking import in_another_process, killed_in_the_middle

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


def test_a_writer_that_died_in_the_middle_leaves_what_was_there(
    rabbitmq: Service, transport: RabbitTransport, run: str
) -> None:
    first = transport.append_model(run, 1, [weights(1)])
    code = f"""
from broker_config.transports import connect_transport
connect_transport({rabbitmq.url!r}).append_model({run!r}, 2, [bytes({MODEL})])
"""
    killed_in_the_middle(code, "broker_config.transports.rabbitmq_outlet:Outlet.put", 2)
    assert transport.read_model(first) == weights(1)
    second = transport.append_model(run, 2, [weights(2)])
    assert transport.read_model(first) == weights(1)
    assert transport.read_model(second) == weights(2)


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
