"""The sum itself: exact up to one rounding of each entry, whatever the order."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedil_model.errors import NumericError
from fedil_model.training import exact_sum
from fedil_model.training.exact_sum import GRID, ExactSum

CPU = torch.device("cpu")


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def draw(size: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


# The sum itself

floats = st.floats(-1000, 1000, width=32)
# Halves of the grid: where rounding to even would show an order, if the running total had a say in it.
ties = st.integers(-(2**20), 2**20).map(lambda n: (n + 0.5) * GRID)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(floats | ties, min_size=3, max_size=3), min_size=1, max_size=20), data=st.data()
)
def test_the_sum_is_exact_up_to_rounding_each_entry_to_the_grid(rows: list[list[float]], data: Any) -> None:
    vectors = [torch.tensor(row, dtype=torch.float32) for row in rows]
    straight, shuffled = ExactSum(3, CPU), ExactSum(3, CPU)
    for x in vectors:
        straight.add(x, 1000.0)
    for x in data.draw(st.permutations(vectors)):
        shuffled.add(x, 1000.0)
    mean = straight.mean(len(rows))
    assert torch.equal(mean, shuffled.mean(len(rows)))
    for column in range(3):
        oracle = sum((Fraction(float(x[column])) for x in vectors), Fraction(0)) / len(rows)
        assert abs(Fraction(float(mean[column])) - oracle) <= Fraction(GRID) / 2 + abs(oracle) / 2**23


def test_thousands_of_small_vectors_sum_like_fsum_in_either_order() -> None:
    table = np.random.default_rng(0).normal(1e-3, 1e-2, (5000, 7)).astype(np.float32)
    forwards, backwards = ExactSum(7, CPU), ExactSum(7, CPU)
    for row in table:
        forwards.add(torch.from_numpy(row), 0.1)
    for row in table[::-1].copy():
        backwards.add(torch.from_numpy(row), 0.1)
    assert torch.equal(forwards.mean(5000), backwards.mean(5000))
    oracle = np.array([math.fsum(column.tolist()) / 5000 for column in table.T])
    assert np.allclose(forwards.mean(5000).numpy(), oracle, rtol=2**-23, atol=GRID)
    # What this replaces would have differed.
    plain = np.add.reduce(table, axis=0), np.add.reduce(table[::-1], axis=0)
    assert not np.array_equal(*plain)


def test_totals_that_wrap_around_64_bits_come_out_right() -> None:
    """Every addition carries the bits of a float64 constant, so the raw totals overflow at the second."""
    total = ExactSum(2, CPU)
    for count in range(1, 300):
        total.add(vector(1023.0, -1023.0), 1023.0)
        assert total.mean(count).tolist() == [1023.0, -1023.0]


def test_a_full_sum_looks_again_before_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_sum, "ROOM", 100.0)
    total = ExactSum(1, CPU)
    for _ in range(50):
        total.add(vector(30.0), 30.0)
        total.add(vector(-30.0), 30.0)
    for _ in range(3):
        total.add(vector(30.0), 30.0)
    with pytest.raises(NumericError):
        total.add(vector(30.0), 30.0)
    assert total.mean(1.0).tolist() == [90.0]


@pytest.mark.parametrize("largest", [1025.0, math.inf, math.nan])
def test_an_entry_too_large_to_round_is_refused(largest: float) -> None:
    with pytest.raises(NumericError):
        ExactSum(1, CPU).add(vector(1), largest)


def test_an_empty_sum_has_an_empty_mean() -> None:
    total = ExactSum(0, CPU)
    total.add(vector(), 0.0)
    assert total.mean(1.0).numel() == 0
