"""A model of 26 MB to RabbitMQ and back, against bare pika with confirms at whatever suits that best.

Both sides read as much at a time. Reading is measured against a stream, as the model log is one: its messages stay for
the next reader. What pika gets from a classic queue, where every message has one reader, is told beside it: RabbitMQ
takes a third of the processor time for that.
"""

import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pika

from broker_config.brokers.topology import DEFAULT_SITE
from broker_config.transports.interface import ModelAddress
from broker_config.transports.rabbitmq.pika_private import read_large_pieces
from broker_config.transports.rabbitmq.transport import RabbitTransport
from tests.services import rabbitmq_service

BAR, BAR_APPEND = 0.9, 0.7
MODEL_BYTES = 26_310_000
CHUNK_MB = (1, 2, 4, 8, 16)
TRIALS, ROUNDS = 3, 64
LEAD_SECONDS = 20.0
SETTLE_SECONDS = 0.25
QUEUE_TYPES = ("stream", "classic")
Times = dict[str, list[float]]


@dataclass(frozen=True)
class Way:
    """How bare pika sends a model."""

    queue_type: str
    chunk_mb: int


class Bare:
    """What a careful beginner would write: persistent, mandatory, a confirm for each chunk, no digests."""

    def __init__(self, url: str, body: bytes) -> None:
        self._publishing, self._consuming = (
            pika.BlockingConnection(pika.URLParameters(url)) for _ in range(2)
        )
        self._channel = self._publishing.channel()
        self._channel.confirm_delivery()
        self._chunks = {
            mb: [body[at : at + mb * 10**6] for at in range(0, len(body), mb * 10**6)] for mb in CHUNK_MB
        }

    def publish(self, way: Way) -> tuple[str, float]:
        queue = f"bare-{uuid.uuid4().hex}"
        self._channel.queue_declare(queue, durable=True, arguments={"x-queue-type": way.queue_type})
        started = time.perf_counter()
        for chunk in self._chunks[way.chunk_mb]:
            self._channel.basic_publish(
                "", queue, chunk, pika.BasicProperties(delivery_mode=2), mandatory=True
            )
        return queue, time.perf_counter() - started

    def consume(self, way: Way, queue: str) -> float:
        """The chunks go back afterwards, so that they can be read again."""
        chunks: list[bytes] = []
        offset = {"x-stream-offset": "first"} if way.queue_type == "stream" else None
        started = time.perf_counter()
        channel = self._consuming.channel()
        channel.basic_qos(prefetch_count=len(self._chunks[way.chunk_mb]))
        channel.basic_consume(queue, lambda *message: chunks.append(message[3]), arguments=offset)
        while len(chunks) < len(self._chunks[way.chunk_mb]):
            self._consuming.process_data_events(1.0)
        body = b"".join(chunks)
        seconds = time.perf_counter() - started
        channel.close()
        assert len(body) == MODEL_BYTES
        return seconds

    def delete(self, queue: str) -> None:
        self._channel.queue_delete(queue)

    def close(self) -> None:
        self._publishing.close()
        self._consuming.close()


