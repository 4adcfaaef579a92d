"""The verdicts of algorithm.md 5.4, each on the series that it is given there for."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from fedil_model.training.convergence import VERDICTS, Convergence, Increment, assess, judge

SUMMABLE, DECAYING, PLATEAU, DIVERGING, STALLED, EARLY = (
    "consistent with a summable series",
    "decaying, not summable",
    "plateau",
    "diverging",
    "stalled",
    "too early to say",
)
T = np.arange(1, 401, dtype=np.float64)
COSINE_LR = (1 + np.cos(np.pi * (T - 1) / len(T))) / 2


def assessed(
    norms: Sequence[float] | np.ndarray,
    rates: Sequence[float] | np.ndarray | None = None,
    steps: Sequence[float] | np.ndarray | None = None,
) -> Convergence:
    rates = np.ones(len(norms)) if rates is None else rates
    steps = np.full(len(norms), 50) if steps is None else steps
    increments = [
        Increment(float(n), float(r * s), 10.0) for n, r, s in zip(norms, rates, steps, strict=True)
    ]
    return assess(increments)


@pytest.mark.parametrize(
    ("norms", "verdict", "exponent"),
    [
        pytest.param(
            1 / T, DECAYING, 1.0, id="1/t: the harmonic series that the paper would call convergent"
        ),
        pytest.param(T**-0.5, DECAYING, 0.5, id="1/sqrt(t)"),
        pytest.param(T**-2, SUMMABLE, 2.0, id="1/t^2"),
        pytest.param(0.99**T, SUMMABLE, 2.93, id="geometric"),
        pytest.param(1.01**T, DIVERGING, -2.90, id="growing"),
        pytest.param(np.ones(400), PLATEAU, 0.0, id="constant"),
    ],
)
def test_a_series_is_summable_only_if_it_decays_faster_than_1_over_t(
    norms: np.ndarray, verdict: str, exponent: float
) -> None:
    result = assessed(norms)
    assert result.verdict == verdict
    assert result.exponent == pytest.approx(exponent, abs=0.01)


def test_a_summable_series_need_not_decrease() -> None:
    alternating = np.where(T % 2 == 0, 2.0**-T, 3.0**-T)
    result = assessed(alternating)
    assert result.verdict == SUMMABLE
    assert result.share_decreasing == 0.5


def test_a_series_that_always_decreases_meets_the_papers_criterion_and_is_still_not_called_summable() -> None:
    result = assessed(1 / T)
    assert result.share_decreasing == 1.0
    assert result.verdict == DECAYING


def test_noise_around_a_constant_is_a_plateau() -> None:
    """At two standard errors, one such series in twenty looks like a slow trend, but none like a summable one."""
    noises = [np.random.default_rng(seed).standard_normal(400) for seed in range(100)]
    verdicts = [assessed(1 + 0.1 * noise).verdict for noise in noises]
    assert verdicts[0] == PLATEAU
    assert verdicts.count(PLATEAU) >= 90
    assert SUMMABLE not in verdicts


def test_zeros_are_a_stall_and_not_a_limit() -> None:
    assert assessed(np.zeros(50)).verdict == STALLED


@pytest.mark.parametrize(("zeros", "verdict"), [(5, SUMMABLE), (6, STALLED)])
def test_a_run_stalls_when_more_than_half_of_the_window_is_zero(zeros: int, verdict: str) -> None:
    norms = T**-2
    norms[len(norms) - zeros :] = 0.0
    assert assessed(norms).verdict == verdict


def test_a_cosine_learning_rate_does_not_make_constant_drift_summable() -> None:
    assert judge(list(COSINE_LR))[0] == SUMMABLE
    noise = 1 + 0.01 * np.random.default_rng(0).standard_normal(len(T))
    for drift in (np.ones(len(T)), noise):
        assert assessed(COSINE_LR * drift, COSINE_LR).verdict == PLATEAU


def test_increments_that_shrink_less_than_the_learning_rate_are_diverging() -> None:
    assert judge(list(COSINE_LR * 1.01**T))[0] == SUMMABLE
    assert assessed(COSINE_LR * 1.01**T, COSINE_LR).verdict == DIVERGING


def test_increments_that_grow_under_a_falling_learning_rate_are_diverging() -> None:
    rates = 0.5 + COSINE_LR / 2
    assert assessed(rates * 1.02**T, rates).verdict == DIVERGING


PROMOTED = 20 - 15 * T / len(T)
"""Steps of a client as its samples are promoted, from 20 to 5"""


@pytest.mark.parametrize("rates", [np.full(len(T), 0.05), COSINE_LR], ids=["constant", "cosine"])
@pytest.mark.parametrize(("decay", "verdict"), [(0.0, PLATEAU), (0.5, DECAYING), (2.0, SUMMABLE)])
def test_fewer_steps_of_clients_do_not_improve_a_verdict(
    rates: np.ndarray, decay: float, verdict: str
) -> None:
    """As samples are promoted, a client has fewer unlabelled ones and makes fewer steps."""
    norms = rates * PROMOTED * T**-decay
    assert VERDICTS.index(judge(list(norms))[0]) > VERDICTS.index(PLATEAU)
    assert assessed(norms, rates, PROMOTED).verdict == verdict


def test_increments_that_shrink_less_than_the_steps_behind_them_are_diverging() -> None:
    norms = T**-0.2
    assert judge(list(norms))[0] == DECAYING
    assert assessed(norms, steps=PROMOTED).verdict == DIVERGING


def test_rounds_that_only_the_server_moved_are_a_stall() -> None:
    """Nobody was accepted, and θ′ took the server's own step."""
    assert assessed(T**-2, steps=np.zeros(len(T))).verdict == STALLED


