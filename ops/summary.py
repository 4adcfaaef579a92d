"""What a finished (or stopped) simulation leaves behind, in one value."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Summary:
    run_dir: Path
    rounds_done: int
    rounds: int
    accuracy: Mapping[str, float]
    """Last known, by model: "global" (θ′), "server" (θ₀) …"""
    baseline_accuracy: float | None
    """Server-only training on the same labels."""
    model_digest: str
    """Of θ′."""
    ledger_digest: str
    split_digest: str
    verdict: str
    seconds: float
    stopped: bool
    """True when it was interrupted and can be resumed."""
