"""What a finished (or stopped) run leaves behind, in one value."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server_worker.run.digests import Outcome
    from server_worker.run.folder import RunDir
    from server_worker.run.recipe import Recipe


@dataclass(frozen=True)
class Summary:
    run_dir: Path
    rounds_done: int
    rounds: int
    accuracy: Mapping[str, float]
    """Last known, by the name of the model"""
    baseline_accuracy: float | None
    """Server-only training on the same labels."""
    model_digest: str
    """Of the model that ships"""
    ledger_digest: str
    split_digest: str
    verdict: str
    seconds: float
    stopped: bool
    """True when it was interrupted and can be resumed."""


def summarise(
    where: "RunDir", recipe: "Recipe", outcome: "Outcome", *, seconds: float, baseline: float | None = None
) -> Summary:
    from server_worker.run.history import read_history

    rounds = list(read_history(where.history))
    accuracies = [r["accuracy"] for r in rounds if r["accuracy"]]
    return Summary(
        run_dir=where.root,
        rounds_done=outcome.rounds_done,
        rounds=recipe.rounds,
        accuracy=dict(accuracies[-1]) if accuracies else {},
        baseline_accuracy=baseline,
        model_digest=outcome.model_digest,
        ledger_digest=outcome.ledger_digest,
        split_digest=outcome.split_digest,
        verdict=str(rounds[-1]["verdict"]) if rounds else "too early to say",
        seconds=seconds,
        stopped=outcome.stopped,
    )
