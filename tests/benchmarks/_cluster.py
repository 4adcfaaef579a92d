"""A deployment to be measured: RabbitMQ, Redis and workers of our own, and one server process per run."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from broker_config.brokers.topology import DEFAULT_SITE
from broker_config.process.addresses import BROKER_URL, STORE_URL
from client_worker.shards import write_shards
from ops.cli.commands.shards import write_site_shards
from ops.local.services import Redis
from server_worker.run.recipe import Recipe
from tests.benchmarks._echo_method import PLUGINS
from tests.benchmarks._processes import memory_bytes, started
from tests.services import RabbitMQ, private_rabbitmq

MOST_CLIENTS = 100


@dataclass(frozen=True)
class Cluster:
    folder: Path
    environment: dict[str, str]
    workers: tuple["subprocess.Popen[bytes]", ...]
    rabbitmq: RabbitMQ
    redis: Redis

    def play(self, recipe: Recipe) -> dict[str, Any]:
        """What the server reports of the whole run; raises if anything unusual happened."""
        path, report = self.folder / f"{recipe.name}.json", self.folder / f"{recipe.name}-report.json"
        path.write_text(recipe.model_dump_json(), encoding="utf-8")
        command = [
            *python("tests.benchmarks._metered_server"),
            str(path),
            str(self.folder / recipe.name),
            str(report),
        ]
        log = self.folder / f"{recipe.name}.log"
        with started(command, self.environment, log) as server:
            code = server.wait()
        if code:
            raise RuntimeError(f"the server of {recipe.name} failed:\n{log.read_text('utf-8')[-3000:]}")
        fields: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        unusual = [outcome for outcome in fields["outcomes"] if outcome != "accepted"] + fields["notes"]
        if unusual or fields["rounds"] != recipe.rounds:
            raise RuntimeError(f"{recipe.name}: {fields['rounds']} rounds; {unusual}")
        return fields

    def worker_peak_bytes(self) -> int:
        """Of the one that had most, ever."""
        return max(memory_bytes("VmHWM", worker.pid) for worker in self.workers)


@contextmanager
def echo_cluster(folder: Path, workers: int, rabbitmq_config: str = "") -> Iterator[Cluster]:
    """With the echo for a method."""
    shards = folder / "shards"
    write_shards(shards, {c: np.zeros((1, 1, 2, 2), np.uint8) for c in range(MOST_CLIENTS)})
    worker = [*python("client_worker"), *PLUGINS]
    with _cluster(folder, worker, workers, rabbitmq_config) as cluster:
        yield cluster


@contextmanager
def fedil_cluster(
    folder: Path,
    recipe: Recipe,
    workers: int,
    rabbitmq_config: str = "",
    redis_options: Sequence[str] = (),
) -> Iterator[Cluster]:
    """With the recipe's own method and data, and workers as they are."""
    write_site_shards(recipe, DEFAULT_SITE, folder / "shards")
    with _cluster(folder, python("client_worker"), workers, rabbitmq_config, redis_options) as cluster:
        yield cluster


@contextmanager
def _cluster(
    folder: Path,
    worker: Sequence[str],
    workers: int,
    rabbitmq_config: str,
    redis_options: Sequence[str] = (),
) -> Iterator[Cluster]:
    with ExitStack() as stack:
        rabbitmq = stack.enter_context(private_rabbitmq(folder / "rabbitmq", config=rabbitmq_config))
        redis = stack.enter_context(Redis(folder / "redis", redis_options))
        environment = {BROKER_URL: rabbitmq.url, STORE_URL: redis.url}
        command = [*worker, "--site", DEFAULT_SITE, "--shards", str(folder / "shards"), "--device", "cpu"]
        processes = [
            stack.enter_context(started(command, environment, folder / f"worker-{number}.log"))
            for number in range(workers)
        ]
        yield Cluster(folder, environment, tuple(processes), rabbitmq, redis)


def python(module: str) -> list[str]:
    return [sys.executable, "-m", module]
