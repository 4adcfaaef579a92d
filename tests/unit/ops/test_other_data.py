"""Data for external validation, matched to the classes of the model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedil_model.data.augment import ImageViews
from fedil_model.data.datasets import digits, open_dataset
from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.errors import DataError, SettingError
from fedil_model.settings import DataSettings
from ops.inspect.other_data import labelled_samples


def nothing() -> Samples:
    raise AssertionError("the run's own data must not be read")


def model(*classes: str, size: int = 8) -> Dataset:
    return Dataset(classes, (1, size, size), ImageViews((0.5,), (0.5,)), nothing, nothing)


def picture(file: Path, level: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (20, 30), level).save(file)


@pytest.mark.parametrize("part", [".", "test"])
def test_a_folder_is_matched_by_the_names_of_its_classes_and_may_lack_some(part: str, tmp_path: Path) -> None:
    picture(tmp_path / part / "owl/1.png", 200)
    picture(tmp_path / part / "cat/1.png", 10)
    picture(tmp_path / part / "cat/2.png", 20)
    samples = labelled_samples(str(tmp_path), model("owl", "dog", "cat"), None)
    assert samples.inputs.shape == (3, 1, 8, 8)
    assert list(zip(samples.inputs[:, 0, 0, 0].tolist(), samples.labels.tolist(), strict=True)) == [
        (10, 2), (20, 2), (200, 0),
    ]  # fmt: skip


def test_a_class_that_the_model_does_not_know_is_an_error(tmp_path: Path) -> None:
    for name in ("cat", "owl", "eel"):
        picture(tmp_path / name / "1.png", 10)
    with pytest.raises(
        SettingError, match="classes that the model does not know: eel, owl; it knows cat, dog"
    ):
        labelled_samples(str(tmp_path), model("cat", "dog"), None)


def test_an_npz_file_is_matched_by_number(tmp_path: Path) -> None:
    images = np.arange(3 * 64, dtype=np.uint8).reshape(3, 8, 8)
    np.savez(tmp_path / "x.npz", test_images=images, test_labels=np.array([[2], [0], [2]]))
    samples = labelled_samples(str(tmp_path / "x.npz"), model("a", "b", "c"), None)
    assert samples.labels.tolist() == [2, 0, 2]
    with pytest.raises(SettingError, match=r"labels from 0 to 2, the model knows 2 classes, 0 to 1"):
        labelled_samples(str(tmp_path / "x.npz"), model("a", "b"), None)
    with pytest.raises(DataError, match=r"images, not 1×9×9"):
        labelled_samples(str(tmp_path / "x.npz"), model("a", "b", "c", size=9), None)
    with pytest.raises(DataError, match=r"there is no .*nowhere\.npz"):
        labelled_samples(str(tmp_path / "nowhere.npz"), model("a", "b"), None)


def test_a_dataset_is_matched_by_name_in_whatever_order() -> None:
    test = digits.digits().load_test()
    samples = labelled_samples("digits", model(*"9876543210"), None)
    assert torch.equal(samples.labels, 9 - test.labels)
    with pytest.raises(SettingError, match="samples of 1×8×8, the model takes 1×9×9"):
        labelled_samples("digits", model(*"0123456789", size=9), None)
    with pytest.raises(SettingError, match=r"unknown 'digit'; did you mean digits\?"):
        labelled_samples("digit", model("a", "b"), None)


def test_a_table_is_matched_by_its_columns_and_labels(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("x,y\n" + "".join(f"{n},{'ab'[n % 2]}\n" for n in range(20)))
    (tmp_path / "other.csv").write_text("y,more,x\nb,?,3\na,?,\n")
    (tmp_path / "unlabelled.csv").write_text("more,x\n?,3\n")
    (tmp_path / "strange.csv").write_text("y,x\nb,3\nc,1\n")
    dataset = open_dataset(DataSettings(name="csv", root=tmp_path / "own.csv", options={"label": "y"}))
    samples = labelled_samples(str(tmp_path / "other.csv"), dataset, None)
    assert (samples.labels.tolist(), samples.inputs.shape) == ([1, 0], (2, 1))
    with pytest.raises(DataError, match="has no column of labels: it can only be predicted"):
        labelled_samples(str(tmp_path / "unlabelled.csv"), dataset, None)
    with pytest.raises(DataError, match="row 3, column 'y': 'c' is none of the classes a, b"):
        labelled_samples(str(tmp_path / "strange.csv"), dataset, None)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"wants a folder of pictures, a \.npz or \.csv file, or the name"):
        labelled_samples(str(tmp_path / "x.parquet"), model("a", "b"), None)
