"""How the size of a run's updates has developed, and the numbers behind that."""

from collections.abc import Iterator

from fedil_model.training.convergence import judge
from ops.inspect.report.reading import Run
from server_worker.watch.words import Trend, trend


def trend_of(run: Run) -> Trend:
    if run.rounds_lost:
        return trend("not known")
    return trend(run.records[-1].verdict if run.records else "too early to say")


def figures(run: Run) -> Iterator[tuple[str, str]]:
    """Name and value of the numbers behind the verdict."""
    if not run.records:
        return
    norms = [record.delta_norm for record in run.records]
    whole = [record.round for record in run.records] == list(range(1, len(norms) + 1))
    if whole:
        yield "p̂ of the update size ‖Δθ‖ (±2 standard errors)", _fit(norms)
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
        return trend(verdict).words
    return f"{exponent:.2f} ± {2 * error:.2f}: {trend(verdict).words}".replace("-", "−")
