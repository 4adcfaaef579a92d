"""The recipe mnist-iid-001 (600 labels, 100 clients, 5 a round): accuracy of θ′ and θ₀ by round, for the profiles
`fedil` and `paper`, with server-only training beside them. FEDIL_DATA says where MNIST lies.

Both play a number of rounds that is fixed beforehand; accuracy on the test set stops nothing. What counts is the mean
of the last LAST evaluations. Server-only training has the budget of the server of `fedil`, and is chosen on held-out
labels. One seed.
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
ROUNDS, PAPER_ROUNDS = 50, 25
LAST = 5
TARGET = 0.990
"""The paper has 0.983 after 2000 rounds."""
MAX_PARAMETERS = 500_000


class Curve(QuietView):
    """Prints and keeps the evaluated rounds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.points: dict[int, dict[str, float]] = {}

    def round_closed(self, record: RoundRecord) -> None:
        if record.accuracy:
            self.points[record.round] = {model: round(100 * a, 2) for model, a in record.accuracy.items()}
            accepted = f"accepted {record.accepted}/{record.selected}"
            print(
                f"{self.name:6} round {record.round:3}  {self.points[record.round]}  {accepted}", flush=True
            )

    def last(self) -> dict[str, float]:
        """By model, the mean of the last evaluations"""
        points = [self.points[number] for number in sorted(self.points)[-LAST:]]
        return {model: round(sum(p[model] for p in points) / len(points), 3) for model in points[-1]}


def train(curve: Curve, run_dir: Path, rounds: int, *overrides: str) -> Summary:
    recipe = read_recipe(RECIPE, [f"rounds={rounds}", *overrides])
    if recipe.baseline_epochs:
        recipe = recipe.model_copy(update={"baseline_epochs": None})
    stop = threading.Event()
    return simulate(recipe, run_dir, workers=2, device="auto", resume=False, watcher=curve, stop=stop)


def run() -> dict[str, Any]:
    if not os.environ.get("FEDIL_DATA"):
        raise SystemExit(
            "learning_mnist reads MNIST: set FEDIL_DATA to a folder that torchvision can read it from"
        )
    ours, papers = Curve("fedil"), Curve("paper")
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "fedil"
        summary = train(ours, run_dir, ROUNDS)
        parameters = sum(p.numel() for p in load_weights(run_dir, load_run(run_dir)).parameters())
        train(papers, Path(folder) / "paper", PAPER_ROUNDS, "profile=paper", "baseline_epochs=0")
    assert summary.baseline_accuracy is not None
    reached, server_only = ours.last()["global"], round(100 * summary.baseline_accuracy, 2)
    return {
        "name": "learning_mnist",
        "ratio": round(reached / (100 * TARGET), 4),
        "bar": 1.0,
        "ok": reached >= 100 * TARGET and reached > server_only and parameters <= MAX_PARAMETERS,
        "parameters": parameters,
        "mean_of_last_evaluations": {"fedil": ours.last(), "paper": papers.last()},
        "server_only": server_only,
        "fedil": ours.points,
        "paper": papers.points,
    }
