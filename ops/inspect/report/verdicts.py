"""Explanations of a run's convergence verdict, which claim no more than its numbers show."""

from collections.abc import Iterator
from dataclasses import dataclass

from fedil_model.training.convergence import MIN_ROUNDS, judge
from ops.inspect.report.reading import Run

TOO_EARLY = "too early to say"
ALWAYS = (
    "Whatever the verdict: finitely many rounds never prove convergence, and a limit of θ′ would say nothing about "
    "how accurate it is there. Look at the accuracy for that."
)


@dataclass(frozen=True)
class Meaning:
    headline: str
    text: str
    mood: str
    """good, fair, bad or unknown: selects the colour in the page"""


MEANINGS = {
    TOO_EARLY: Meaning(
        "Too early to say",
        f"Fewer than {MIN_ROUNDS} rounds: nothing can be said of how ‖Δθ‖ behaves.",
        "unknown",
    ),
    "stalled": Meaning(
        "Stalled",
        "In more than half of the last ten rounds the global model did not move: no update was accepted, or every step "
        "was zero. "
        "From outside this looks like convergence. It is not.",
        "bad",
    ),
    "diverging": Meaning(
        "Consistent with divergence",
        "The steps ‖Δθ‖ grow from round to round, by themselves or in proportion to the learning rate and the number "
        "of clients’ steps behind them, or are not finite any more. A lower learning rate or clipping is the first "
        "thing to try.",
        "bad",
    ),
    "plateau": Meaning(
        "Consistent with a plateau",
        "The steps ‖Δθ‖ neither shrink nor grow measurably, or shrink only because the learning rate or the number of "
        "clients’ steps does: with the same effort θ′ would keep wandering by about the same distance each round. Its "
        "accuracy may be steady all the same.",
        "fair",
    ),
    "decaying, not summable": Meaning(
        "Consistent with steps that shrink, but too slowly to be sure of a limit",
        "The steps ‖Δθ‖ shrink, but not measurably faster than 1/t. The sum of such steps may grow without end, so "
        "θ′ may drift for ever, ever more slowly; that they decrease is not enough for convergence.",
        "fair",
    ),
    "consistent with a summable series": Meaning(
        "Consistent with steps whose sum is finite",
        "The steps ‖Δθ‖ shrink measurably faster than 1/t. If they went on like this for ever, their sum would be "
        "finite and θ′ would have a limit.",
        "good",
    ),
}


UNKNOWN = Meaning("Not known", "The history is missing, and with it the steps ‖Δθ‖ of the rounds.", "unknown")


def meaning_of(run: Run) -> Meaning:
    if run.rounds_lost:
        return UNKNOWN
    said = run.records[-1].verdict if run.records else TOO_EARLY
    unknown = Meaning(str(said), "This version does not know that verdict.", "unknown")
    return MEANINGS.get(said, unknown)


def verdict(run: Run) -> dict[str, object]:
    """Values of the page's verdict"""
    return {"meaning": meaning_of(run), "caution": ALWAYS, "figures": list(figures(run)), "method": HOW}


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


HOW = (
    "p̂ is fitted to the second half of the rounds: ‖Δθ‖ ~ t to the power −p̂. A series has a finite sum only if it "
    "shrinks faster than 1/t, that is p̂ > 1. A falling learning rate η, or clients that make fewer steps, make any "
    "‖Δθ‖ shrink, so the fit is repeated for ‖Δθ‖ ∕ (η · steps), and the worse verdict stands."
)
