"""The same federation over RabbitMQ and Redis, and in memory: what the brokers cost while clients really train.

Two worker processes on either side, and the server in this one. The clock runs from the start of the second round, when
every process is up, to the start of the last one.
"""

import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_config.brokers.topology import DEFAULT_SITE
from broker_config.process.addresses import BROKER_URL, STORE_URL
from ops.cli.commands.shards import write_site_shards
from ops.local.services import Redis
from ops.local.simulate import simulate
from server_worker.deployment import Deployment, serve
from server_worker.run.recipe import Recipe
from tests.benchmarks import simulate_scaling
from tests.benchmarks._processes import started
from tests.benchmarks.simulate_scaling import Stopwatch, busy_seconds_of_others
from tests.services import private_rabbitmq

BAR = 1.10
ROUNDS = 6
REPEATS = 3
WORKERS = 2


@dataclass(frozen=True)
class Timed:
    seconds: float
    digests: tuple[str, str]
    """Of θ′ and of the ledgers"""
    cores_of_others: float | None = None
    """How many cores something else kept busy meanwhile: the figures are good where this is near zero."""


def run() -> dict[str, Any]:
    recipe = _recipe()
    memory: list[Timed] = []
    rabbit: list[Timed] = []
    with (
        tempfile.TemporaryDirectory(prefix="fedil-overhead-") as folder,
        private_rabbitmq(Path(folder) / "rabbitmq") as rabbitmq,
        Redis(Path(folder) / "redis") as redis,
    ):
        shards = Path(folder) / "shards"
        write_site_shards(recipe, DEFAULT_SITE, shards)
        urls = {BROKER_URL: rabbitmq.url, STORE_URL: redis.url}
        for number in range(REPEATS):
            memory.append(_in_memory(recipe, Path(folder) / f"memory-{number}"))
            rabbit.append(_deployed(recipe, Path(folder) / f"rabbit-{number}", shards, urls))
            print(f"memory {memory[-1]}, rabbit {rabbit[-1]}", flush=True)
    digests = {timed.digests for timed in memory + rabbit}
    assert len(digests) == 1, f"the runs are not the same: {digests}"
    seconds = {
        name: statistics.median(t.seconds for t in ts)
        for name, ts in (("memory", memory), ("rabbit", rabbit))
    }
    ratio = seconds["rabbit"] / seconds["memory"]
    return {
        "name": "overhead",
        "ratio": round(ratio, 3),
        "bar": BAR,
        "ok": ratio <= BAR,
        # Beside the medians: others' noise only ever adds, so this one tells more on a busy machine.
        "ratio_of_fastest": round(min(t.seconds for t in rabbit) / min(t.seconds for t in memory), 3),
        "seconds_a_round": {name: round(total / (ROUNDS - 2), 2) for name, total in seconds.items()},
        "all_seconds": {
            "memory": [round(timed.seconds, 2) for timed in memory],
            "rabbit": [round(timed.seconds, 2) for timed in rabbit],
        },
        "rounds": ROUNDS - 2,
        "cores_of_others": [timed.cores_of_others for timed in memory],
        "digests": digests.pop(),
    }


def _recipe() -> Recipe:
    recipe = simulate_scaling.recipe()
    federation = recipe.federation.model_copy(update={"deadline_seconds": 600.0})
    changed = {"rounds": ROUNDS, "evaluate_every": ROUNDS, "federation": federation}
    return recipe.model_copy(update=changed)


def _in_memory(recipe: Recipe, run_dir: Path) -> Timed:
    watch, began, busy = Stopwatch(), time.monotonic(), busy_seconds_of_others()
    done = simulate(
        recipe,
        run_dir,
        workers=WORKERS,
        device="cpu",
        resume=False,
        watcher=watch,
        stop=threading.Event(),
    )
    others = (busy_seconds_of_others() - busy) / (time.monotonic() - began)
    return Timed(_seconds(watch), (done.model_digest, done.ledger_digest), round(others, 2))


def _deployed(recipe: Recipe, run_dir: Path, shards: Path, urls: dict[str, str]) -> Timed:
    watch = Stopwatch()
    command = [sys.executable, "-m", "client_worker", "--site", DEFAULT_SITE, "--shards", str(shards)]
    command += ["--device", "cpu", "--processes", str(WORKERS), "--plugin", recipe.data.name]
    with started(command, urls, run_dir.with_suffix(".log")):
        deployment = Deployment(recipe, run_dir, urls[BROKER_URL], urls[STORE_URL], device="cpu")
        done = serve(deployment, watch, threading.Event())
    return Timed(_seconds(watch), (done.model_digest, done.ledger_digest))


def _seconds(watch: Stopwatch) -> float:
    return watch.began[ROUNDS] - watch.began[2]
