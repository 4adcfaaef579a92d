"""Accuracy of a trained network on the test set. confusion[t][p]: samples of class t that it labels p."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

from fedil_model.data.datasets.interface import Dataset
from fedil_model.errors import DataError
from fedil_model.training.evaluate import predict_logits
from fedil_model.training.precision import Autocast
from ops.cli.view.rows import percent
from ops.cli.view.tables import plain_table

MOST_CLASSES_IN_A_MATRIX = 12
CONFUSIONS_LISTED = 10


@dataclass(frozen=True)
class Quality:
    class_names: Sequence[str]
    confusion: list[list[int]]

    @property
    def samples(self) -> int:
        return sum(map(sum, self.confusion))

    @property
    def accuracy(self) -> float:
        return sum(row[index] for index, row in enumerate(self.confusion)) / self.samples

    @property
    def per_class(self) -> list[float | None]:
        """None for a class without test samples"""
        return [row[index] / sum(row) if sum(row) else None for index, row in enumerate(self.confusion)]

    def as_json(self, model: str) -> dict[str, object]:
        facts = {"model": model, "samples": self.samples, "accuracy": self.accuracy}
        by_class = dict(zip(self.class_names, self.per_class, strict=True))
        return facts | {"per_class": by_class, "confusion": self.confusion}

    def mistakes(self) -> list[tuple[int, str, str]]:
        """Count, true class and predicted class of the most frequent ones"""
        wrong = [
            (count, self.class_names[true], self.class_names[predicted])
            for true, row in enumerate(self.confusion)
            for predicted, count in enumerate(row)
            if count and true != predicted
        ]
        return sorted(wrong, key=lambda mistake: -mistake[0])[:CONFUSIONS_LISTED]


def measure(network: nn.Module, dataset: Dataset, precision: Autocast = "off") -> Quality:
    """`precision` as in the run: with another one, a few predictions are others."""
    test = dataset.load_test()
    if not len(test.labels):
        raise DataError("the test set is empty")
    predicted = predict_logits(network, test.inputs, dataset.views, precision=precision).argmax(dim=1)
    classes = len(dataset.class_names)
    counts = torch.bincount(test.labels * classes + predicted, minlength=classes * classes)
    return Quality(dataset.class_names, counts.view(classes, classes).tolist())


def print_quality(quality: Quality, title: str) -> None:
    console = Console(highlight=False, markup=False)  # a class may be called [bold]
    console.print(
        f"{title}: {100 * quality.accuracy:.2f} % of {quality.samples} test samples\n", style="bold"
    )
    table, unlimited = matrix(quality), console.options.update(max_width=10_000)
    width = console.measure(table, options=unlimited).maximum
    if len(quality.class_names) <= MOST_CLASSES_IN_A_MATRIX and width <= console.width:
        console.print(table)
        console.print("rows: the true class; columns: what the model says", style="dim")
    else:
        table = plain_table(("class", "right %", "samples"), left=("class",))
        for name, share, row in zip(quality.class_names, quality.per_class, quality.confusion, strict=True):
            table.add_row(Text(name), percent(share, 1), str(sum(row)))
        headings = ("count", "is", "taken for")
        mistakes = plain_table(headings, left=headings, title="most frequent mistakes", title_justify="left")
        for count, true, said in quality.mistakes():
            mistakes.add_row(str(count), Text(true), Text(said))
        console.print(table)
        console.print(mistakes)


def matrix(quality: Quality) -> Table:
    table = plain_table(("", "right %", *quality.class_names), left=("",))
    for index, (name, row) in enumerate(zip(quality.class_names, quality.confusion, strict=True)):
        cells = [mark(count, on_diagonal=column == index) for column, count in enumerate(row)]
        table.add_row(Text(name, "bold"), percent(quality.per_class[index], 1), *cells)
    return table


def mark(count: int, on_diagonal: bool) -> Text:
    if on_diagonal:
        return Text(str(count), style="green")
    return Text(str(count)) if count else Text("·", style="dim")
