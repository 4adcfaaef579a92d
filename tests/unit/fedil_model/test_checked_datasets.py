"""What a user's own dataset returns, which may be anything."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedil_model.data.augment import TensorViews
from fedil_model.data.datasets import open_dataset
from fedil_model.data.datasets.checking import check_views
from fedil_model.data.datasets.interface import Dataset, Samples, Views
from fedil_model.errors import DataError, SettingError
from fedil_model.settings import DataSettings

CPU = torch.device("cpu")
GOOD = Samples(torch.ones(6, 3), torch.arange(6) % 2)
NAN = torch.tensor([[1.0, float("nan"), 1.0]]).repeat(6, 1)
SAMPLES = {
    "other lengths": (
        Samples(GOOD.inputs, GOOD.labels[:-1]),
        r"inputs of shape \(6, 3\) do not fit 5 labels",
    ),
    "one number": (Samples(torch.tensor(1.0), GOOD.labels), r"inputs of shape \(\) do not fit"),
    "int32": (Samples(GOOD.inputs, GOOD.labels.int()), r"vector of int64, not torch\.int32"),
    "one-hot": (Samples(GOOD.inputs, torch.eye(2).long()), r"vector of int64.*shape \(2, 2\)"),
    "too large": (Samples(GOOD.inputs, GOOD.labels + 1), "labels go from 1 to 2, expected 0 to 1"),
    "none": (Samples(GOOD.inputs[:0], GOOD.labels[:0]), "returned no sample"),
    "arrays": (Samples(GOOD.inputs.numpy(), GOOD.labels), "its inputs are of type ndarray"),  # type: ignore[arg-type]
    "a tuple": ((GOOD.inputs, GOOD.labels), "must return Samples"),
    "not a number": (Samples(NAN, GOOD.labels), "hold NaN or infinity"),
}


def users_data(kind: str = "", part: str = "") -> Dataset:
    def load(asked: str) -> Samples:
        if asked != part:
            return GOOD
        return SAMPLES[kind][0] if kind else fail()  # type: ignore[return-value]

    return Dataset(("a", "b"), (3,), TensorViews(), lambda: load("train"), lambda: load("test"))


def fail() -> Samples:
    raise KeyError("no such column")


def opened(**options: str) -> Dataset:
    return open_dataset(DataSettings(name=f"{__name__}:users_data", options=options))


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize("kind", SAMPLES)
def test_samples_that_do_not_fit_are_named(kind: str, part: str) -> None:
    dataset = opened(kind=kind, part=part)
    load = {"train": dataset.load_train, "test": dataset.load_test}[part]
    with pytest.raises(
        DataError, match=rf"^data\.name={__name__}:users_data: load_{part}\(\).*{SAMPLES[kind][1]}"
    ):
        load()


def test_a_loader_that_raises_is_named_with_its_place() -> None:
    with pytest.raises(
        SettingError, match=rf"users_data: load_test\(\): KeyError: 'no such column' \({__file__}:\d+\)$"
    ):
        opened(part="test").load_test()


class OtherViews(TensorViews):
    """`view` gives something else than it should."""

    def __init__(self, view: str, change: str) -> None:
        super().__init__()
        self._view, self._change = view, change

    def plain(self, raw: Tensor) -> Tensor:
        return self._changed("plain", raw.float())

    def weak(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        return self._changed("weak", raw.float())

    def strong(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        torch.rand(1)
        return self._changed("strong", raw.float())

    def _changed(self, view: str, seen: Tensor) -> Tensor:
        changed: Tensor = CHANGES[self._change][0](seen) if view == self._view else seen
        return changed


CHANGES: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "narrower": (lambda seen: seen[:, :2], r"shape \(3, 2\); with input_shape=\(3,\) .* of shape \(3, 3\)"),
    "fewer": (lambda seen: seen[:2], r"turned 3 samples into torch\.float32 of shape \(2, 3\)"),
    "whole numbers": (lambda seen: seen.byte(), r"into torch\.uint8"),
    "doubles": (lambda seen: seen.double(), r"into torch\.float64"),
    "not a number": (lambda seen: seen * float("nan"), "gives NaN or infinity"),
    "a list": (lambda seen: seen.tolist(), "returned a list"),
}


def with_views(views: Views) -> Dataset:
    return replace(opened(), views=views)


@pytest.mark.parametrize("view", ["plain", "weak", "strong"])
@pytest.mark.parametrize("change", CHANGES)
def test_views_that_do_not_fit_are_named(view: str, change: str) -> None:
    dataset = with_views(OtherViews(view, change))
    with pytest.raises(DataError, match=rf"^data\.name=users:data: views\.{view}\(\) .*{CHANGES[change][1]}"):
        check_views("users:data", dataset, GOOD, GOOD, CPU)


def test_a_test_set_of_another_shape_is_named() -> None:
    with pytest.raises(DataError, match=r"views\.plain\(\) turned 3 samples"):
        check_views("users:data", opened(), GOOD, replace(GOOD, inputs=torch.ones(6, 4)), CPU)


def test_a_view_that_raises_is_named() -> None:
    dataset = with_views(OtherViews("strong", "unheard of"))
    with pytest.raises(SettingError, match=r"views\.strong\(\): KeyError: 'unheard of' \(.*\.py:\d+\)$"):
        check_views(f"{__name__}:users_data", dataset, GOOD, GOOD, CPU)


def test_looking_at_views_changes_neither_samples_nor_what_is_drawn_next() -> None:
    samples = Samples(GOOD.inputs.clone(), GOOD.labels)

    class InPlace(OtherViews):
        def plain(self, raw: Tensor) -> Tensor:
            return raw.mul_(2.0)

    before = torch.get_rng_state()
    check_views("users:data", with_views(InPlace("", "")), samples, samples, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(samples.inputs, GOOD.inputs)


DESCRIPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "numbers": ({"class_names": (0, 1)}, r"class_names must be a tuple of texts, not \(0, 1\)"),
    "one text": ({"class_names": "ab"}, "class_names must be a tuple of texts, not 'ab'"),
    "no names": ({"class_names": None}, "class_names must be a tuple of texts, not None"),
    "one name": ({"class_names": ("a",)}, "class_names must be at least two"),
    "a name twice": ({"class_names": ("a", "a")}, "class_names must be at least two, each once"),
    "a number": ({"input_shape": 3}, r"input_shape must be a tuple of sizes, such as \(8,\), not 3"),
    "texts": ({"input_shape": ("3",)}, "input_shape must be a tuple of sizes"),
}


def described(kind: str) -> Dataset:
    return replace(users_data(), **DESCRIPTIONS[kind][0])


@pytest.mark.parametrize("kind", DESCRIPTIONS)
def test_what_could_not_be_evaluated_later_is_told_when_the_dataset_is_opened(kind: str) -> None:
    settings = DataSettings(name=f"{__name__}:described", options={"kind": kind})
    with pytest.raises(DataError, match=DESCRIPTIONS[kind][1]):
        open_dataset(settings)
