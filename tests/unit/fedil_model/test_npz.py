from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedil_model.data.augment import ImageViews
from fedil_model.data.datasets import open_dataset
from fedil_model.data.datasets.interface import Dataset
from fedil_model.errors import DataError, SettingError
from fedil_model.settings import DataSettings


def images(num: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(num).integers(0, 256, (num, *shape), dtype=np.uint8)


def labels(num: int) -> np.ndarray:
    return (np.arange(num) % 3).astype(np.uint8)[:, None]


def write(file: Path, *shape: int, **other: Any) -> Path:
    arrays: dict[str, Any] = {}
    for part, num in (("train", 6), ("val", 4), ("test", 3)):
        arrays |= {f"{part}_images": images(num, *shape), f"{part}_labels": labels(num)}
    np.savez(file, **{name: array for name, array in (arrays | other).items() if array is not None})
    return file


def opened(file: Path, **options: Any) -> Dataset:
    return open_dataset(DataSettings(name="npz", root=file, options=options))


def load_both(file: Path) -> None:
    dataset = opened(file)
    for load in (dataset.load_train, dataset.load_test):
        load()


@pytest.mark.parametrize("shape", [(12, 10), (12, 10, 1), (12, 10, 3)])
def test_pictures_of_any_size_gray_or_in_colour_are_read(shape: tuple[int, ...], tmp_path: Path) -> None:
    dataset = opened(write(tmp_path / "mine.npz", *shape))
    channels = shape[2] if len(shape) == 3 else 1
    assert (dataset.class_names, dataset.input_shape) == (("0", "1", "2"), (channels, 12, 10))
    train, test = dataset.load_train(), dataset.load_test()
    expected = images(6, *shape).reshape(6, 12, 10, channels).transpose(0, 3, 1, 2)
    assert torch.equal(train.inputs, torch.from_numpy(expected.copy()))
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 1, 2, 0, 1, 2], [0, 1, 2])
    views = dataset.views.strong(train.inputs, torch.Generator().manual_seed(0))
    assert views.shape == train.inputs.shape


def test_classes_views_and_the_validation_part_are_options(tmp_path: Path) -> None:
    options = {"classes": ["a", "b", "c"], "use_val": True, "flip": True, "mean": [0.2], "std": [0.1]}
    dataset = opened(write(tmp_path / "mine.npz", 8, 8), **options)
    assert dataset.class_names == ("a", "b", "c")
    assert dataset.load_train().labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert isinstance(dataset.views, ImageViews)
    assert (dataset.views.flip, dataset.views.mean, dataset.views.pad) == (True, (0.2,), 1)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train_images": None}, "it has no train_images$"),
        ({"train_labels": None}, "it has no train_labels$"),
        ({"train_images": images(6, 8, 8).astype(np.float32)}, r"train_images has float32 of \(6, 8, 8\)"),
        ({"train_images": images(6, 8, 8, 8)}, r"train_images has uint8 of \(6, 8, 8, 8\); wanted is"),
        ({"train_labels": np.zeros((6, 14), np.uint8)}, "several labels an image are not supported"),
        ({"train_labels": np.arange(5) % 2}, "train_images has 6 images, train_labels 5 labels"),
        ({"train_labels": np.array(["a"] * 6)}, "train_labels has <U1"),
        ({"test_images": images(3, 9, 9)}, "test_images has 1×9×9 images, not 1×8×8"),
        ({"train_labels": np.array([None] * 6)}, "damaged .*allow_pickle"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_file_and_array(
    arrays: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "mine.npz", 8, 8, **arrays)
    with pytest.raises(DataError, match=f"^npz: {file}: .*{message}"):
        load_both(file)


def test_a_file_that_is_none_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(DataError, match=r"text\.npz: it is no \.npz file"):
        opened(tmp_path / "text.npz")
    with pytest.raises(DataError, match=r"there is no .*nowhere\.npz: name the file with --set data\.root="):
        opened(tmp_path / "nowhere.npz")
    with pytest.raises(DataError, match=r"^npz: there is no file: name the file"):
        open_dataset(DataSettings(name="npz"))
    with pytest.raises(SettingError, match=r"data\.options\.shape must be \[channels"):
        opened(tmp_path / "nowhere.npz", shape=[2, 8, 8], classes=["a", "b"])
