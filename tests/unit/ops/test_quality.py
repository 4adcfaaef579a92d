import pytest
import torch
from torch import Tensor, nn

from fedil_model.data.augment import TensorViews
from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.errors import DataError, NumericError
from ops.inspect.quality import Quality, assess, measure, print_quality
from ops.inspect.score_tables import COLUMNS


class SaysItsInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Diverged(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float("nan")


def dataset_of(said: list[int], true: list[int], classes: int = 3) -> Dataset:
    samples = Samples(torch.eye(classes)[said], torch.tensor(true, dtype=torch.int64))
    names = tuple(f"class{index}" for index in range(classes))
    return Dataset(names, (classes,), TensorViews(), lambda: samples, lambda: samples)


def test_confusion_counts_true_classes_in_rows_and_answers_in_columns() -> None:
    quality = measure(SaysItsInput(), dataset_of(said=[0, 1, 1, 2], true=[0, 0, 1, 1]))
    assert quality.confusion == [[1, 1, 0], [0, 1, 1], [0, 0, 0]]
    assert (quality.accuracy, quality.samples) == (0.5, 4)
    assert quality.per_class == [0.5, 0.5, None]


def test_an_empty_test_set_is_named() -> None:
    with pytest.raises(DataError, match="test set is empty"):
        measure(SaysItsInput(), dataset_of([], []))


def test_a_model_that_diverged_is_named() -> None:
    dataset = dataset_of([0, 1], [0, 1])
    with pytest.raises(NumericError, match="its training has diverged"):
        assess(Diverged(), dataset.load_test(), dataset)


def labelled(confusion: list[list[int]], names: list[str]) -> Quality:
    """Sure of what it says, but for a tenth of the probability"""
    classes = len(confusion)
    pairs = [
        (true, said)
        for true in range(classes)
        for said in range(classes)
        for _ in range(confusion[true][said])
    ]
    dataset = dataset_of([said for _, said in pairs], [true for true, _ in pairs], classes)
    quality = assess(SaysItsInput(), dataset.load_test(), dataset, resamples=20)
    return Quality(names, quality.confusion, quality.scores)


def lines_of(quality: Quality, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    print_quality(quality, "mine")
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_few_classes_are_shown_with_a_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(labelled([[7, 3], [0, 12]], ["a", "b"]), capsys)
    assert ["a", "70.0", "7", "3"] in lines
    assert ["b", "100.0", "·", "12"] in lines
    assert ["a", "10", "70.0", "100.0", "100.0", "82.4"] in [line[:6] for line in lines]
    assert "86.4" in next(line for line in lines if line[:2] == ["accuracy", "%"])


def test_a_wide_terminal_has_the_intervals_of_each_class(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quality = labelled([[7, 3], [0, 12]], ["a", "b"])
    assert quality.scores is not None
    score = quality.scores.by_class[0]["sensitivity"]
    assert score is not None
    monkeypatch.setenv("COLUMNS", "160")
    row = next(line for line in lines_of(quality, capsys) if line[:2] == ["a", "10"])
    assert row[2:4] == ["70.0", f"({100 * score.low:.1f}–{100 * score.high:.1f})"]
    assert score.low < 0.7 < score.high


def test_many_classes_are_shown_as_a_list_with_the_most_frequent_mistakes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    confusion = [[10 if row == column else 0 for column in range(100)] for row in range(100)]
    confusion[3][5] = 4
    lines = lines_of(labelled(confusion, [f"class{index}" for index in range(100)]), capsys)
    assert ["class3", "14", "71.4"] in [line[:3] for line in lines]
    assert ["4", "class3", "class5"] in lines
    assert len(lines) < 140


def test_a_class_name_with_brackets_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_quality(labelled([[1, 0], [0, 1]], ["[bold]", "b"]), "mine")
    assert capsys.readouterr().out.count("[bold]") == 3


def test_rows_for_a_csv_file_name_model_class_and_score() -> None:
    rows = list(labelled([[7, 3], [0, 12]], ["a", "b"]).csv_rows("global"))
    assert len(rows) == 8 + 2 * 6
    assert rows[0][:4] == ("global", "(all)", 22, "accuracy")
    assert rows[8][:5] == ("global", "a", 10, "sensitivity", 0.7)
    assert all(len(row) == len(COLUMNS) for row in rows)
