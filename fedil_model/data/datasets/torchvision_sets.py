"""MNIST, FashionMNIST, CIFAR10, CIFAR100 and SVHN as torchvision stores them.

Files may be packed, as the mirrors give them, or unpacked, in `data.root` itself or in the folders that torchvision
makes there. The arrays are taken whole: torchvision's own item access makes one PIL picture at a time.
"""

import gzip
from dataclasses import dataclass
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
_SAME_FILES = {"MNIST", "FashionMNIST", "KMNIST", "QMNIST"}


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

    kind = getattr(torchvision.datasets, name)
    try:
        if name.endswith("MNIST"):
            return _open_idx(kind, root, part, download)
        if name == "SVHN":
            return kind(str(root), split=part, download=download)
        return _open_cifar(kind, root, part, download)
    except UNREADABLE as error:
        problem = "could not be downloaded to" if download else "are missing or damaged in"
        advice = (
            ""
            if download
            else "; set data.download=true, or name the right folder with --set data.root=FOLDER"
        )
        raise DataError(
            f"{name}: the {part} files {problem} {root}: {_reason(kind, root, part, error)}{advice}"
        ) from error


def _reason(kind: Any, root: Path, part: Part, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"there is no {error.filename}"
    if kind.__name__ != "SVHN" or not str(error).startswith("Dataset not found"):
        return str(error)
    file = root / kind.split_list[part][1]
    return f"{file} is damaged" if file.exists() else f"there is no {file}"


@dataclass(frozen=True)
class _Opened:
    data: np.ndarray
    targets: np.ndarray


def _open_idx(kind: Any, root: Path, part: Part, download: bool) -> _Opened:
    """MNIST and those that come in its files."""
    prefix = "train" if part == "train" else "t10k"
    names = (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    made = root / kind.__name__ / "raw"
    if download and _found(names[0], root, made) is None:
        kind(str(root), train=part == "train", download=True)
    if set(root.parts[-2:]) & _SAME_FILES - {kind.__name__}:
        root = made  # the files in it are those of another set, under the same names
    images, labels = (_read_idx(_found(name, root, made) or made / name) for name in names)
    if images.ndim != 3 or labels.ndim != 1:
        raise ValueError(f"{names[0]} or {names[1]} holds something else")
    return _Opened(images, labels)


def _found(name: str, root: Path, made: Path) -> Path | None:
    places = [folder / file for folder in (made, root / "raw", root) for file in (name, f"{name}.gz")]
    return next((place for place in places if place.is_file()), None)


def _read_idx(file: Path) -> np.ndarray:
    """Two bytes of zeros, the type (8: bytes), the number of axes, and the sizes in big-endian order"""
    body = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    if body[:3] != b"\0\0\x08" or len(body) < 4 + 4 * body[3]:
        raise ValueError(f"{file} is no file of MNIST's kind")
    axes = np.frombuffer(body, ">u4", body[3], offset=4)
    return np.frombuffer(body, np.uint8, offset=4 + 4 * body[3]).reshape(axes).copy()


def _open_cifar(kind: Any, root: Path, part: Part, download: bool) -> Any:
    from torchvision.datasets.utils import check_integrity, extract_archive

    root = root.parent if root.name == kind.base_folder else root
    archive = root / kind.filename
    if not (root / kind.base_folder).is_dir() and archive.is_file():
        if not check_integrity(str(archive), kind.tgz_md5):
            raise ValueError(f"{archive} is damaged")
        extract_archive(str(archive), str(root))
    try:
        return kind(str(root), train=part == "train", download=download)
    except RuntimeError as error:
        files = [root / kind.base_folder / name for name, _ in (*kind.train_list, *kind.test_list)]
        absent = next((file for file in files if not file.exists()), None)
        raise ValueError(f"there is no {absent}" if absent else str(error)) from error


def _as_samples(opened: Any) -> Samples:
    """MNIST N×H×W arrays, CIFAR N×H×W×3 arrays with a list of labels, SVHN N×3×H×W arrays."""
    labels = opened.labels if hasattr(opened, "labels") else opened.targets
    images = torch.as_tensor(opened.data)
    if images.dim() == 3:
        images = images[:, None]
    elif images.shape[-1] == 3 and images.shape[1] != 3:
        images = images.permute(0, 3, 1, 2)
    return Samples(images.contiguous(), torch.as_tensor(np.asarray(labels, dtype=np.int64)))
