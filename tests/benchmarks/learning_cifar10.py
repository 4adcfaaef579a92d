"""The recipe cifar10-iid-001 (500 labels, 100 clients, 5 a round) on two cores: accuracy of θ′, the model that ships,
15 minutes after the start and at the end, for three seeds. FEDIL_DATA says where CIFAR-10 lies.

The bars are 61.4 % after 15 minutes (the paper has 61.31 after 2000 rounds with a network 16 times as large) and 68 %
at the end, within 60 minutes. A processor without bf16 takes two to three times as long.
"""

from statistics import fmean
from typing import Any

from ops.study.cells import parse_seeds
from tests.benchmarks._learning import learn, mean_and_spread

RECIPE = "cifar10-iid-001"
EARLY_SECONDS, EARLY_BAR = 15 * 60, 61.4
LATE_SECONDS, LATE_BAR = 60 * 60, 68.0
_SHOWN = (20, 40, 60, 80, 100, 120, 140, 160, 180, 200)


def run(seeds: str = "0-2") -> dict[str, Any]:
    runs = [learn(RECIPE, seed) for seed in parse_seeds(seeds)]
    # Training before round 1 runs in one process: its CPU seconds are its seconds.
    before = max(one["cpu_seconds_before_round_1"] for one in runs)
    each = max((one["seconds_a_round"] for one in runs if one["seconds_a_round"]), default=None)
    if each is None:
        raise SystemExit("no run was played by two workers: nothing says where it was after 15 minutes")
    early_round = max(
        point["round"] for point in runs[0]["curve"] if before + each * point["round"] <= EARLY_SECONDS
    )
    early = [_accuracy_at(one["curve"], early_round) for one in runs]
    late, spread = mean_and_spread([one["accuracy"]["global"] for one in runs])
    seconds = round(before + each * runs[0]["rounds"])
    result = {
        "name": "learning_cifar10",
        "ratio": round(min(fmean(early) / EARLY_BAR, late / LATE_BAR), 4),
        "bar": 1.0,
        "ok": fmean(early) >= EARLY_BAR and late >= LATE_BAR and seconds <= LATE_SECONDS,
        "round_after_15_minutes": early_round,
        "after_15_minutes": early,
        "at_the_end": late,
        "spread": spread,
        "seconds_a_round": each,
        "seconds": seconds,
    }
    rows = [_row(one) for one in runs]
    headings = ["θ′ / θ₀ in %", *(f"round {number}" for number in _SHOWN), "last 5 evaluations", "CPU s"]
    return {**result, "details": {"headings": headings, "rows": rows, "runs": runs}}


def _accuracy_at(curve: list[dict[str, float]], number: int) -> float:
    """The evaluation of that round alone: single evaluations vary by a point or two."""
    return next(point["global"] for point in curve if point["round"] == number)


def _row(one: dict[str, Any]) -> list[str]:
    by_round = {point["round"]: point for point in one["curve"]}
    cells = [
        f"{by_round[n]['global']:.1f} / {by_round[n]['server']:.1f}" if n in by_round else "–" for n in _SHOWN
    ]
    means = one["accuracy"]
    return [
        f"seed {one['seed']}",
        *cells,
        f"**{means['global']:.2f}** / {means['server']:.2f}",
        str(one["cpu_seconds"]),
    ]
