"""MNIST, FashionMNIST, CIFAR10, CIFAR100 and SVHN as torchvision stores them.

The arrays are taken whole: torchvision's own item access makes one PIL picture at a time.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedil_model.data.augment import ImageViews
from fedil_model.data.datasets.class_names import CIFAR10, CIFAR100, DIGITS, FASHION
from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.errors import DataError

Part = Literal["train", "test"]
UNREADABLE = (RuntimeError, OSError, EOFError, ValueError, AssertionError)
"""What torchvision raises for absent, cut-off or altered files, and for a failed download."""


def mnist(root: Path | None, download: bool = False) -> Dataset:
    # Crops by 2 pixels; black around a digit is where it really goes on.
    views = ImageViews((0.1307,), (0.3081,), pad=2, pad_mode="zeros", strong_kind="affine")
    return _dataset("MNIST", DIGITS, (1, 28, 28), views, root, download)


def fashion_mnist(root: Path | None, download: bool = False) -> Dataset:
    views = ImageViews((0.2860,), (0.3530,), pad=2, pad_mode="zeros", flip=True)
    return _dataset("FashionMNIST", FASHION, (1, 28, 28), views, root, download)


def cifar10(root: Path | None, download: bool = False) -> Dataset:
    views = ImageViews(
        (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616), flip=True
    )  # as FixMatch-pytorch has them
    return _dataset("CIFAR10", CIFAR10, (3, 32, 32), views, root, download)


def cifar100(root: Path | None, download: bool = False) -> Dataset:
    views = ImageViews(
        (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), flip=True
    )  # as FixMatch-pytorch has them
    return _dataset("CIFAR100", CIFAR100, (3, 32, 32), views, root, download)


def svhn(root: Path | None, download: bool = False) -> Dataset:
    views = ImageViews((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), flip=False)  # as SemiFL has them
    return _dataset("SVHN", DIGITS, (3, 32, 32), views, root, download)


def _dataset(
    name: str,
    class_names: tuple[str, ...],
    input_shape: tuple[int, ...],
    views: ImageViews,
    root: Path | None,
    download: bool,
) -> Dataset:
    def load(part: Part) -> Samples:
        return _as_samples(_open(name, root, part, download))

    return Dataset(class_names, input_shape, views, lambda: load("train"), lambda: load("test"))


def _open(name: str, root: Path | None, part: Part, download: bool) -> Any:
    if root is None:
        raise DataError(f"{name}: say where its files are (or shall be) with --set data.root=FOLDER")
    import torchvision.datasets  # takes two seconds, so only where files are read

    opened: Callable[..., Any] = getattr(torchvision.datasets, name)
    which = {"split": part} if name == "SVHN" else {"train": part == "train"}
    try:
        return opened(str(root), download=download, **which)
    except UNREADABLE as error:
        problem = "could not be downloaded to" if download else "are missing or damaged in"
        advice = "set data.download=true, or name the right folder with --set data.root=FOLDER"
        reason = f": {error}" if download else f"; {advice}"
        raise DataError(f"{name}: the {part} files {problem} {root}{reason}") from error


def _as_samples(opened: Any) -> Samples:
    """torchvision: MNIST N×H×W tensors, CIFAR N×H×W×3 arrays with a list of labels, SVHN N×3×H×W arrays."""
    labels = opened.labels if hasattr(opened, "labels") else opened.targets
    images = torch.as_tensor(opened.data)
    if images.dim() == 3:
        images = images[:, None]
    elif images.shape[-1] == 3 and images.shape[1] != 3:
        images = images.permute(0, 3, 1, 2)
    return Samples(images.contiguous(), torch.as_tensor(np.asarray(labels, dtype=np.int64)))
