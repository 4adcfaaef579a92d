"""A round in which nobody learns: a model of 26 MB down, the same plus a constant up, the mean of what came back.

Ours is the deployment as it is: the server's and the workers' own loops in processes of their own, RabbitMQ and Redis
that keep what they confirm, a checkpoint after every round; only the method is the benchmark's. Flower's is a SuperLink
with its defaults, in memory. A round lasts from its start to the start of the next.
"""

import os
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.benchmarks._cluster import Cluster, echo_cluster
from tests.benchmarks._echo_flower import play_on_flower, requirement
from tests.benchmarks._echo_method import echo_recipe

BAR = 5.0
BAR_BYTES = 0.02
BAR_MEMORY = 6.0
"""Server's peak above its idle state, in models"""
PARAMETERS = 6_570_000
MODEL_BYTES = 4 * PARAMETERS
WORKERS = 2
FEW, SOME, MANY = 2, 10, 100
WARM_UP, COUNTED = 2, 6
FLOWER_COUNTED = {FEW: 5, SOME: 2}


def run() -> dict[str, Any]:
    busy = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="fedil-echo-") as folder:
        with echo_cluster(Path(folder), WORKERS) as cluster:
            ours = {clients: _ours(cluster, clients, WARM_UP + COUNTED + 1) for clients in (FEW, SOME)}
            # Only for its memory: two rounds, the second beginning with what the first left behind.
            ours[MANY] = _ours(cluster, MANY, 2)
            worker_peak = cluster.worker_peak_bytes()
        theirs = {
            clients: _theirs(Path(folder), clients, counted) for clients, counted in FLOWER_COUNTED.items()
        }
    ratio = theirs[FEW]["seconds"] / ours[FEW]["seconds"]
    bytes_ratio = ours[SOME]["sent_bytes_without_tasks"] / ours[FEW]["sent_bytes_without_tasks"]
    memory = max(figures["peak_models_above_idle"] for figures in ours.values())
    return {
        "name": "echo_round",
        "ratio": round(ratio, 2),
        "bar": BAR,
        "ok": ratio >= BAR and abs(bytes_ratio - 1) <= BAR_BYTES and memory <= BAR_MEMORY,
        "bytes_ratio": round(bytes_ratio, 5),
        "bar_bytes": BAR_BYTES,
        "memory_models": memory,
        "bar_memory": BAR_MEMORY,
        "model_bytes": MODEL_BYTES,
        "worker_peak_mb": round(worker_peak / 1e6, 1),
        "ours": ours,
        "flower": theirs,
        "flower_version": requirement(),
        "load_average_before": round(busy, 1),
    }


def _ours(cluster: Cluster, clients: int, rounds: int) -> dict[str, Any]:
    name = f"echo-{clients}"
    report = cluster.play(echo_recipe(name, rounds=rounds, clients=clients, parameters=PARAMETERS))
    counted = range(min(WARM_UP, rounds - 2) + 1, rounds)
    sent = {kind: [_grown(report["sent"], n, kind) for n in counted] for kind in ("all", "task", "model")}
    whole = [report["began"][str(n + 1)] - report["began"][str(n)] for n in counted]
    figures = {
        "seconds": round(statistics.median(whole), 3),
        "seconds_of": _breakdown([report["seconds"][str(n)] for n in counted], whole),
        "rounds": len(counted),
        "sent_bytes": statistics.median(sent["all"]),
        "sent_bytes_without_tasks": statistics.median(
            everything - tasks for everything, tasks in zip(sent["all"], sent["task"], strict=True)
        ),
        "sent_task_bytes": statistics.median(sent["task"]),
        "sent_model_bytes": statistics.median(sent["model"]),
        "peak_models_above_idle": round((report["peak_bytes"] - report["idle_bytes"]) / MODEL_BYTES, 2),
        "peak_models_above_empty": round((report["peak_bytes"] - report["empty_bytes"]) / MODEL_BYTES, 2),
        "peak_mb": round(report["peak_bytes"] / 1e6, 1),
    }
    print(f"{clients} clients, ours: {figures}", flush=True)
    return figures


def _grown(by_round: dict[str, dict[str, int]], number: int, kind: str) -> int:
    return by_round[str(number + 1)][kind] - by_round[str(number)][kind]


def _breakdown(laps: list[dict[str, float]], whole: list[float]) -> dict[str, float]:
    """Medians by phase. What comes after a round's own clock: its checkpoint, and acknowledging what is in it."""
    after = [seconds - lap["total"] for lap, seconds in zip(laps, whole, strict=True)]
    phases = {phase: [lap[phase] for lap in laps] for phase in ("server_step", "broadcast", "wait", "fold")}
    medians = {phase: statistics.median(values) for phase, values in phases.items()}
    return {phase: round(value, 3) for phase, value in medians.items()} | {
        "checkpoint_and_acknowledge": round(statistics.median(after), 3)
    }


def _theirs(folder: Path, clients: int, counted: int) -> dict[str, Any]:
    own = folder / f"flower-{clients}"
    own.mkdir()
    report = play_on_flower(own, rounds=1 + counted + 1, clients=clients, parameters=PARAMETERS)
    whole = [end - begin for begin, end in pairwise(report["began"])][1:]
    figures = {
        "seconds": round(statistics.median(whole), 3),
        "rounds": len(whole),
        "serverapp_peak_mb": round(report["peak_bytes"] / 1e6, 1),
        "superlink_peak_mb": round(report["superlink_peak_bytes"] / 1e6, 1),
    }
    print(f"{clients} clients, Flower: {figures}", flush=True)
    return figures
