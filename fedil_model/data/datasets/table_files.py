"""A .csv file as rows of texts, and what its columns are. Errors name the file, the row as an editor counts it, and the
column."""

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedil_model.errors import DataError, SettingError
from fedil_model.plugins import nearest

_MISSING = frozenset({"", "na", "n/a", "nan", "null", "?"})
_MOST_CATEGORIES = 100


def is_missing(text: str) -> bool:
    return text.strip().lower() in _MISSING


@dataclass(frozen=True)
class Table:
    path: Path
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    lines: Sequence[int]
    """Where each row is in the file"""

    def column(self, name: str, option: str = "") -> list[str]:
        if name not in self.header:
            hint = nearest(name, self.header)
            raise DataError(f"csv: {self.path} has no column {name!r}{option and f' ({option})'}; {hint}")
        place = self.header.index(name)
        return [row[place].strip() for row in self.rows]

    def wrong(self, place: int, column: str, why: str) -> DataError:
        return DataError(f"csv: {self.path}: row {self.lines[place]}, column {column!r}: {why}")

    def chosen(self, places: Sequence[int]) -> "Table":
        rows, lines = [self.rows[place] for place in places], [self.lines[place] for place in places]
        return Table(self.path, self.header, rows, lines)


def read_table(path: Path, delimiter: str = ",") -> Table:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = [name.strip() for name in next(reader, [])]
            numbered = [(reader.line_num, row) for row in reader if row]
    except OSError as error:
        raise DataError(f"csv: cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"csv: {path} is no table in UTF-8: {error}") from error
    _check(path, header, numbered, delimiter)
    return Table(path, header, [row for _, row in numbered], [line for line, _ in numbered])


def _check(path: Path, header: list[str], numbered: list[tuple[int, list[str]]], delimiter: str) -> None:
    if len(header) < 2:
        raise DataError(
            f"csv: {path} has no row of column names separated by {delimiter!r}; "
            "set data.options.delimiter, such as ';'"
        )
    if twice := [name for name in header if header.count(name) > 1 or not name]:
        raise DataError(f"csv: {path}: every column needs a name of its own; {twice[0]!r} is not")
    for line, row in numbered:
        if len(row) != len(header):
            raise DataError(f"csv: {path}: row {line} has {len(row)} values, the header names {len(header)}")
    if not numbered:
        raise DataError(f"csv: {path} has no rows below its header")


def sorted_values(texts: Collection[str]) -> list[str]:
    """Each once: by number where all are numbers, else by name."""
    values = set(texts)
    numbers = {text: _number(text) for text in values}
    if None in numbers.values():
        return sorted(values)
    return sorted(values, key=lambda text: (numbers[text] or 0.0, text))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# ---- columns: {"mean", "std"} of one with numbers, {"values"} of one with categories; as JSON and TOML have them

Columns = Mapping[str, Mapping[str, Any]]


def describe(table: Table, names: Sequence[str], categorical: Collection[str]) -> dict[str, dict[str, Any]]:
    for name in categorical:
        table.column(name, "data.options.categorical")
    return {name: _described(table, name, name in categorical) for name in names}


def _described(table: Table, name: str, categorical: bool) -> dict[str, Any]:
    texts = table.column(name)
    known = [text for text in texts if not is_missing(text)]
    if not known:
        raise DataError(
            f"csv: {table.path}: column {name!r} has no value: leave it out with data.options.ignore"
        )
    numbers = [number for text in known if (number := _number(text)) is not None]
    if categorical or len(numbers) <= len(known) / 2:
        return {"values": _categories(table, name, known)}
    mean = math.fsum(numbers) / len(numbers)
    spread = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / len(numbers))
    # Six digits are enough to scale by, and keep the tasks that carry them small.
    return {"mean": float(f"{mean:.6g}"), "std": float(f"{spread:.6g}") or 1.0}


def _categories(table: Table, name: str, known: Collection[str]) -> list[str]:
    values = sorted_values(known)
    if len(values) > _MOST_CATEGORIES:
        raise DataError(
            f"csv: {table.path}: column {name!r} has {len(values)} different texts, at most {_MOST_CATEGORIES} can be "
            "categories: leave it out with data.options.ignore"
        )
    return values


def checked_columns(columns: Any) -> Columns:
    """As a recipe has them."""
    if not isinstance(columns, dict) or not columns:
        raise SettingError(f"data.options.columns must be a table of columns, not {columns!r:.80}")
    for name, about in columns.items():
        keys = set(about) if isinstance(about, dict) else set()
        if keys == {"values"} and isinstance(about["values"], list):
            continue
        if (
            keys == {"mean", "std"}
            and all(isinstance(n, int | float) for n in about.values())
            and about["std"]
        ):
            continue
        raise SettingError(
            f"data.options.columns.{name} must have mean and std, or values; found {about!r:.80}"
        )
    return columns


def width(columns: Columns) -> int:
    return sum(len(about.get("values", [0])) for about in columns.values())


def encode_column(
    table: Table, name: str, about: Mapping[str, Any]
) -> tuple[list[list[float]], dict[str, int]]:
    """Numbers of each row, and how many values were missing or unknown. These are the mean, or no category."""
    texts, odd = table.column(name), {"missing": 0, "unknown": 0}
    encode = (
        partial(_one_hot, about["values"])
        if "values" in about
        else partial(_scaled, about["mean"], about["std"])
    )
    encoded = []
    for place, text in enumerate(texts):
        if is_missing(text):
            odd["missing"] += 1
            encoded.append([0.0] * len(about.get("values", [0])))
            continue
        numbers = encode(text)
        if numbers is None:
            raise table.wrong(
                place, name, f"{text!r:.40} is not a number; or list the column in data.options.categorical"
            )
        odd["unknown"] += "values" in about and not any(numbers)
        encoded.append(numbers)
    return encoded, odd


def _one_hot(values: Sequence[str], text: str) -> list[float]:
    return [float(text == value) for value in values]


def _scaled(mean: float, std: float, text: str) -> list[float] | None:
    number = _number(text)
    return None if number is None else [(number - mean) / std]
