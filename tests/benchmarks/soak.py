"""Thousands of rounds of a small recipe over RabbitMQ and Redis: does anything grow?

Server and two workers are processes as they are deployed, the server with its live page. Their memory, that of the
brokers, the brokers' files and the depths of the queues are sampled while rounds are played. The first half warms up:
heaps, caches, and journals up to the size at which they are compacted (made small here, so that it happens often).

Memory of server and workers: a straight line through the second half. Its slope is 0 within noise if all the rounds of
the run together would add less than BAR of the median, or if it is within three standard errors. Neighbouring samples
are alike, which a standard error does not know of, so the line goes through means of blocks of samples.

What the brokers hold goes up and down with every compaction: the most of the last quarter may not exceed the most of
the quarter before by more than a tenth.
"""

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from broker_config.brokers.topology import (
    DEAD_LETTERS,
    DEFAULT_SITE,
    models_queue,
    tasks_queue,
    updates_queue,
)
from broker_config.process.addresses import BROKER_URL, STORE_URL
from broker_config.stores import connect_store
from broker_config.stores.interface import Store
from broker_config.transports import connect_transport
from broker_config.transports.interface import Transport
from server_worker.run.folder import RunDir
from server_worker.run.history import HistoryTail
from server_worker.run.recipe import load_recipe
from tests.benchmarks._cluster import Cluster, fedil_cluster, python
from tests.benchmarks._processes import memory_bytes, started
from tests.benchmarks._small_recipe import write_small_recipe
from tests.processes import family

BAR = 0.02
MOST_GROWTH = 1.1
WORKERS = 2
WIDTH = 256
"""Model versions of 0.7 MB: the model log reaches its size within 100 rounds."""
SAMPLES, BLOCKS = 200, 20
MOST_ERRORS = 3.0
LONGEST_ROUND_SECONDS = 120.0
RUN = "soak"
_POLL_SECONDS = 0.05
_MB = 1e6
SOON_COMPACTED = "raft.wal_max_size_bytes = 4194304"
SOON_REWRITTEN = ("--auto-aof-rewrite-min-size", "1mb")
PROCESSES = ("server", *(f"worker {number}" for number in range(WORKERS)))

Sample = Mapping[str, float]


@dataclass(frozen=True)
class Trend:
    """A straight line through the second half of a run"""

    median: float
    slope: float
    """Per round"""
    error: float
    """Standard error of the slope"""

    def growth(self, rounds: int) -> float:
        """Of so many rounds, as a share of the median"""
        return self.slope * rounds / self.median

    def is_flat(self, rounds: int) -> bool:
        return abs(self.growth(rounds)) < BAR or abs(self.slope) <= MOST_ERRORS * self.error


