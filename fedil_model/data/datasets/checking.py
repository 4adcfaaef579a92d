"""Checks what a dataset returns before training: a user's own may return anything."""

from typing import Literal

import torch
from torch import Tensor

from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.errors import DataError
from fedil_model.plugins import users_code

_FEW = 3
_CHUNK = 4096
"""So many samples are searched for NaN at a time: the mask of all may be large"""


def check_description(name: str, dataset: Dataset) -> None:
    """Tables and reports print the names, one row a class; a run that cannot be evaluated should not begin."""
    names: object = dataset.class_names
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) and n for n in names):
        raise DataError(f"data.name={name}: class_names must be a tuple of texts, not {names!r}")
    if len(set(names)) != len(names) or len(names) < 2:
        raise DataError(f"data.name={name}: class_names must be at least two, each once; found {names!r}")
    shape: object = dataset.input_shape
    if not isinstance(shape, list | tuple) or not all(isinstance(size, int) and size > 0 for size in shape):
        raise DataError(
            f"data.name={name}: input_shape must be a tuple of sizes, such as (8,), not {shape!r}"
        )


def load(name: str, dataset: Dataset, part: Literal["train", "test"]) -> Samples:
    call = f"load_{part}()"
    with users_code("data.name", name, call):
        samples = dataset.load_train() if part == "train" else dataset.load_test()
    _check_samples(samples, f"data.name={name}: {call}", len(dataset.class_names))
    return samples


def _check_samples(samples: Samples, source: str, num_classes: int) -> None:
    for name in ("inputs", "labels"):
        held = getattr(samples, name, None)
        if not isinstance(held, Tensor):
            raise DataError(
                f"{source} must return Samples of tensors: its {name} are of type {type(held).__name__}"
            )
    inputs, labels = samples.inputs, samples.labels
    if labels.dtype != torch.int64 or labels.dim() != 1:
        raise DataError(
            f"{source}: labels must be a vector of int64, not {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if inputs.dim() == 0 or len(inputs) != len(labels):
        raise DataError(f"{source}: inputs of shape {tuple(inputs.shape)} do not fit {len(labels)} labels")
    if not len(labels):
        raise DataError(f"{source} returned no sample")
    if not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise DataError(
            f"{source}: labels go from {labels.min()} to {labels.max()}, expected 0 to {num_classes - 1}"
        )
    owners: object = getattr(samples, "owners", None)
    if owners is not None and not (
        isinstance(owners, Tensor) and owners.dtype == torch.int64 and owners.shape == labels.shape
    ):
        raise DataError(f"{source}: owners must be a vector of int64 as long as the labels, or None")
    if inputs.is_floating_point() and not all(
        bool(part.isfinite().all()) for part in torch.split(inputs, _CHUNK)
    ):
        raise DataError(f"{source}: its inputs hold NaN or infinity")


def check_views(name: str, dataset: Dataset, train: Samples, test: Samples, device: torch.device) -> None:
    """A few samples through every view, where they will be made: what does not fit is told before a run begins."""
    _check_view(name, dataset, "plain", test, device)
    for view in ("plain", "weak", "strong"):
        _check_view(name, dataset, view, train, device)


def _check_view(name: str, dataset: Dataset, view: str, samples: Samples, device: torch.device) -> None:
    raw = samples.inputs[:_FEW].clone().to(device)
    generator = [] if view == "plain" else [torch.Generator().manual_seed(0)]
    call = f"views.{view}()"
    # A view that draws from torch's own generator must not shift what follows.
    with users_code("data.name", name, call), torch.random.fork_rng(devices=[]):
        seen: object = getattr(dataset.views, view)(raw, *generator)
    source, expected = f"data.name={name}: {call}", (len(raw), *dataset.input_shape)
    if not isinstance(seen, Tensor):
        raise DataError(f"{source} returned a {type(seen).__name__}, not a tensor")
    if tuple(seen.shape) != expected or seen.dtype != torch.float32:
        raise DataError(
            f"{source} turned {len(raw)} samples into {seen.dtype} of shape {tuple(seen.shape)}; with "
            f"input_shape={tuple(dataset.input_shape)} it must be torch.float32 of shape {expected}"
        )
    if not bool(seen.isfinite().all()):
        raise DataError(f"{source} gives NaN or infinity")
