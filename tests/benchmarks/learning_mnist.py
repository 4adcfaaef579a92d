"""The recipe mnist-iid-001 (600 labels, 100 clients, 5 a round): accuracy of θ′ and θ₀ by round, for the profiles
`fedil` and `paper`, with server-only training beside them. FEDIL_DATA says where MNIST lies.

`fedil` goes on until θ′ has reached both targets (or the recipe ends); `paper` plays PAPER_ROUNDS with the same budget
of epochs and learning rates. One seed. The figures that `ok` is made of are the best of the evaluated rounds (every
fifth) on the test set, since the bar is "within N rounds"; the last ones are given beside them.
"""

import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from ops.cli.recipe_files import read_recipe
from ops.cli.view.lines import QuietView
from ops.inspect.run_reading import load_run, load_weights
from ops.inspect.summary import Summary
from ops.local.simulate import simulate
from server_worker.watch.events import RoundRecord

RECIPE = "mnist-iid-001"
EARLY, EARLY_ROUNDS = 0.983, 15
"""The paper's figure after 2000 rounds"""
LATE, LATE_ROUNDS = 0.990, 100
MAX_PARAMETERS = 500_000
PAPER_ROUNDS = 20


class Curve(QuietView):
    """Prints and keeps the evaluated rounds; stops the run where the caller has seen enough."""

    def __init__(self, name: str, last_round: int) -> None:
        self.name, self._last_round = name, last_round
        self.stop = threading.Event()
        self.points: dict[int, dict[str, float]] = {}

    def round_closed(self, record: RoundRecord) -> None:
        if record.accuracy:
            self.points[record.round] = {model: round(100 * a, 2) for model, a in record.accuracy.items()}
            accepted = f"accepted {record.accepted}/{record.selected}"
            print(
                f"{self.name:6} round {record.round:3}  {self.points[record.round]}  {accepted}", flush=True
            )
        if record.round >= self._last_round or self.first_round("global", LATE) is not None:
            self.stop.set()

    def first_round(self, model: str, target: float) -> int | None:
        reached = [number for number, point in self.points.items() if point[model] >= 100 * target]
        return min(reached, default=None)

    def best(self, model: str, rounds: int) -> float:
        return max((point[model] for number, point in self.points.items() if number <= rounds), default=0.0)


def train(curve: Curve, run_dir: Path, *overrides: str) -> Summary:
    recipe = read_recipe(RECIPE, list(overrides))
    return simulate(recipe, run_dir, workers=2, device="auto", resume=False, watcher=curve, stop=curve.stop)


def run() -> dict[str, Any]:
    if not os.environ.get("FEDIL_DATA"):
        raise SystemExit(
            "learning_mnist reads MNIST: set FEDIL_DATA to a folder that torchvision can read it from"
        )
    with tempfile.TemporaryDirectory() as folder:
        ours = Curve("fedil", LATE_ROUNDS)
        summary = train(ours, Path(folder) / "fedil")
        run_dir = Path(folder) / "fedil"
        parameters = sum(p.numel() for p in load_weights(run_dir, load_run(run_dir)).parameters())
        papers = Curve("paper", PAPER_ROUNDS)
        train(papers, Path(folder) / "paper", "profile=paper", "baseline_epochs=0")
    early, late = ours.best("global", EARLY_ROUNDS), ours.best("global", LATE_ROUNDS)
    assert summary.baseline_accuracy is not None
    return {
        "name": "learning_mnist",
        "ratio": round(min(early / (100 * EARLY), late / (100 * LATE)), 4),
        "bar": 1.0,
        "ok": early >= 100 * EARLY and late >= 100 * LATE and parameters <= MAX_PARAMETERS,
        "parameters": parameters,
        "best_within_15_rounds": early,
        "best_within_100_rounds": late,
        "last": ours.points[max(ours.points)],
        "first_round_at_99.0": {model: ours.first_round(model, LATE) for model in ("global", "server")},
        "server_only": round(100 * summary.baseline_accuracy, 2),
        "fedil": ours.points,
        "paper": papers.points,
    }
