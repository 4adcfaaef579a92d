"""A folder of pictures: root/train/<class>/* and root/test/<class>/*, or root/<class>/* of which a share is
held out for the test."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedil_model.augment import ImageViews
from fedil_model.datasets.holding_out import held_out
from fedil_model.datasets.interface import Dataset, Samples
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
) -> Dataset:
    """Pictures are resized to size×size when they are read. Without `mean` and `std`, pixels go to -1..1."""
    if root is None or not Path(root).is_dir():
        raise DataError(f"folder: data.root must be a folder with one folder a class in it, not {root}")
    if not 0.0 < test_share < 1.0 or size < 1:
        raise SettingError(
            f"data.options: test_share must be between 0 and 1 (is {test_share}), size at least 1 (is {size})"
        )
    root, channels = Path(root), 1 if gray else 3
    has_parts = (root / "train").is_dir() and (root / "test").is_dir()
    class_names = _class_names(root / "train" if has_parts else root)

    def load(part: str) -> Samples:
        if has_parts:
            files = _files(root / part, class_names)
        else:
            files = _part_of(_files(root, class_names), part, test_share)
        return _read(files, size, gray)

    views = ImageViews(
        tuple(mean or [0.5] * channels),
        tuple(std or [0.5] * channels),
        pad=max(1, size // 8),
        flip=flip,
        strong_kind=strong,
    )
    return Dataset(class_names, (channels, size, size), views, lambda: load("train"), lambda: load("test"))


def _class_names(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "."))
    if len(names) < 2:
        raise DataError(f"folder: {folder} must hold one folder for each class, at least two; found {names}")
    return names


def _files(folder: Path, class_names: tuple[str, ...]) -> Labelled:
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


def _read(files: Labelled, size: int, gray: bool) -> Samples:
    channels = 1 if gray else 3
    images = np.empty((len(files), size, size, channels), dtype=np.uint8)
    for place, (path, _) in enumerate(files):
        images[place] = _read_one(path, size, gray)
    labels = torch.tensor([label for _, label in files], dtype=torch.int64)
    return Samples(torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), labels)


def _read_one(path: Path, size: int, gray: bool) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            resized = picture.convert("L" if gray else "RGB").resize((size, size), Image.Resampling.BILINEAR)
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise DataError(f"folder: cannot read {path} as a picture ({error}); remove or replace it") from error
    return np.asarray(resized).reshape(size, size, -1)