def trend(rounds: Sequence[float], values: Sequence[float]) -> Trend:
    ends = [len(values) * number // BLOCKS for number in range(BLOCKS + 1)]
    blocks = [slice(begin, end) for begin, end in pairwise(ends) if end > begin]
    xs, ys = ([statistics.fmean(series[block]) for block in blocks] for series in (rounds, values))
    slope, intercept = statistics.linear_regression(xs, ys)
    residuals = sum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    spread = sum((x - statistics.fmean(xs)) ** 2 for x in xs)
    return Trend(statistics.median(values), slope, (residuals / (len(xs) - 2) / spread) ** 0.5)


def is_bounded(values: Sequence[float]) -> bool:
    """Of what the brokers hold: by the last quarter it has reached its size."""
    half, quarter = len(values) // 2, len(values) // 4
    return max(values[-quarter:]) <= MOST_GROWTH * max(values[half:-quarter]) + 1.0


def run(rounds: str = "2000") -> dict[str, Any]:
    num_rounds = int(rounds)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedil-soak-") as name:
        folder = Path(name)
        recipe_file = write_small_recipe(folder, num_rounds, WIDTH)
        with (
            fedil_cluster(
                folder, load_recipe(recipe_file), WORKERS, SOON_COMPACTED, SOON_REWRITTEN
            ) as cluster,
            closing(connect_transport(cluster.environment[BROKER_URL])) as transport,
            closing(connect_store(cluster.environment[STORE_URL])) as store,
        ):
            samples = _play(cluster, recipe_file, num_rounds, Probe(cluster, transport, store))
    second_half = samples[len(samples) // 2 :]
    numbers = [sample["round"] for sample in second_half]
    names = [name for name in samples[0] if name != "round"]
    trends = {name: trend(numbers, [sample[name] for sample in second_half]) for name in PROCESSES}
    brokers = {name: [sample[name] for sample in samples] for name in names if name not in PROCESSES}
    bounded = {name: is_bounded(values) for name, values in brokers.items()}
    worst = max(trends.values(), key=lambda each: abs(each.growth(num_rounds)))
    return {
        "name": "soak",
        "ratio": round(worst.growth(num_rounds), 4),
        "bar": BAR,
        "ok": all(each.is_flat(num_rounds) for each in trends.values()) and all(bounded.values()),
        "rounds": num_rounds,
        "seconds": round(time.monotonic() - began, 1),
        "memory": {name: _told(each, num_rounds) for name, each in trends.items()},
        "brokers": {name: _extent(values) | {"ok": bounded[name]} for name, values in brokers.items()},
    }


def _told(found: Trend, rounds: int) -> dict[str, float | bool]:
    return {
        "median_mb": round(found.median, 2),
        "kb_per_1000_rounds": round(1e6 * found.slope, 1),
        "standard_error": round(1e6 * found.error, 1),
        "growth_of_all_rounds": round(found.growth(rounds), 4),
        "ok": found.is_flat(rounds),
    }


def _extent(values: Sequence[float]) -> dict[str, float]:
    quarter = max(1, len(values) // 4)
    quarters = [values[quarter * number : quarter * (number + 1)] for number in range(4)]
    return {f"most_of_quarter_{number}": round(max(each), 2) for number, each in enumerate(quarters, 1)}


@dataclass(frozen=True)
class Probe:
    cluster: Cluster
    transport: Transport
    store: Store

    def sample(self, server: int) -> dict[str, float]:
        """Megabytes and messages"""
        workers = [worker.pid for worker in self.cluster.workers]
        memory = dict(zip(PROCESSES, map(_memory_mb, (server, *workers)), strict=True))
        rabbitmq = self.cluster.rabbitmq
        queues = {
            "tasks": tasks_queue(DEFAULT_SITE),
            "updates": updates_queue(RUN),
            "models": models_queue(RUN),
            "dead letters": DEAD_LETTERS,
        }
        health = self.store.health()
        return {
            **memory,
            "rabbitmq memory": _memory_mb(rabbitmq.pid),
            "rabbitmq files": _files_mb(rabbitmq.directory / "mnesia"),
            "redis memory": health["used_memory_bytes"] / _MB,
            "redis keys": health["keys"],
            "redis files": _files_mb(self.cluster.redis.directory),
            **{f"{name} queued": self.transport.depth(queue) or 0 for name, queue in queues.items()},
        }


def _memory_mb(pid: int) -> float:
    total = 0
    for member in {pid, *family(pid)}:
        try:
            total += memory_bytes("VmRSS", member)
        except (OSError, StopIteration):  # it has just ended
            continue
    return total / _MB


def _files_mb(folder: Path) -> float:
    """As they take space on the disk"""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += 512 * path.stat().st_blocks
        except OSError:  # it was just deleted
            continue
    return total / _MB


def _play(cluster: Cluster, recipe_file: Path, rounds: int, probe: Probe) -> list[dict[str, float]]:
    run_dir, log = cluster.folder / "run", cluster.folder / "server.log"
    command = [
        *(*python("server_worker"), "--recipe", str(recipe_file)),
        *("--run-dir", str(run_dir), "--run", RUN, "--device", "cpu"),
    ]
    samples: list[dict[str, float]] = []
    with started(command, cluster.environment, log) as server:
        history = HistoryTail(RunDir(run_dir).history)
        done, sampled, heard = 0, 0, time.monotonic()
        while server.poll() is None:
            closed = sum(1 for _ in history.new_lines(lambda: None))
            if closed:
                done, heard = done + closed, time.monotonic()
            elif time.monotonic() - heard > LONGEST_ROUND_SECONDS:
                raise RuntimeError(f"no round after {done}:\n{log.read_text('utf-8')[-3000:]}")
            due = done * SAMPLES // rounds
            if sampled < due < SAMPLES:
                sampled = due
                samples.append({"round": float(done), **probe.sample(server.pid)})
                if len(samples) % (SAMPLES // 20) == 0:
                    print({name: round(value, 1) for name, value in samples[-1].items()}, flush=True)
            time.sleep(_POLL_SECONDS)
    if server.returncode or done < rounds:
        raise RuntimeError(
            f"the server ended with {server.returncode} after {done} rounds:\n{log.read_text('utf-8')[-3000:]}"
        )
    gone = [number for number, worker in enumerate(cluster.workers) if worker.poll() is not None]
    if gone:
        raise RuntimeError(f"worker {gone[0]} has ended")
    return samples
