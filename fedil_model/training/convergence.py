"""What the increments' norms say of convergence, without saying more than they can.

The paper calls a run convergent when ‖Δθ‖ decreases. A decreasing series need not be summable (1/t), and a
summable one need not decrease, so that criterion is reported beside a verdict from the power-law exponent
p̂ = −slope of log ‖Δ‖ against log t: a series is summable only if it decays faster than 1/t.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

# From worst to best
VERDICTS = (
    "too early to say",
    "stalled",
    "diverging",
    "plateau",
    "decaying, not summable",
    "consistent with a summable series",
)
MIN_ROUNDS = 8
WINDOW = 10
"""Rounds that count as the last ones"""
ROUNDING = 1e-6
"""A series without noise has a standard error of 0; its rounding must not decide."""


@dataclass(frozen=True)
class Convergence:
    verdict: str
    exponent: float | None
    """p̂ of ‖Δθ‖"""
    exponent_error: float | None
    ratio: float | None
    """r_t = ‖Δ_t‖ / ‖Δ_{t−1}‖"""
    moving_average: float | None
    relative: float | None
    """‖Δ‖ / ‖θ′‖"""
    lr_normalised: float | None
    """‖Δ‖ / (η · steps)"""
    rate: float | None
    """Windowed geometric rate q̂"""
    path: float
    """Σ ‖Δ‖"""
    share_decreasing: float | None
    """The paper's own criterion: share of the window with r_t ≤ 1."""


@dataclass(frozen=True)
class Increment:
    """What one round contributes."""

    norm: float
    effort: float
    """η × steps of one client: with less of it, every increment is smaller"""
    model_norm: float


def assess(increments: Sequence[Increment]) -> Convergence:
    """A falling learning rate makes any series look summable, and so do clients that make fewer steps because their
    samples are promoted. What the norms seem to show must also hold of what one step moves, ‖Δ‖ / (η · steps): the
    worse of the two verdicts stands."""
    norms = [i.norm for i in increments]
    # Where no client counted, θ′ may have taken the server's own step: that is a stall, too.
    normalised = [i.norm / i.effort if i.effort > 0 else 0.0 for i in increments]
    (raw, exponent, error), (adjusted, _, _) = judge(norms), judge(normalised)
    last = increments[-1] if increments else None
    recent = norms[-WINDOW:]
    return Convergence(
        verdict=min(raw, adjusted, key=VERDICTS.index),
        exponent=exponent,
        exponent_error=error,
        ratio=norms[-1] / norms[-2] if len(norms) > 1 and norms[-2] > 0 else None,
        moving_average=float(np.mean(recent)) if recent else None,
        relative=last.norm / last.model_norm if last and last.model_norm > 0 else None,
        lr_normalised=normalised[-1] if normalised else None,
        rate=_geometric_rate(norms),
        path=math.fsum(norms),
        share_decreasing=_share_decreasing(norms),
    )


def judge(norms: Sequence[float]) -> tuple[str, float | None, float | None]:
    """(verdict, p̂, its standard error) for one series."""
    if len(norms) < MIN_ROUNDS:
        return "too early to say", None, None
    if not all(map(math.isfinite, norms)):
        return "diverging", None, None
    if sum(1 for n in norms[-WINDOW:] if n <= 0.0) * 2 > min(WINDOW, len(norms)):
        return "stalled", None, None
    first = len(norms) // 2
    rounds = np.arange(first + 1, len(norms) + 1, dtype=np.float64)
    tail = np.asarray(norms[first:], dtype=np.float64)
    moving = tail > 0
    if moving.sum() < 4:
        return "stalled", None, None
    slope, error = _slope(np.log(rounds[moving]), np.log(tail[moving]))
    return _verdict(-slope, error), -slope, error


def _verdict(exponent: float, error: float) -> str:
    margin = 2 * error + ROUNDING
    if exponent + margin < 0:
        return "diverging"
    if exponent - margin <= 0:
        return "plateau"
    return "consistent with a summable series" if exponent - margin > 1 else "decaying, not summable"


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Ordinary least squares: slope and its standard error."""
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    residuals = y - y.mean() - slope * centred
    return slope, math.sqrt(float(residuals @ residuals) / (len(x) - 2) / spread)


def _geometric_rate(norms: Sequence[float]) -> float | None:
    if len(norms) <= WINDOW or norms[-1] <= 0 or norms[-1 - WINDOW] <= 0:
        return None
    return float((norms[-1] / norms[-1 - WINDOW]) ** (1.0 / WINDOW))


def _share_decreasing(norms: Sequence[float]) -> float | None:
    pairs = list(pairwise(norms))[-WINDOW:]
    return sum(1 for before, after in pairs if after <= before) / len(pairs) if pairs else None
