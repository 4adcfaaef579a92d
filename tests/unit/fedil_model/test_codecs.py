from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedil_model.errors import StateError
from fedil_model.settings import Codec
from fedil_model.training.codecs import CODECS, decode, encode

PLENTY = 1 << 30
NOTHING: dict[str, np.ndarray] = {}


def update(size: int = 5000, seed: int = 0) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(seed)
    params = (drawn.standard_normal(size) * 10.0 ** drawn.integers(-6, 2, size)).astype(np.float32)
    return {"delta.params": params, "delta.buffers": np.arange(5, dtype=np.float32)}


def size_of(arrays: dict[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())


def test_every_codec_is_known_by_its_name() -> None:
    assert {name: name for name in get_args(Codec)} == CODECS


def test_fp32_is_sent_as_it_is_and_nothing_is_lost() -> None:
    sent, lost = encode(update(), "fp32", NOTHING)
    assert lost == {}
    for name, array in decode(sent, PLENTY).items():
        assert array is update()[name] or np.array_equal(array, update()[name])


@pytest.mark.parametrize(("codec", "share"), [("fp16", 0.5), ("int8", 0.27)])
def test_an_update_takes_a_share_of_the_bytes_and_comes_back_nearly_as_it_was(
    codec: Any, share: float
) -> None:
    before = update()
    sent, _ = encode(before, codec, NOTHING)
    assert size_of(sent) <= share * size_of(before) + 64
    after = decode(sent, PLENTY)
    assert list(after) == list(before)
    difference = np.linalg.norm(after["delta.params"] - before["delta.params"])
    assert 0 < difference < 0.02 * np.linalg.norm(before["delta.params"])
    assert after["delta.params"].dtype == np.float32
    assert np.array_equal(after["delta.buffers"], before["delta.buffers"])


@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_what_is_lost_is_sent_later_so_that_sums_stay_right(codec: Any) -> None:
    wanted = update(seed=1)
    lost, received = NOTHING, np.zeros(5000)
    without = np.zeros(5000)
    for _ in range(50):
        sent, lost = encode(wanted, codec, lost)
        received += decode(sent, PLENTY)["delta.params"]
        without += decode(encode(wanted, codec, NOTHING)[0], PLENTY)["delta.params"]
    exact = 50.0 * wanted["delta.params"].astype(np.float64)
    assert lost["delta.params"].dtype == np.float16
    assert np.linalg.norm(received - exact) < 0.1 * np.linalg.norm(without - exact)


@given(st.integers(1024, 3000), st.sampled_from(["fp16", "int8"]), st.integers(0, 2**32))
def test_no_number_is_off_by_more_than_half_a_step(size: int, codec: Any, seed: int) -> None:
    numbers = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    sent, lost = encode({"x": numbers}, codec, NOTHING)
    restored = decode(sent, PLENTY)["x"]
    off = np.abs(restored - numbers)
    assert off.max() <= np.abs(numbers).max() / 127 / 2 * 1.001
    np.testing.assert_allclose(lost["x"], numbers - restored, atol=1e-3, rtol=1e-3)


def test_blocks_of_zeros_and_shapes_are_kept() -> None:
    numbers = np.zeros((40, 50), np.float32)
    numbers[3, 4] = -2.0
    sent, lost = encode({"x": numbers}, "int8", NOTHING)
    assert np.array_equal(decode(sent, PLENTY)["x"], numbers)
    assert not lost["x"].any()


def test_what_was_lost_by_an_update_of_another_shape_is_left_out() -> None:
    sent, _ = encode(update(), "int8", {"delta.params": np.ones(3, np.float16)})
    plain, _ = encode(update(), "int8", NOTHING)
    assert np.array_equal(sent["delta.params"], plain["delta.params"])


def test_other_types_and_small_arrays_are_sent_as_they_are() -> None:
    arrays: dict[str, np.ndarray] = {"places": np.arange(2000), "few": np.ones(1000, np.float32)}
    sent, lost = encode(arrays, "int8", NOTHING)
    assert lost == {}
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
    sent, _ = encode(update(), codec, NOTHING)
    decode(sent, 20_100)
    with pytest.raises(StateError, match="more than 19999 bytes"):
        decode(sent, 19_999)


def test_numbers_that_are_not_finite_stay_so() -> None:
    broken = update()
    broken["delta.params"][7] = np.nan
    for codec in ("fp16", "int8"):
        restored = decode(encode(broken, CODECS[codec], NOTHING)[0], PLENTY)
        assert not np.isfinite(restored["delta.params"]).all()
