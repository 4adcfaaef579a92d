"""Scikit-learn's 1,797 handwritten digits of 8×8 pixels: real data that needs no download."""

import importlib.util
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedil_model.data.augment import ImageViews
from fedil_model.data.datasets.class_names import DIGITS
from fedil_model.data.datasets.holding_out import held_out
from fedil_model.data.datasets.interface import Dataset, Samples

TEST_SHARE = 0.2
CSV_IN_SKLEARN = "datasets/data/digits.csv.gz"
MEAN, STD = 0.3048, 0.3756
"""Of the training pixels, on the scale of 0..1."""


def digits() -> Dataset:
    return Dataset(
        class_names=DIGITS,
        input_shape=(1, 8, 8),
        # On eight pixels a shift of one is already an eighth, and a cutout of four hides half of a stroke.
        views=ImageViews((MEAN,), (STD,), pad=1, pad_mode="zeros", strong_kind="affine", cutout_share=0.375),
        load_train=lambda: _load("train"),
        load_test=lambda: _load("test"),
    )


def _load(part: Literal["train", "test"]) -> Samples:
    pixels_NP, targets_N = _pixels_and_targets()
    is_test = held_out(targets_N, TEST_SHARE)
    chosen = is_test if part == "test" else ~is_test
    images = np.rint(pixels_NP[chosen] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)  # 17 levels
    return Samples(torch.from_numpy(images), torch.from_numpy(targets_N[chosen]))


def _pixels_and_targets() -> tuple[np.ndarray, np.ndarray]:
    """The file inside scikit-learn, without importing it: that takes 1 to 2 s, in every process."""
    package = importlib.util.find_spec("sklearn")
    file = Path(package.origin).parent / CSV_IN_SKLEARN if package and package.origin else None
    if file is not None and file.is_file():
        rows = np.loadtxt(file, delimiter=",")
        return rows[:, :-1], rows[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits  # should a later version keep its data elsewhere

    pixels, targets = load_digits(return_X_y=True)
    return pixels, targets.astype(np.int64)
