"""Data that a run has not seen, in the form that its model takes: for external validation."""

from collections.abc import Sequence
from pathlib import Path

import torch

from fedil_model.data.datasets import open_dataset
from fedil_model.data.datasets.folder import class_folders, files_of_classes
from fedil_model.data.datasets.interface import Dataset, Samples, TableRows
from fedil_model.data.datasets.npz import PARTS, NpzFile
from fedil_model.data.datasets.pictures import picture_shape, read_pictures
from fedil_model.errors import DataError, SettingError
from fedil_model.settings import DataSettings
from ops.cli.recipe_files import with_data_root


def labelled_samples(source: str, dataset: Dataset, root: Path | None) -> Samples:
    """`source`: a folder of pictures, an .npz or .csv file, or the name of a dataset, whose test set is taken and whose
    files may be in `root`. Its classes are those of `dataset`, or some of them."""
    path = Path(source)
    if path.is_dir():
        return _from_folder(path, dataset)
    if path.suffix == ".npz":
        samples = NpzFile(path, "name another file").load(part_of(path), picture_shape(dataset))
        _check_labels(source, samples, dataset)
        return samples
    if path.suffix == ".csv":
        rows = read_rows(path, dataset)
        if rows.labels is None:
            raise DataError(f"{path} has no column of labels: it can only be predicted")
        return Samples(rows.inputs, rows.labels)
    if path.exists() or len(path.parts) > 1:
        raise SettingError(
            f"--data {source}: wants a folder of pictures, a .npz or .csv file, or the name of a dataset"
        )
    return _from_dataset(source, dataset, root)


def part_of(file: Path) -> str:
    """Of an .npz file, what is not for training if possible"""
    found = next((part for part in reversed(PARTS) if NpzFile(file, "name another file").has(part)), None)
    if found is None:
        raise DataError(f"{file} has no images: it should hold test_images, as MedMNIST's files do")
    return found


def read_rows(file: Path, dataset: Dataset) -> TableRows:
    if dataset.read_csv is None:
        raise SettingError(f'{file}: the run was not trained on a table (data.name = "csv")')
    return dataset.read_csv(file)


def _from_folder(folder: Path, dataset: Dataset) -> Samples:
    place = folder / "test" if (folder / "test").is_dir() else folder
    names = class_folders(place)
    files = files_of_classes(place, names)
    pictures = torch.from_numpy(read_pictures([file for file, _ in files], picture_shape(dataset)))
    return _matched(
        folder.name, Samples(pictures, torch.tensor([label for _, label in files])), names, dataset
    )


def _from_dataset(name: str, dataset: Dataset, root: Path | None) -> Samples:
    folder = root.parent if root is not None and root.is_file() else root
    other = open_dataset(with_data_root(DataSettings(name=name, root=folder)))
    if other.input_shape != dataset.input_shape:
        theirs, ours = ("×".join(map(str, shape)) for shape in (other.input_shape, dataset.input_shape))
        raise SettingError(f"--data {name} has samples of {theirs}, the model takes {ours}")
    return _matched(name, other.load_test(), other.class_names, dataset)


def _matched(source: str, samples: Samples, names: Sequence[str], dataset: Dataset) -> Samples:
    """Classes are the same by name, in whatever order."""
    if unknown := [name for name in names if name not in dataset.class_names]:
        raise SettingError(
            f"{source} has classes that the model does not know: {', '.join(unknown[:5])}"
            f"{' …' if unknown[5:] else ''}; it knows {', '.join(dataset.class_names[:10])}"
            f"{' …' if dataset.class_names[10:] else ''}"
        )
    places = torch.tensor([dataset.class_names.index(name) for name in names])
    return Samples(samples.inputs, places[samples.labels])


def _check_labels(source: str, samples: Samples, dataset: Dataset) -> None:
    """An .npz file has no names: its labels count as those of the run's dataset."""
    classes, labels = len(dataset.class_names), samples.labels
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise SettingError(
            f"{source} has labels from {labels.min()} to {labels.max()}, "
            f"the model knows {classes} classes, 0 to {classes - 1}"
        )
