"""A whole simulation with one worker process and with two: how much faster, and what is not training.

The clock runs from the start of the second round, when every process is up, to the start of the last one.
"""

import os
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fedil_model.data.augment import ImageViews
from fedil_model.data.datasets.interface import Dataset, Samples
from ops.local.simulate import simulate
from server_worker.run.recipe import Recipe, make_recipe
from server_worker.watch.events import RoundRecord, Watcher
from server_worker.watch.notices import Notice

BAR, BAR_SHARE = 1.6, 0.05
ROUNDS = 4
REPEATS = 3
CLIENTS_PER_ROUND = 4
CLIENTS, SAMPLES_PER_CLIENT, LABELLED = 20, 300, 100
CLASSES = 10


def pictures() -> Dataset:
    """Of MNIST's shape, with a brightness that tells the class: updates that learn nothing are rejected."""

    def load() -> Samples:
        generator = torch.Generator().manual_seed(0)
        labels = torch.arange(LABELLED + CLIENTS * SAMPLES_PER_CLIENT) % CLASSES
        noise = torch.randint(0, 100, (len(labels), 1, 28, 28), dtype=torch.uint8, generator=generator)
        return Samples(noise + 15 * labels.to(torch.uint8)[:, None, None, None], labels)

    def load_test() -> Samples:
        every = load()
        return Samples(every.inputs[:LABELLED], every.labels[:LABELLED])

    views = ImageViews((0.5,), (0.3,), pad=2, pad_mode="zeros", strong_kind="affine")
    return Dataset(tuple("0123456789"), (1, 28, 28), views, load, load_test)


def recipe() -> Recipe:
    """The network and the batches of mnist-iid-001, and half of its samples a client. Clients share a round
    evenly, and the server's own step, during which workers wait, is short."""
    return make_recipe(
        {
            "name": "scaling",
            "rounds": ROUNDS,
            "evaluate_every": ROUNDS,
            "baseline_epochs": 0,
            "data": {"name": f"{__name__}:pictures"},
            "split": {"labelled": LABELLED, "clients": CLIENTS},
            "network": {"name": "resnet9", "width": 12},
            "client": {"epochs": 2, "lr": 0.01},
            "server": {"epochs": 1, "pretrain_epochs": 10, "lr": 0.01},
            # Every sample is sure, as in a run that goes well.
            "method": {"threshold": 0.0},
            "federation": {"clients_per_round": CLIENTS_PER_ROUND},
        }
    )


@dataclass
class Stopwatch(Watcher):
    """A watcher that keeps when each round began, and what it was made of."""

    began: dict[int, float] = field(default_factory=dict)
    records: dict[int, RoundRecord] = field(default_factory=dict)

    def phase(self, round_number: int, name: str) -> None:
        if name == "server_step":
            self.began[round_number] = time.monotonic()

    def round_closed(self, record: RoundRecord) -> None:
        self.records[record.round] = record

    def note(self, notice: Notice) -> None:
        raise AssertionError(f"a run without trouble has no notices: {notice}")


@dataclass(frozen=True)
class Timed:
    wall: float
    server_step: float
    clients: float
    """Seconds in training steps, summed over clients."""
    cores_of_others: float
    """How many cores something else kept busy meanwhile: the figures are good where this is near zero."""


def time_rounds(workers: int) -> Timed:
    watch, began, busy = Stopwatch(), time.monotonic(), busy_seconds_of_others()
    with tempfile.TemporaryDirectory(prefix="fedil-scaling-") as run_dir:
        simulate(
            recipe(),
            Path(run_dir),
            workers=workers,
            device="cpu",
            resume=False,
            watcher=watch,
            stop=threading.Event(),
        )
    counted = [watch.records[number] for number in range(2, ROUNDS)]
    return Timed(
        wall=watch.began[ROUNDS] - watch.began[2],
        server_step=sum(record.seconds["server_step"] for record in counted),
        clients=sum(o.metrics["seconds_train"] for record in counted for o in record.outcomes),
        cores_of_others=(busy_seconds_of_others() - busy) / (time.monotonic() - began),
    )


def busy_seconds_of_others() -> float:
    """Processor time of everything on this machine but this process and the children that it has waited for."""
    user, nice, system = (int(jiffies) for jiffies in Path("/proc/stat").read_text().split()[1:4])
    own = sum(os.times()[:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - own


def run() -> dict[str, object]:
    runs: dict[int, list[Timed]] = {1: [], 2: []}
    for _ in range(REPEATS):
        for workers, timed in runs.items():
            timed.append(time_rounds(workers))
            print(workers, timed[-1], flush=True)
    one, two = (statistics.median(t.wall for t in runs[workers]) for workers in runs)
    share = statistics.median(1 - (t.server_step + t.clients) / t.wall for t in runs[1])
    # Of two workers' waiting only a lower bound is known: how clients were dealt is not.
    share_two = statistics.median(1 - (t.server_step + t.clients / 2) / t.wall for t in runs[2])
    return {
        "name": "simulate_scaling",
        "ratio": round(one / two, 2),
        "bar": BAR,
        "share_not_training": round(share, 4),
        "bar_share": BAR_SHARE,
        "ok": one / two >= BAR and share <= BAR_SHARE,
        "share_not_training_two_workers": round(share_two, 4),
        "seconds_one_worker": round(one, 2),
        "seconds_two_workers": round(two, 2),
        "rounds": ROUNDS - 2,
        "cores_of_others": round(statistics.median(t.cores_of_others for ts in runs.values() for t in ts), 2),
        "config": f"resnet9 width 12, {CLIENTS_PER_ROUND} clients a round of {SAMPLES_PER_CLIENT} images 28×28",
    }
