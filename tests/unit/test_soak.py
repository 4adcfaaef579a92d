"""What the benchmark `soak` calls flat."""

import random

import pytest

from tests.benchmarks.soak import is_bounded, trend

ROUNDS = 2000
NUMBERS = [float(number) for number in range(ROUNDS // 2, ROUNDS, 10)]


def series(per_round: float, noise: float) -> list[float]:
    chance = random.Random(0)
    return [500.0 + per_round * number + chance.gauss(0.0, noise) for number in NUMBERS]


@pytest.mark.parametrize(
    ("per_round", "noise", "flat"),
    [(0.0, 1.0, True), (0.004, 0.0, True), (0.01, 0.5, False), (-0.01, 0.5, False), (0.01, 100.0, True)],
    ids=["noise", "too slow to matter", "grows", "shrinks", "drowned in noise"],
)
def test_memory_is_flat_if_its_slope_is_small_or_within_its_error(
    per_round: float, noise: float, flat: bool
) -> None:
    found = trend(NUMBERS, series(per_round, noise))
    assert found.slope == pytest.approx(per_round, abs=4 * found.error + 1e-9)
    assert found.is_flat(ROUNDS) == flat


def test_the_standard_error_is_that_of_repeated_measurements() -> None:
    chance = random.Random(1)
    slopes = [trend(NUMBERS, [chance.gauss(500.0, 2.0) for _ in NUMBERS]) for _ in range(300)]
    spread = (sum(found.slope**2 for found in slopes) / len(slopes)) ** 0.5
    errors = (sum(found.error**2 for found in slopes) / len(slopes)) ** 0.5
    assert errors == pytest.approx(spread, rel=0.15)


def test_a_size_is_bounded_if_it_goes_up_and_down_and_not_if_it_grows() -> None:
    assert is_bounded([float(number % 30) for number in range(200)])
    assert is_bounded([float(min(number, 90)) for number in range(200)])
    assert not is_bounded([float(number) for number in range(200)])