def best_ways(bare: Bare) -> dict[str, Way]:
    """To publish, and to consume from each type of queue"""
    times: dict[str, dict[Way, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(TRIALS):
        for way in (Way(queue_type, mb) for queue_type in QUEUE_TYPES for mb in CHUNK_MB):
            queue, seconds = bare.publish(way)
            times["publish"][way].append(seconds)
            time.sleep(SETTLE_SECONDS)
            times[way.queue_type][way].append(bare.consume(way, queue))
            bare.delete(queue)
    return {
        task: min(by_way, key=lambda way, by_way=by_way: statistics.median(by_way[way]))  # type: ignore[misc]
        for task, by_way in times.items()
    }


def measure(transport: RabbitTransport, bare: Bare, pieces: list[memoryview], ways: dict[str, Way]) -> Times:
    """Both sides do the same, one right after the other, and take turns in going first. Before they read, the broker
    has time to finish what it was sent."""
    run = f"run-{uuid.uuid4().hex}"
    times: Times = defaultdict(list)
    addresses: list[ModelAddress] = []
    assert transport.acquire_leadership(run, LEAD_SECONDS)  # as the one who appends has
    for version in range(ROUNDS + 1):
        writing = [
            partial(append, transport, run, version, pieces, addresses, times),
            partial(publish, bare, ways["publish"], times),
        ]
        _take_turns(writing, version)
        queues = {kind: bare.publish(ways[kind])[0] for kind in QUEUE_TYPES}
        time.sleep(SETTLE_SECONDS)
        reading = [
            partial(read, transport, addresses, times),
            *(partial(consume, bare, ways[kind], queues[kind], times[kind]) for kind in QUEUE_TYPES),
        ]
        _take_turns(reading, version)
        for queue in queues.values():
            bare.delete(queue)
    transport.retire(run, [DEFAULT_SITE])
    return times


def _take_turns(tasks: Sequence[Callable[[], None]], turn: int) -> None:
    first = turn % len(tasks)
    for task in (*tasks[first:], *tasks[:first]):
        task()


def append(
    transport: RabbitTransport,
    run: str,
    version: int,
    pieces: list[memoryview],
    addresses: list[ModelAddress],
    times: Times,
) -> None:
    started = time.perf_counter()
    addresses.append(transport.append_model(run, version, pieces))
    times["append"].append(time.perf_counter() - started)


def read(transport: RabbitTransport, addresses: list[ModelAddress], times: Times) -> None:
    """The newest"""
    started = time.perf_counter()
    body = transport.read_model(addresses[-1])
    times["read"].append(time.perf_counter() - started)
    assert len(body) == MODEL_BYTES


def publish(bare: Bare, way: Way, times: Times) -> None:
    queue, seconds = bare.publish(way)
    times["publish"].append(seconds)
    bare.delete(queue)


def consume(bare: Bare, way: Way, queue: str, times: list[float]) -> None:
    times.append(bare.consume(way, queue))


def run() -> dict[str, object]:
    read_large_pieces()
    weights = np.random.default_rng(0).integers(0, 256, MODEL_BYTES, np.uint8)
    # As a network's state comes: tensors of many sizes.
    pieces = [piece.data for piece in np.split(weights, np.geomspace(1000, MODEL_BYTES - 1, 49).astype(int))]
    with (
        tempfile.TemporaryDirectory(prefix="fedil-") as folder,
        rabbitmq_service(Path(folder)) as service,
        closing(Bare(service.url, weights.tobytes())) as bare,
        closing(RabbitTransport(service.url)) as transport,
    ):
        ways = best_ways(bare)
        times = measure(transport, bare, pieces, ways)
    # The first has to open what the others find open.
    times = {task: values[1:] for task, values in times.items()}
    writing, reading = ratio(times, "append", "publish"), ratio(times, "read", "stream")
    speeds = {task: MODEL_BYTES / 1e6 / statistics.median(values) for task, values in times.items()}
    fastest = {task: MODEL_BYTES / 1e6 / min(values) for task, values in times.items()}
    return {
        "name": "wire_speed",
        "ratio": round(reading, 3),
        "bar": BAR,
        "ok": reading >= BAR and writing >= BAR_APPEND,
        "ratio_of_medians": round(speeds["read"] / speeds["stream"], 3),
        "ratio_of_fastest": round(fastest["read"] / fastest["stream"], 3),
        "ratio_against_classic_queue": round(ratio(times, "read", "classic"), 3),
        "ratio_append": round(writing, 3),
        "bar_append": BAR_APPEND,
        "ratio_append_of_medians": round(speeds["append"] / speeds["publish"], 3),
        **{f"{task}_mb_per_s": round(speed) for task, speed in speeds.items()},
        **{f"best_{task}": f"{way.queue_type}, {way.chunk_mb} MB" for task, way in ways.items()},
    }


def ratio(times: Times, ours: str, theirs: str) -> float:
    """Of speeds, round by round: what else the machine has to do is the same for both, but not for all rounds."""
    return statistics.geometric_mean(bare / own for bare, own in zip(times[theirs], times[ours], strict=True))
