"""From settings to a dataset: one of ours, or a user's own `module:callable`."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fedil_model.data.datasets.checking import check_description, load
from fedil_model.data.datasets.csv_table import csv_table
from fedil_model.data.datasets.digits import digits
from fedil_model.data.datasets.folder import image_folder
from fedil_model.data.datasets.interface import Dataset
from fedil_model.data.datasets.medmnist import pathmnist, pneumoniamnist
from fedil_model.data.datasets.npz import npz
from fedil_model.data.datasets.torchvision_sets import cifar10, cifar100, fashion_mnist, mnist, svhn
from fedil_model.errors import SettingError
from fedil_model.plugins import call_with_options, is_plugin, load_callable, nearest, users_code
from fedil_model.settings import DataSettings

DATASETS: dict[str, Callable[..., Dataset]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "svhn": svhn,
    "pathmnist": pathmnist,
    "pneumoniamnist": pneumoniamnist,
    "folder": image_folder,
    "npz": npz,
    "csv": csv_table,
}


def open_dataset(settings: DataSettings) -> Dataset:
    """Calls the dataset's function with `data.options`, and with `root` and `download` if it names them. What it
    loads is checked."""
    make = _find(settings.name)
    with users_code("data.name", settings.name):
        dataset = call_with_options("data.options", make, options=_arguments(make, settings))
    if not isinstance(dataset, Dataset):
        raise SettingError(
            f"data.name: {settings.name!r} returned a {type(dataset).__name__}, "
            "not a fedil_model.data.datasets.interface.Dataset"
        )
    check_description(settings.name, dataset)
    return replace(
        dataset,
        class_names=tuple(dataset.class_names),
        input_shape=tuple(dataset.input_shape),
        load_train=partial(load, settings.name, dataset, "train"),
        load_test=partial(load, settings.name, dataset, "test"),
    )


def _find(name: str) -> Callable[..., Any]:
    if is_plugin(name):
        return load_callable("data.name", name)
    if name not in DATASETS:
        hint = nearest(name, sorted(DATASETS))
        raise SettingError(f"data.name: unknown {name!r}; {hint}, or your own 'module:callable'")
    return DATASETS[name]


def _arguments(make: Callable[..., Any], settings: DataSettings) -> dict[str, Any]:
    named = inspect.signature(make).parameters
    common = {"root": settings.root, "download": settings.download}
    return {key: value for key, value in common.items() if key in named} | settings.options
