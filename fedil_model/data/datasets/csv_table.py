"""A table in a .csv file, or in train.csv and test.csv of a folder: one row a sample, one column the label.

Columns of numbers are scaled to mean 0 and deviation 1, columns of texts become one number a category. A missing number
becomes the mean, a missing or unknown category none of the categories; how many is logged. Means, deviations,
categories and classes are those of the training rows that the server has, never of the test rows. In a deployment
(split.partition = "elsewhere") these are its labelled rows, so nothing of the sites is needed; tasks and the run's
folder carry them to workers, whose shards have the same `columns`. In a simulation the file has all rows, and
the scale of the columns is that of the clients' rows too: `columns` in the recipe replaces it by what is known before.
"""

import json
import logging
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedil_model.data.augment import TensorViews
from fedil_model.data.datasets.class_names import checked_classes
from fedil_model.data.datasets.holding_out import held_out
from fedil_model.data.datasets.interface import Dataset, Samples, TableRows
from fedil_model.data.datasets.table_files import (
    Columns,
    Table,
    checked_columns,
    describe,
    encode_column,
    is_missing,
    read_table,
    sorted_values,
    width,
)
from fedil_model.errors import DataError, SettingError

_log = logging.getLogger(__name__)
_MOST_DESCRIBED = 48_000
"""Characters: a task carries them."""


def csv_table(
    root: Path | None,
    *,
    label: str,
    site: str = "",
    ignore: Sequence[str] = (),
    categorical: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    columns: Any = None,
    delimiter: str = ",",
    test_share: float = 0.2,
) -> Dataset:
    """`label` and `site` name columns, `ignore` those that are not used, `categorical` those of numbers that are names.
    `classes`: the labels in their order. `columns`: as `columns` of dataset.json in a run's folder."""
    if not 0.0 < test_share < 1.0 or len(delimiter) != 1:
        raise SettingError(
            f"data.options: test_share must be between 0 and 1 (is {test_share}), "
            f"delimiter one character (is {delimiter!r})"
        )
    data = _CsvData(root, label, site, tuple(ignore), tuple(categorical), delimiter, test_share)
    names = data.classes if classes is None else checked_classes(classes)
    described = data.columns if columns is None else checked_columns(columns)
    load = partial(data.load, names, described)
    return Dataset(
        names,
        (width(described),),
        TensorViews(),
        partial(load, "train"),
        partial(load, "test"),
        elsewhere={"classes": list(names), "columns": described},
        read_csv=partial(data.read_other, names, described),
    )


class _CsvData:
    def __init__(
        self,
        root: Path | None,
        label: str,
        site: str,
        ignore: tuple[str, ...],
        categorical: tuple[str, ...],
        delimiter: str,
        test_share: float,
    ) -> None:
        self._root, self._label, self._site, self._ignore = root, label, site, ignore
        self._categorical, self._delimiter, self._test_share = categorical, delimiter, test_share

    @cached_property
    def _parts(self) -> dict[str, Table]:
        root = self._root
        if root is None or not root.exists():
            raise DataError(
                f"csv: data.root must be a .csv file, or a folder with train.csv and test.csv, not {root} "
                "(where it is not, data.options needs classes and columns)"
            )
        if root.is_dir():
            return {part: read_table(root / f"{part}.csv", self._delimiter) for part in ("train", "test")}
        table = read_table(root, self._delimiter)
        is_test = held_out(np.array(self._labels(table)), self._test_share)
        return {
            "train": table.chosen(np.flatnonzero(~is_test).tolist()),
            "test": table.chosen(np.flatnonzero(is_test).tolist()),
        }

    @cached_property
    def classes(self) -> tuple[str, ...]:
        table = self._parts["train"]
        found = sorted_values(self._labels(table))
        if len(found) < 2:
            raise DataError(f"csv: {table.path}: column {self._label!r} has one class only, {found}")
        return tuple(found)

    @cached_property
    def columns(self) -> Columns:
        """Those that are not the label or the site's, and are not ignored"""
        table = self._parts["train"]
        for name in self._ignore:
            table.column(name, "data.options.ignore")
        left_out = {self._label, self._site, *self._ignore}
        described = describe(
            table, [name for name in table.header if name not in left_out], self._categorical
        )
        if not described or len(json.dumps(described)) > _MOST_DESCRIBED:
            raise DataError(
                f"csv: {table.path} has {len(described)} columns to learn from: "
                f"{'too many for a task, leave out some with' if described else 'see'} data.options.ignore"
            )
        return described

    def load(self, classes: tuple[str, ...], columns: Columns, part: Literal["train", "test"]) -> Samples:
        table = self._parts[part]
        owners = self._owners(table) if self._site and part == "train" else None
        return Samples(_encoded(table, columns), self._as_indices(table, classes), owners)

    def read_other(self, classes: tuple[str, ...], columns: Columns, file: Path) -> TableRows:
        table = read_table(file, self._delimiter)
        labels = self._as_indices(table, classes) if self._label in table.header else None
        return TableRows(_encoded(table, columns), labels, table.lines)

    def _labels(self, table: Table) -> list[str]:
        texts = table.column(self._label, "data.options.label")
        for place, text in enumerate(texts):
            if is_missing(text):
                raise table.wrong(place, self._label, "every row needs a label")
        return texts

    def _as_indices(self, table: Table, classes: tuple[str, ...]) -> Tensor:
        index = {name: place for place, name in enumerate(classes)}
        texts = self._labels(table)
        for place, text in enumerate(texts):
            if text not in index:
                raise table.wrong(
                    place, self._label, f"{text!r:.40} is none of the classes {', '.join(classes)}"
                )
        return torch.tensor([index[text] for text in texts], dtype=torch.int64)

    def _owners(self, table: Table) -> Tensor:
        texts = table.column(self._site, "data.options.site")
        for place, text in enumerate(texts):
            if is_missing(text):
                raise table.wrong(place, self._site, "every row needs a site")
        index = {name: place for place, name in enumerate(sorted_values(texts))}
        return torch.tensor([index[text] for text in texts], dtype=torch.int64)


def _encoded(table: Table, columns: Columns) -> Tensor:
    """float32, rows×numbers"""
    parts = []
    for name, about in columns.items():
        numbers, odd = encode_column(table, name, about)
        parts.append(torch.tensor(numbers, dtype=torch.float32))
        if any(odd.values()):
            _log.warning(
                "%s: column %r: %d of %d values are missing, %d unknown",
                table.path, name, odd["missing"], len(table.rows), odd["unknown"],
            )  # fmt: skip
    return torch.cat(parts, dim=1)
