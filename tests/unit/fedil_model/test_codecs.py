from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedil_model.errors import StateError
from fedil_model.settings import Codec
from fedil_model.training.codecs import CODECS, decode, encode

PLENTY = 1 << 30


def chance(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def update(size: int = 5000, seed: int = 0) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(seed)
    params = (drawn.standard_normal(size) * 10.0 ** drawn.integers(-6, 2, size)).astype(np.float32)
    return {"delta.params": params, "delta.buffers": np.arange(5, dtype=np.float32)}


def size_of(arrays: dict[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())


def test_every_codec_is_known_by_its_name() -> None:
    assert {name: name for name in get_args(Codec)} == CODECS


def test_fp32_is_sent_as_it_is() -> None:
    sent = encode(update(), "fp32", chance())
    assert size_of(sent) == size_of(update())
    for name, array in decode(sent, PLENTY).items():
        assert np.array_equal(array, update()[name])


@pytest.mark.parametrize(("codec", "share"), [("fp16", 0.5), ("int8", 0.27)])
def test_an_update_takes_a_share_of_the_bytes_and_comes_back_nearly_as_it_was(
    codec: Any, share: float
) -> None:
    before = update()
    sent = encode(before, codec, chance())
    assert size_of(sent) <= share * size_of(before) + 64
    after = decode(sent, PLENTY)
    assert list(after) == list(before)
    difference = np.linalg.norm(after["delta.params"] - before["delta.params"])
    assert 0 < difference < 0.04 * np.linalg.norm(before["delta.params"])
    assert after["delta.params"].dtype == np.float32
    assert np.array_equal(after["delta.buffers"], before["delta.buffers"])


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    one, same, other = (encode(update(), "int8", chance(seed))["delta.params"] for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_the_mean_over_many_updates_is_right() -> None:
    wanted = update()["delta.params"]
    drawn = [decode(encode(update(), "int8", chance(seed)), PLENTY)["delta.params"] for seed in range(200)]
    one_off = np.linalg.norm(drawn[0] - wanted)
    assert np.linalg.norm(np.mean(drawn, axis=0, dtype=np.float64) - wanted) < 0.15 * one_off


@given(st.integers(1024, 3000), st.integers(0, 2**32))
def test_no_number_is_off_by_more_than_a_step(size: int, seed: int) -> None:
    numbers = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    restored = decode(encode({"x": numbers}, "int8", chance(seed)), PLENTY)["x"]
    assert np.abs(restored - numbers).max() <= np.abs(numbers).max() / 127 * 1.001


def test_blocks_of_zeros_and_shapes_are_kept() -> None:
    numbers = np.zeros((40, 50), np.float32)
    numbers[3, 4] = -2.0
    assert np.array_equal(decode(encode({"x": numbers}, "int8", chance()), PLENTY)["x"], numbers)


def test_other_types_and_small_arrays_are_sent_as_they_are() -> None:
    arrays: dict[str, np.ndarray] = {"places": np.arange(2000), "few": np.ones(1000, np.float32)}
    sent = encode(arrays, "int8", chance())
    assert all(sent[name] is array for name, array in arrays.items())


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": np.zeros(2000, np.int8), "x:scales": np.zeros(3, np.float32)},
        {"x": np.zeros(2000, np.int8), "x:scales": np.zeros(8, np.float64)},
        {"x": np.zeros(2000, np.int8), "x:scales": np.zeros((8, 1), np.float32)},
    ],
)
def test_scales_that_do_not_fit_are_refused(arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(StateError, match=r"^x has 2000 numbers and \d scales of type float\d\d$"):
        decode(arrays, PLENTY)


@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_an_update_that_would_grow_beyond_the_limit_is_refused(codec: Any) -> None:
    sent = encode(update(), codec, chance())
    decode(sent, 20_100)
    with pytest.raises(StateError, match="more than 19999 bytes"):
        decode(sent, 19_999)


@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_numbers_that_are_not_finite_stay_so(codec: Any) -> None:
    broken = update()
    broken["delta.params"][7] = np.nan
    assert not np.isfinite(decode(encode(broken, codec, chance()), PLENTY)["delta.params"]).all()
