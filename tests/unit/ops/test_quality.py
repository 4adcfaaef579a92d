import pytest
import torch
from torch import Tensor, nn

from fedil_model.data.augment import TensorViews
from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.errors import DataError
from ops.inspect.quality import Quality, measure, print_quality


class SaysItsInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


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


def test_few_classes_are_shown_as_a_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    print_quality(Quality(("a", "b"), [[7, 3], [0, 12]]), "digits")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["a", "70.0", "7", "3"] in lines
    assert ["b", "100.0", "·", "12"] in lines


def test_many_classes_are_shown_as_a_list_with_the_most_frequent_mistakes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    confusion = [[10 if row == column else 0 for column in range(100)] for row in range(100)]
    confusion[3][5] = 4
    print_quality(Quality([f"class{index}" for index in range(100)], confusion), "cifar100")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["class3", "71.4", "14"] in lines
    assert ["4", "class3", "class5"] in lines


def test_a_class_name_with_brackets_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_quality(Quality(("[bold]", "b"), [[1, 0], [0, 1]]), "mine")
    assert "[bold]" in capsys.readouterr().out
