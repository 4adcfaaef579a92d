"""PathMNIST and PneumoniaMNIST with their names and means; all others of MedMNIST are data.name = "npz".

PathMNIST's test set comes from another clinical centre than its training set.
"""

from pathlib import Path

from fedil_model.data.augment import ImageViews
from fedil_model.data.datasets.class_names import PATHMNIST, PNEUMONIAMNIST
from fedil_model.data.datasets.interface import Dataset
from fedil_model.data.datasets.npz import NpzFile, npz_dataset


def pathmnist(root: Path | None) -> Dataset:
    views = ImageViews((0.7133, 0.5396, 0.7133), (0.1236, 0.1724, 0.1221), flip=True)
    return npz_dataset(_file("pathmnist", root), PATHMNIST, (3, 28, 28), views)


def pneumoniamnist(root: Path | None) -> Dataset:
    views = ImageViews((0.5719,), (0.1684,), pad=2)  # not flipped: the heart is on the left
    return npz_dataset(_file("pneumoniamnist", root), PNEUMONIAMNIST, (1, 28, 28), views)


def _file(name: str, root: Path | None) -> NpzFile:
    """`root`: the file, or the folder that it is in"""
    file = root if root is None or root.suffix == ".npz" else root / f"{name}.npz"
    return NpzFile(file, f"copy MedMNIST's {name}.npz there, or name its folder with --set data.root=FOLDER")
