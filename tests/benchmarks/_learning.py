"""Runs of a recipe over seeds, as `fedil simulate` plays them, kept under runs/learning: stopped or killed, the same
benchmark goes on. Accuracy is the mean of a run's last evaluations; none of them stops or chooses anything."""

import os
import threading
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from ops.cli.recipe_files import read_recipe
from ops.cli.view.lines import QuietView
from ops.inspect.report.reading import Run, read_run
from ops.inspect.run_place import is_run
from ops.local.simulate import simulate
from server_worker.watch.events import RoundRecord
from tests.benchmarks._results import ROOT

LAST = 5
WORKERS = 2


class _Lines(QuietView):
    def __init__(self, name: str) -> None:
        self._name = name

    def round_closed(self, record: RoundRecord) -> None:
        if record.accuracy:
            found = {model: round(100 * share, 2) for model, share in record.accuracy.items()}
            print(f"{self._name} round {record.round:3}  {found}", flush=True)


def learn(
    recipe_name: str,
    seed: int,
    *overrides: str,
    name: str | None = None,
    floor: bool = False,
    workers: int = WORKERS,
) -> dict[str, Any]:
    """Figures of one run, in percent and seconds. `floor`: with server-only training also where the recipe has none"""
    if not os.environ.get("FEDIL_DATA"):
        raise SystemExit(
            "this benchmark reads data: set FEDIL_DATA to a folder that torchvision can read it from"
        )
    name = name or recipe_name
    folder = ROOT / "runs" / "learning" / name / f"seed-{seed}"
    recipe = read_recipe(recipe_name, [f"seed={seed}", *overrides])
    if floor:
        recipe = recipe.model_copy(update={"baseline_epochs": None})
    simulate(
        recipe,
        folder,
        workers=workers,
        device="auto",
        resume=is_run(folder),
        watcher=_Lines(f"{name} seed {seed}"),
        stop=threading.Event(),
    )
    return {"seed": seed, **_figures(folder)}


def _figures(folder: Path) -> dict[str, Any]:
    run = read_run(folder)
    evaluated = [record for record in run.records if record.accuracy]
    return {
        "rounds": run.rounds_done,
        "accuracy": {name: _last_mean(evaluated, name) for name in evaluated[-1].accuracy},
        "server_only": None if run.baseline is None else round(100 * run.baseline, 2),
        "split": run.split.digest if run.split else None,
        "seconds_a_round": _seconds_a_round(run),
        "cpu_seconds_before_round_1": round(run.records[0].cpu_seconds),
        "cpu_seconds": round(sum(record.cpu_seconds for record in run.records)),
        "curve": _curve(run),
    }


def _last_mean(evaluated: list[RoundRecord], model: str) -> float:
    return round(100 * fmean(record.accuracy[model] for record in evaluated[-LAST:]), 2)


def _seconds_a_round(run: Run) -> float | None:
    """Median of the rounds that WORKERS workers played; None if the run never had as many. With fewer of them the
    weights of each round are the same, but not its seconds."""
    starts = sorted(run.environment, key=lambda start: start["last_started"])
    seconds = []
    for record in run.records:
        begun = [start for start in starts if start["last_started"] <= record.finished_at]
        if begun and begun[-1]["workers"] == WORKERS:
            seconds.append(record.seconds["total"])
    return round(median(seconds), 2) if seconds else None


def _curve(run: Run) -> list[dict[str, float]]:
    """Evaluated rounds: CPU seconds so far, accuracy by model"""
    points, cpu_seconds = [], 0.0
    for record in run.records:
        cpu_seconds += record.cpu_seconds
        if record.accuracy:
            models = {name: round(100 * share, 2) for name, share in record.accuracy.items()}
            points.append({"round": record.round, "cpu": round(cpu_seconds), **models})
    return points


def mean_and_spread(values: list[float]) -> tuple[float, float]:
    return round(fmean(values), 2), round(stdev(values), 2) if len(values) > 1 else 0.0
