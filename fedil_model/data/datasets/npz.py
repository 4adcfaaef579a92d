"""Pictures in one .npz file, in MedMNIST's layout: train_images, train_labels, test_images, test_labels, and perhaps
val_images and val_labels, which are left alone unless `use_val` adds them to the training set.

Images are uint8, N×height×width or N×height×width×channels with 1 or 3 channels; labels N or N×1, from 0 up.
"""

from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch

from fedil_model.data.augment import ImageViews
from fedil_model.data.datasets.class_names import checked_classes
from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.data.datasets.pictures import Shape
from fedil_model.errors import DataError, SettingError

PARTS = ("train", "val", "test")
_DAMAGED = (OSError, EOFError, ValueError, KeyError, BadZipFile)


def npz(
    root: Path | None,
    *,
    classes: Sequence[str] | None = None,
    shape: Sequence[int] | None = None,
    use_val: bool = False,
    flip: bool = False,
    strong: Literal["randaugment", "affine"] = "randaugment",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Dataset:
    """`root` is the file. `classes` (names in the order of their labels) and `shape` (channels, height, width) are
    taken from it where they are not given. Without `mean` and `std`, pixels go to -1..1."""
    file = NpzFile(root)
    size = _checked_shape(shape) if shape is not None else file.shape("train")
    names = file.class_names() if classes is None else checked_classes(classes)
    views = ImageViews(
        tuple(mean or [0.5] * size[0]),
        tuple(std or [0.5] * size[0]),
        pad=max(1, min(size[1:]) // 8),
        flip=flip,
        strong_kind=strong,
    )
    return npz_dataset(file, names, size, views, use_val=use_val)


def npz_dataset(
    file: "NpzFile", class_names: tuple[str, ...], shape: Shape, views: ImageViews, *, use_val: bool = False
) -> Dataset:
    def load_train() -> Samples:
        parts = [file.load(part, shape) for part in (("train", "val") if use_val else ("train",))]
        return Samples(torch.cat([one.inputs for one in parts]), torch.cat([one.labels for one in parts]))

    elsewhere = {"classes": list(class_names), "shape": list(shape)}
    return Dataset(class_names, shape, views, load_train, partial(file.load, "test", shape), elsewhere)


class NpzFile:
    """Raises DataError that names the file and the array."""

    def __init__(self, path: Path | None, missing: str = "") -> None:
        """`missing`: what helps if it is not there"""
        self._path = path
        self._missing = missing or (
            "name the file with --set data.root=FILE.npz (sites without it need data.options.classes and shape)"
        )

    def load(self, part: str, shape: Shape) -> Samples:
        images, labels = self.images(part, shape), self._labels(part)
        if len(images) != len(labels):
            raise self._wrong(f"{part}_images has {len(images)} images, {part}_labels {len(labels)} labels")
        return Samples(images, torch.from_numpy(labels))

    def _labels(self, part: str) -> np.ndarray:
        labels = self._read(f"{part}_labels")
        if labels.ndim == 0 or labels.size != len(labels) or labels.dtype.kind not in "iu":
            several = " (several labels an image are not supported)" if labels.ndim > 1 else ""
            raise self._wrong(
                f"{part}_labels has {labels.dtype} of {labels.shape}; wanted is one whole number an image{several}"
            )
        return labels.reshape(-1).astype(np.int64)

    def images(self, part: str, shape: Shape) -> torch.Tensor:
        """uint8, N×channels×height×width"""
        found = self.shape(part)
        if found != shape:
            wanted = "×".join(map(str, shape))
            raise self._wrong(f"{part}_images has {'×'.join(map(str, found))} images, not {wanted}")
        channels, height, width = shape
        images = self._read(f"{part}_images").reshape(-1, height, width, channels)
        return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))

    def shape(self, part: str) -> Shape:
        """Of its images, without reading them"""
        name = f"{part}_images"
        with self._opened() as archive, archive.open(f"{name}.npy") as entry:
            size, dtype = _header(entry)
        channels = size[3] if len(size) == 4 else 1
        if dtype != np.uint8 or len(size) not in (3, 4) or channels not in (1, 3):
            raise self._wrong(
                f"{name} has {dtype} of {size}; wanted is uint8 of N×height×width, or with 1 or 3 channels at the end"
            )
        return channels, size[1], size[2]

    def has(self, part: str) -> bool:
        with self._opened() as archive:
            return f"{part}_images.npy" in archive.namelist()

    def class_names(self) -> tuple[str, ...]:
        """Numbers, as many as the training set has: the file has no names."""
        labels = self._labels("train")
        return tuple(map(str, range(int(labels.max(initial=-1)) + 1)))

    def _read(self, name: str) -> np.ndarray:
        with self._opened() as archive, archive.open(f"{name}.npy") as entry:
            return np.lib.format.read_array(entry, allow_pickle=False)

    @contextmanager
    def _opened(self) -> Any:
        if self._path is None:
            raise DataError(f"npz: there is no file: {self._missing}")
        try:
            with ZipFile(self._path) as archive:
                yield archive
        except DataError:
            raise
        except FileNotFoundError as error:
            raise DataError(f"npz: there is no {self._path}: {self._missing}") from error
        except KeyError as error:
            raise self._wrong(f"it has no {str(error).split(chr(39))[1].removesuffix('.npy')}") from error
        except _DAMAGED as error:
            raise self._wrong(f"it is no .npz file, or is damaged ({error})") from error

    def _wrong(self, why: str) -> DataError:
        return DataError(f"npz: {self._path}: {why}")


def _header(entry: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(entry)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    size, _, dtype = read(entry)
    return size, dtype


def _checked_shape(shape: Sequence[int]) -> Shape:
    if not isinstance(shape, list | tuple) or len(shape) != 3 or shape[0] not in (1, 3) or min(shape) < 1:
        raise SettingError(
            f"data.options.shape must be [channels, height, width], channels 1 or 3; not {shape!r}"
        )
    channels, height, width = shape
    return channels, height, width
