"""Cells beside those of learning_cifar10 and learning_mnist: clients with few classes each, images of another clinic,
and hostile clients. Accuracy of θ′ as the mean of a run's last evaluations, beside server-only training on the same
labels (with the budget of FedIL's server, chosen on held-out labels) or beside the same run without hostile clients.
FEDIL_DATA says where the data lie.

`--cells a,b` plays some of them, with `--workers 1` in one process each, to fill both cores: the weights are the same,
and the next call finds the runs. Figures are those of the cells that were asked for last; `ratio` is by how many points
the worst of them is above its bar.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tests.benchmarks._learning import WORKERS, learn, mean_and_spread

_HOSTILE = ("hostile.share=0.4", "hostile.kind=permuted")
HEADINGS = ["", "θ′, %", "θ₀, %", "compared with", "θ′ above it", "seeds", "rounds", "CPU s a run"]


@dataclass(frozen=True)
class Cell:
    recipe: str
    seeds: tuple[int, ...]
    overrides: tuple[str, ...] = ()
    at_least: Callable[[float], float] = lambda spread: spread
    """Points above what it is compared with; argument: the larger of both spreads over seeds"""
    undisturbed: bool = False
    """Compared with the same run without its overrides, and not with server-only training"""
    rounds: int | None = None
    """Fewer than the recipe has, also for what it is compared with"""


CELLS = {
    "cifar10-noniid-001": Cell("cifar10-noniid-001", (0,), at_least=lambda _: 5.0),
    "pathmnist-iid": Cell("pathmnist-iid", (0,)),
    "pathmnist-dirichlet": Cell("pathmnist-dirichlet", (0,)),
    "digits, two classes a client": Cell(
        "digits", (0, 1, 2), ("split.partition=classes",), at_least=lambda _: 0.0
    ),
    "mnist-iid-001, 40 % permuted": Cell("mnist-iid-001", (0,), _HOSTILE, lambda _: -2.0, True),
    "cifar10-iid-001, 40 % permuted": Cell(
        "cifar10-iid-001", (0,), _HOSTILE, lambda _: -2.0, True, rounds=60
    ),
}


def run(cells: str = "", workers: str = str(WORKERS)) -> dict[str, Any]:
    asked = cells.split(",") if cells else list(CELLS)
    rows, margins, spare, runs = [], {}, [], {}
    for name, cell in CELLS.items():
        if not any(name.startswith(text) for text in asked):
            continue
        runs[name] = [_play(name, cell, seed, int(workers)) for seed in cell.seeds]
        other = [one["compared_with"] for one in runs[name]]
        (mean, spread), (below, below_spread) = (
            mean_and_spread([one["accuracy"]["global"] for one in runs[name]]),
            mean_and_spread(other),
        )
        server = fmean(one["accuracy"]["server"] for one in runs[name])
        margins[name] = round(mean - below, 2)
        spare.append(margins[name] - cell.at_least(max(spread, below_spread)))
        kind = "undisturbed" if cell.undisturbed else "server-only"
        cpu_seconds = round(fmean(one["cpu_seconds"] for one in runs[name]))
        compared = (f"{kind} {below:.2f}", f"{margins[name]:+.2f}")
        played = (len(cell.seeds), runs[name][0]["rounds"], cpu_seconds)
        rows.append([f"`{name}`", f"{mean:.2f}", f"{server:.2f}", *compared, *played])
    result = {"name": "learning_cells", "ratio": round(min(spare), 2), "bar": 0.0, "ok": min(spare) >= 0.0}
    details = {"headings": HEADINGS, "rows": rows, "runs": runs}
    return {**result, "margins": margins, "details": details}


def _play(name: str, cell: Cell, seed: int, workers: int) -> dict[str, Any]:
    folder = name.replace(", ", "-").replace(" ", "-").replace("%", "percent")
    floor, common = not cell.undisturbed, (f"rounds={cell.rounds}",) if cell.rounds else ()
    found = learn(cell.recipe, seed, *cell.overrides, *common, name=folder, floor=floor, workers=workers)
    if cell.undisturbed:
        name = f"{cell.recipe}-{cell.rounds}-rounds" if cell.rounds else cell.recipe
        compared_with = learn(cell.recipe, seed, *common, name=name, workers=workers)["accuracy"]["global"]
    else:
        compared_with = found["server_only"]
    return {**found, "compared_with": compared_with}