def test_real_decay_under_a_cosine_learning_rate_stays_summable() -> None:
    assert assessed(COSINE_LR * T**-2, COSINE_LR).verdict == SUMMABLE


def test_the_raw_series_counts_too() -> None:
    """A learning rate that grows would hide a plateau."""
    assert assessed(np.ones(len(T)), T**2).verdict == PLATEAU


@pytest.mark.parametrize("rounds", range(8))
def test_fewer_than_eight_rounds_are_too_early(rounds: int) -> None:
    result = assessed(T[:rounds] ** -2)
    assert result.verdict == EARLY
    assert result.exponent is None


def test_eight_rounds_are_enough() -> None:
    assert assessed(T[:8] ** -2).verdict == SUMMABLE


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_norms_that_are_no_numbers_are_diverging(bad: float) -> None:
    assert judge([*(T[:20] ** -2), bad])[0] == DIVERGING


def test_no_verdict_claims_that_a_run_has_converged() -> None:
    assert set(VERDICTS) == {SUMMABLE, DECAYING, PLATEAU, DIVERGING, STALLED, EARLY}
    assert not any("converge" in verdict for verdict in VERDICTS)


def test_noise_widens_the_error_until_nothing_is_claimed() -> None:
    rough = T[:20] ** -1.5 * np.exp(np.random.default_rng(1).standard_normal(20))
    verdict, exponent, error = judge(list(rough))
    assert verdict != SUMMABLE
    assert exponent is not None
    assert error is not None
    assert error > 0.5


def test_the_exponents_error_is_that_of_ordinary_least_squares() -> None:
    norms = T[:40] ** -1.2 * np.exp(0.1 * np.random.default_rng(2).standard_normal(40))
    x, y = np.log(T[20:40]), np.log(norms[20:])
    coefficients, covariance = np.polyfit(x, y, 1, cov=True)
    _, exponent, error = judge(list(norms))
    assert exponent == pytest.approx(-coefficients[0])
    assert error == pytest.approx(math.sqrt(covariance[0, 0]))


def test_the_numbers_beside_the_verdict() -> None:
    norms = [2.0**-t for t in range(12)]
    result = assess([Increment(n, 0.5, 4.0) for n in norms])
    assert result.ratio == 0.5
    assert result.rate == pytest.approx(0.5)
    assert result.path == math.fsum(norms)
    assert result.moving_average == pytest.approx(math.fsum(norms[-10:]) / 10)
    assert result.relative == norms[-1] / 4.0
    assert result.lr_normalised == norms[-1] / 0.5
    assert result.share_decreasing == 1.0


def test_nothing_is_divided_by_zero() -> None:
    result = assess([Increment(0.0, 0.0, 0.0)] * 12)
    assert result.verdict == STALLED
    assert (result.ratio, result.relative, result.rate) == (None, None, None)
    empty = assess([])
    assert (empty.verdict, empty.path, empty.moving_average, empty.share_decreasing) == (
        EARLY,
        0.0,
        None,
        None,
    )
