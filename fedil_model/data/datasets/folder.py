"""A folder of pictures: root/train/<class>/* and root/test/<class>/*, or root/<class>/* of which a share is
held out for the test. Where it is not, at a site without labels, `classes` says what is in it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedil_model.data.augment import ImageViews
from fedil_model.data.datasets.class_names import checked_classes
from fedil_model.data.datasets.holding_out import held_out
from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.errors import DataError, SettingError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"})

Labelled = list[tuple[Path, int]]


def image_folder(
    root: Path | None,
    *,
    size: int = 32,
    gray: bool = False,
    flip: bool = False,
    strong: Literal["randaugment", "affine"] = "randaugment",
    test_share: float = 0.2,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    classes: Sequence[str] | None = None,
) -> Dataset:
    """Pictures are resized to size×size when they are read. Without `mean` and `std`, pixels go to -1..1.
    `classes` are the names of the class folders, in the order of their labels."""
    if not 0.0 < test_share < 1.0 or size < 1:
        raise SettingError(
            f"data.options: test_share must be between 0 and 1 (is {test_share}), size at least 1 (is {size})"
        )
    channels = 1 if gray else 3
    class_names = (
        class_folders(_training_folder(_existing(root))) if classes is None else checked_classes(classes)
    )

    def load(part: str) -> Samples:
        from fedil_model.data.datasets.pictures import read_pictures  # imports Pillow, for reading files only

        labelled = _existing(root)
        if classes is not None:
            _compare(class_names, _training_folder(labelled))
        files, labels = zip(*_files_of(labelled, part, class_names, test_share), strict=True)
        images = read_pictures(files, (channels, size, size))
        return Samples(torch.from_numpy(images), torch.tensor(labels, dtype=torch.int64))

    views = ImageViews(
        tuple(mean or [0.5] * channels),
        tuple(std or [0.5] * channels),
        pad=max(1, size // 8),
        flip=flip,
        strong_kind=strong,
    )
    elsewhere = {"classes": list(class_names)}
    return Dataset(
        class_names, (channels, size, size), views, lambda: load("train"), lambda: load("test"), elsewhere
    )


def _existing(root: Path | None) -> Path:
    if root is None or not Path(root).is_dir():
        raise DataError(
            f"folder: data.root must be a folder with one folder a class in it, not {root} "
            "(sites without labels need none if the recipe names the classes: data.options.classes)"
        )
    return Path(root)


def _has_parts(root: Path) -> bool:
    return (root / "train").is_dir() and (root / "test").is_dir()


def _training_folder(root: Path) -> Path:
    return root / "train" if _has_parts(root) else root


def _compare(classes: tuple[str, ...], folder: Path) -> None:
    """A folder that is not named would be left out silently, and a missing one would be a class without samples."""
    different = sorted(set(classes) ^ set(class_folders(folder)))
    if different:
        raise DataError(
            f"folder: data.options.classes and the folders in {folder} differ in {', '.join(different[:5])}"
            f"{' …' if different[5:] else ''}"
        )


def class_folders(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."))
    if len(names) < 2:
        raise DataError(f"folder: {folder} must hold one folder for each class, at least two; found {names}")
    return names


def _files_of(root: Path, part: str, class_names: tuple[str, ...], test_share: float) -> Labelled:
    if _has_parts(root):
        return files_of_classes(root / part, class_names)
    return _part_of(files_of_classes(root, class_names), part, test_share)


def files_of_classes(folder: Path, class_names: tuple[str, ...]) -> Labelled:
    """Sorted, so that an index means the same picture on every machine."""
    files = [
        (path, label)
        for label, name in enumerate(class_names)
        for path in sorted((folder / name).glob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    if not files:
        raise DataError(f"folder: no pictures in the class folders of {folder}")
    return files


def _part_of(files: Labelled, part: str, test_share: float) -> Labelled:
    is_test = held_out(np.array([label for _, label in files]), test_share)
    chosen = [entry for entry, for_test in zip(files, is_test, strict=True) if for_test == (part == "test")]
    if not chosen:
        raise DataError(
            f"folder: test_share={test_share} of {len(files)} pictures leaves none for the {part} set"
        )
    return chosen
