"""PathMNIST and PneumoniaMNIST as MedMNIST stores them: one NAME.npz each, with its own training and test set.

PathMNIST's test set comes from another clinical centre than its training set.
"""

from functools import partial
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np
import torch

from fedil_model.data.augment import ImageViews
from fedil_model.data.datasets.class_names import PATHMNIST, PNEUMONIAMNIST
from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.errors import DataError

_UNREADABLE = (OSError, EOFError, ValueError, KeyError, BadZipFile)


def pathmnist(root: Path | None) -> Dataset:
    views = ImageViews((0.7133, 0.5396, 0.7133), (0.1236, 0.1724, 0.1221), flip=True)
    return _dataset("pathmnist", PATHMNIST, (3, 28, 28), views, root)


def pneumoniamnist(root: Path | None) -> Dataset:
    views = ImageViews((0.5719,), (0.1684,), pad=2)  # not flipped: the heart is on the left
    return _dataset("pneumoniamnist", PNEUMONIAMNIST, (1, 28, 28), views, root)


def _dataset(
    name: str, class_names: tuple[str, ...], shape: tuple[int, ...], views: ImageViews, root: Path | None
) -> Dataset:
    load = partial(_load, name, shape, root)
    return Dataset(class_names, shape, views, partial(load, "train"), partial(load, "test"))


def _load(name: str, shape: tuple[int, ...], root: Path | None, part: Literal["train", "test"]) -> Samples:
    if root is None:
        raise DataError(f"{name}: say where {name}.npz lies with --set data.root=FOLDER")
    file = root / f"{name}.npz"
    try:
        with np.load(file) as arrays:
            images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
    except _UNREADABLE as error:
        raise DataError(
            f"{name}: {file} is missing or damaged; copy MedMNIST's {name}.npz there, "
            "or name its folder with --set data.root=FOLDER"
        ) from error
    channels, *size = shape
    if images.dtype != np.uint8 or list(images.shape[1:3]) != size:
        raise DataError(
            f"{name}: {file} has images of {images.dtype} and {images.shape[1:]}, not 28×28 uint8"
        )
    images = images.reshape(len(images), *size, channels).transpose(0, 3, 1, 2)
    return Samples(torch.tensor(images), torch.tensor(labels.reshape(-1).astype(np.int64)))
