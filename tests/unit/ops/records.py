"""Rounds and summaries as the server would report them, with a curve that rises."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from ops.inspect.summary import Summary
from server_worker.watch.events import ClientOutcome, RoundRecord


def make_record(number: int, rounds: int = 30, **changes: Any) -> RoundRecord:
    accuracy = 0.95 - 0.45 * math.exp(-number / 6)
    rejected = number % 4 == 0
    outcomes = [_outcome(client, 0.31) for client in range(4)]
    outcomes.append(_outcome(17, -0.021 if rejected else 0.2))
    record = RoundRecord(
        round=number,
        rounds=rounds,
        selected=5,
        accepted=4 if rejected else 5,
        outcomes=tuple(outcomes),
        delta_norm=1.7 / number,
        verdict="plateau",
        convergence={"exponent": 1.0, "rate": None},
        accuracy={"global": accuracy, "server": accuracy + 0.011},
        series={
            "reference_norm": 0.8,
            "loss_consistency": 0.2,
            "pseudo_labels": 40 * number,
            "credible": max(0, 25 * (number - 7)),
            "purity_pseudo_labels": 0.981,
            "purity_credible": None,
            "sure_share": 0.6,
        },
        seconds={"total": 1.9, "server_step": 0.4},
    )
    return dataclasses.replace(record, **changes)


def _outcome(client: int, cosine: float) -> ClientOutcome:
    accepted = cosine >= 0.0
    name = "accepted" if accepted else "rejected_cosine"
    return ClientOutcome(client, name, counts=accepted, values={"cosine": cosine})


def make_summary(run_dir: Path, **changes: Any) -> Summary:
    summary = Summary(
        run_dir=run_dir,
        rounds_done=30,
        rounds=30,
        accuracy={"global": 0.9470, "server": 0.9581},
        baseline_accuracy=0.8611,
        model_digest="3f2a9c0d4be17a55c01d9e8842f6b7aa",
        ledger_digest="b81c77e2a90f4d63185e0c3b9f2a7d44",
        split_digest="09e1d2c3b4a5968778695a4b3c2d1e0f",
        verdict="decaying, not summable",
        seconds=48.3,
        stopped=False,
    )
    return dataclasses.replace(summary, **changes)


def write_history(run_dir: Path, records: list[RoundRecord]) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(dataclasses.asdict(record)) for record in records]
    (run_dir / "history.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
