"""What the engine asks of data: tensors and classes, not pictures.

Adding a dataset: one file with a function that returns a `Dataset`, and one line in `DATASETS`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor


class Views(Protocol):
    """Raw samples as stored → what the network eats. All three are batched; randomness comes only from the
    generator, so that a task is a pure function of its seed."""

    def plain(self, raw: Tensor) -> Tensor: ...

    def weak(self, raw: Tensor, generator: torch.Generator) -> Tensor: ...

    def strong(self, raw: Tensor, generator: torch.Generator) -> Tensor: ...


@dataclass(frozen=True)
class Samples:
    """Raw inputs of any shape and type (images: uint8, N×channels×height×width) with int64 labels."""

    inputs: Tensor
    labels: Tensor
    owners: Tensor | None = None
    """int64, where the data says to which client each sample belongs: split.partition = "natural" """


@dataclass(frozen=True)
class TableRows:
    inputs: Tensor
    labels: Tensor | None
    """None: the file has no column with them"""
    lines: Sequence[int]
    """Where each row is in the file"""


@dataclass(frozen=True)
class Dataset:
    """Cheap to make: reading files waits for `load_train` or `load_test`, so a client's process, which needs
    only the views, never touches a label."""

    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]
    """Shape of one sample as `views` return it."""
    views: Views
    load_train: Callable[[], Samples]
    load_test: Callable[[], Samples]
    elsewhere: Mapping[str, Any] = field(default_factory=dict)
    """Options with which it opens where its files are not, as JSON values: tasks and the run's folder carry them."""
    read_csv: Callable[[Path], TableRows] | None = None
    """Of a table: another .csv file with the same columns"""
