"""Synthetic runs of hundreds of rounds and many clients, which take too long to train in a test."""

import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from broker_config.process.addresses import LOOPBACK, WebAddress
from server_worker.run.folder import RunDir
from server_worker.run.recipe import Recipe, make_recipe
from server_worker.watch.events import ClientOutcome, RoundRecord
from server_worker.watch.survey import Survey
from server_worker.watch.watching import Watching
from tests.federation import blobs_recipe

ANY_PORT = WebAddress(LOOPBACK, 0)
CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def _recipe(rounds: int, clients: int, *, buffered: bool) -> Recipe:
    if buffered:
        federation = {"mode": "buffered", "in_flight": 2 * clients, "buffer_size": clients}
    else:
        federation = {"clients_per_round": clients}
    recipe = blobs_recipe(rounds=rounds, split={"clients": 10 * clients})
    return make_recipe({**recipe.model_dump(exclude={"federation"}), "federation": federation})


def watching_of(
    directory: Path, count: int, clients: int, *, buffered: bool = False, planned: int | None = None
) -> Watching:
    """The page of a run with `count` finished rounds, read from its folder."""
    where = RunDir(directory)
    recipe = _recipe(planned or max(count + 10, 30), clients, buffered=buffered)
    lines = [json.dumps(asdict(record)) + "\n" for record in round_records(count, clients, buffered=buffered)]
    where.history.write_text("".join(lines), encoding="utf-8")
    where.baseline.write_text(json.dumps({"accuracy": 0.8123}), encoding="utf-8")
    watch = Watching("digits-3fa2c1", recipe, where)
    watch.watcher.run_started(count + 1, recipe.rounds)
    watch.leading(CLASSES, lambda: ({}, {}))
    watch.survey(healthy_survey(clients=recipe.split.clients))
    watch.watcher.phase(count + 1, "server_step")
    return watch


def round_records(
    count: int, clients: int, rounds: int | None = None, *, buffered: bool = False
) -> Iterator[RoundRecord]:
    chance = random.Random(7)
    path, began = 0.0, time.time() - 30.0 * count
    norms = list[float]()
    for number in range(1, count + 1):
        share = 0.97 - 0.5 * math.exp(-number / (count / 6 + 3)) + chance.gauss(0, 0.006)
        norms.append(2.4 * number**-0.45 * math.exp(chance.gauss(0, 0.12)))
        path += norms[-1]
        outcomes = tuple(_outcome(client, number / count, chance, buffered) for client in range(clients))
        labels = int(60 * clients * (1 - math.exp(-number / (count / 4 + 2))))
        yield RoundRecord(
            round=number,
            rounds=rounds or count,
            selected=clients,
            accepted=sum(outcome.counts for outcome in outcomes),
            outcomes=outcomes,
            delta_norm=norms[-1],
            verdict="decaying, not summable" if number >= 8 else "too early to say",
            convergence={
                "exponent": 0.45,
                "exponent_error": 0.06,
                "ratio": norms[-1] / norms[-2] if number > 1 else None,
                "moving_average": sum(norms[-10:]) / len(norms[-10:]),
                "relative": norms[-1] / 31,
                "lr_normalised": norms[-1] / 1.25,
                "rate": None,
                "path": path,
                "share_decreasing": 0.6,
            },
            accuracy={
                "global": share,
                "server": share - abs(chance.gauss(0.02, 0.01)),
                "ema": share + 0.004,
            },
            series={
                "reference_norm": 0.8 * norms[-1],
                "pseudo_labels": labels,
                "credible": max(0, int(0.7 * labels - 20)),
                "promoted": clients,
                "purity_pseudo_labels": 0.995 - 0.02 * chance.random(),
                "purity_credible": 0.998,
                "sure_share": 0.9 - 0.6 * math.exp(-number / 10),
                "loss_server": 0.9 * math.exp(-number / 20) + 0.05,
                "loss_pseudo": 0.5 * math.exp(-number / 40) + chance.random() * 0.04,
                "loss_consistency": 0.2 + chance.random() * 0.03,
                "loss_credible": 0.1 + chance.random() * 0.02,
            },
            seconds={
                "server_step": 0.4,
                "broadcast": 0.05,
                "wait": 1.1 + chance.random(),
                "fold": 0.12,
                "checkpoint": 0.03,
                "total": 2.2,
                "evaluate": 0.3,
            },
            refused={"late": 2, "duplicate": 1} if number % 5 == 0 else {},
            per_class=tuple(
                min(1.0, max(0.0, share + chance.gauss(0, 0.02) - 0.02 * (index % 4)))
                for index in range(len(CLASSES))
            ),
            finished_at=began + 30.0 * number,
        )


def _outcome(client: int, progress: float, chance: random.Random, buffered: bool) -> ClientOutcome:
    staleness = min(4, int(chance.expovariate(0.9))) if buffered else None
    luck = chance.random()
    if luck < 0.015:
        return ClientOutcome(client, "missing", detail="its site has no worker", staleness=staleness)
    if luck < 0.02:
        return ClientOutcome(client, "refused", detail="out_of_memory: 12 MiB more were needed")
    cosine = chance.gauss(0.34 - 0.2 * progress, 0.12)
    if cosine >= 0 or luck < 0.4:
        name, why = ("accepted" if cosine >= 0 else "projected"), ""
    else:
        name, why = "rejected_cosine", f"cosine {cosine:.4f} is negative"
    values = {"cosine": cosine}
    return ClientOutcome(
        client, name, why, counts=name != "rejected_cosine", values=values, staleness=staleness
    )


def healthy_survey(workers: int = 4, clients: int = 50) -> Survey:
    return Survey(
        at=time.time(),
        workers=tuple(
            {
                "name": f"node{number}-41{number}-a0b1c{number}",
                "site": "here",
                "device": "cpu" if number % 2 else "cuda:0",
                "state": "training" if number % 3 else "idle",
                "round": 12,
                "client": 7 * number,
                "tasks_done": 31 + number,
                "images_per_second": 812.4,
                "version": "0.1.0",
                "since": time.time() - 3,
            }
            for number in range(workers)
        ),
        clients_alive=clients,
        depths={"tasks": 3, "updates": 1, "dead_letters": 0},
        store={"used_memory_bytes": 12_345_678.0, "evicted_keys": 0.0},
    )


def failed_survey(reason: str) -> Survey:
    return Survey(at=time.time(), trouble=reason, absent=("default",))


def append_record(history: Path, record: RoundRecord) -> None:
    """Append a record to the history, as the server does before it notifies its watchers."""
    with history.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(record)) + "\n")
