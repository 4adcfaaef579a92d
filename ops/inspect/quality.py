"""How right a trained network is on a test set. confusion[t][p]: samples of class t that it labels p."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.errors import DataError, NumericError
from fedil_model.training.evaluate import predict_logits
from fedil_model.training.precision import Autocast
from ops.cli.view.rows import percent
from ops.cli.view.tables import plain_table
from ops.inspect.score_tables import csv_rows, print_scores
from ops.inspect.scores import RESAMPLES, Scores, score

MOST_CLASSES_IN_A_MATRIX = 12
CONFUSIONS_LISTED = 10


@dataclass(frozen=True)
class Quality:
    class_names: Sequence[str]
    confusion: list[list[int]]
    scores: Scores | None = None

    @property
    def samples(self) -> int:
        return sum(map(sum, self.confusion))

    @property
    def held(self) -> list[int]:
        """Test samples of each class"""
        return list(map(sum, self.confusion))

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
        scores = self.scores.as_json(self.class_names) if self.scores else None
        return facts | {"per_class": by_class, "scores": scores, "confusion": self.confusion}

    def csv_rows(self, model: str) -> Iterator[Sequence[object]]:
        return csv_rows(model, self.scores, self.class_names, self.held) if self.scores else iter(())

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
    """Counts alone. `precision` as in the run: with another one, a few predictions are others."""
    return assess(network, dataset.load_test(), dataset, precision, resamples=None)


def assess(
    network: nn.Module,
    samples: Samples,
    dataset: Dataset,
    precision: Autocast = "off",
    resamples: int | None = RESAMPLES,
) -> Quality:
    """On samples of the dataset's kind. `resamples`: for the intervals of the scores; None: no scores."""
    if not len(samples.labels):
        raise DataError("the test set is empty")
    logits_NC = predict_logits(network, samples.inputs, dataset.views, precision=precision)
    if not bool(logits_NC.isfinite().all()):
        raise NumericError("the model answers with numbers that are not finite: its training has diverged")
    classes = len(dataset.class_names)
    cells_N = samples.labels * classes + logits_NC.argmax(dim=1)
    confusion = torch.bincount(cells_N, minlength=classes * classes).view(classes, classes).tolist()
    if resamples is None:
        return Quality(dataset.class_names, confusion)
    probabilities_NC = logits_NC.double().softmax(dim=1).numpy()
    return Quality(dataset.class_names, confusion, score(samples.labels.numpy(), probabilities_NC, resamples))


def print_quality(quality: Quality, title: str) -> None:
    console = Console(highlight=False, markup=False)  # a class may be called [bold]
    console.print(
        f"{title}: {100 * quality.accuracy:.2f} % of {quality.samples} test samples\n", style="bold"
    )
    if quality.scores is not None:
        print_scores(quality.scores, quality.class_names, quality.held, console)
    table, unlimited = matrix(quality), console.options.update(max_width=10_000)
    width = console.measure(table, options=unlimited).maximum
    if len(quality.class_names) <= MOST_CLASSES_IN_A_MATRIX and width <= console.width:
        console.print(table)
        console.print("rows: the true class; columns: what the model says", style="dim")
    else:
        headings = ("count", "is", "taken for")
        mistakes = plain_table(headings, left=headings, title="most frequent mistakes", title_justify="left")
        for count, true, said in quality.mistakes():
            mistakes.add_row(str(count), Text(true), Text(said))
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
