"""Explanations of a run's convergence verdict, which claim no more than its numbers show."""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from fedil_model.training.convergence import MIN_ROUNDS, judge
from ops.inspect.report.reading import Run


@cache
def meanings() -> dict[str, Mapping[str, str]]:
    """By verdict: headline, text and mood (good, fair, bad or unknown: selects the colour in the page)"""
    text = (Path(__file__).parent / "templates" / "verdicts.toml").read_text(encoding="utf-8")
    return tomllib.loads(text.replace("{min_rounds}", str(MIN_ROUNDS)))


def meaning_of(run: Run) -> Mapping[str, str]:
    if run.rounds_lost:
        return meanings()["not known"]
    said = run.records[-1].verdict if run.records else "too early to say"
    text = "This version does not know that verdict."
    return meanings().get(said, {"headline": said, "text": text, "mood": "unknown"})


def figures(run: Run) -> Iterator[tuple[str, str]]:
    """Name and value of the numbers behind the verdict."""
    if not run.records:
        return
    norms = [record.delta_norm for record in run.records]
    whole = [record.round for record in run.records] == list(range(1, len(norms) + 1))
    if whole:
        yield "p̂ of ‖Δθ‖ (±2 standard errors)", _fit(norms)
        by_effort = [record.convergence.get("lr_normalised") for record in run.records]
        yield "p̂ of ‖Δθ‖ ∕ (η · steps)", _fit([value or 0.0 for value in by_effort])
    last = run.records[-1].convergence
    names = {
        "share_decreasing": ("rounds of the last 10 with ‖Δₜ‖ ≤ ‖Δₜ₋₁‖ (the paper’s criterion)", "{:.0%}"),
        "rate": ("geometric rate over the last 10 rounds", "{:.3f}"),
        "relative": ("last ‖Δθ‖ ∕ ‖θ′‖", "{:.4f}"),
        "path": ("Σ ‖Δθ‖, the whole way", "{:.3g}"),
    }
    for key, (name, form) in names.items():
        value = last.get(key)
        if value is not None:
            yield name, form.format(value)


def _fit(norms: list[float]) -> str:
    verdict, exponent, error = judge(norms)
    if exponent is None or error is None:
        return verdict
    return f"{exponent:.2f} ± {2 * error:.2f}: {verdict}".replace("-", "−")
