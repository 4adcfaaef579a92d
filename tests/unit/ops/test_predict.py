from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from fedil_model.data.augment import ImageViews
from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.data.datasets.pictures import UnreadablePicture
from fedil_model.errors import DataError, SettingError
from ops.inspect.answers import Answers
from ops.inspect.csv_files import write_csv
from ops.inspect.picture_files import files_in
from ops.inspect.predict import BATCH, Prediction, predict, predict_files

GRAY = (1, 8, 8)


def nothing() -> Samples:
    raise AssertionError("predict must not read the dataset")


def bright_or_dark(shape: tuple[int, ...] = GRAY) -> Dataset:
    channels = shape[0]
    return Dataset(
        ("dark", "bright"), shape, ImageViews((0.5,) * channels, (0.5,) * channels), nothing, nothing
    )


class Brightness(nn.Module):
    """A network whose answer can be worked out by looking: logits −8·mean and 8·mean of what it is shown."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(dim=1)
        return torch.stack([-8 * mean, 8 * mean], dim=1)


def labels_of(files: list[Path], dataset: Dataset) -> dict[str, str]:
    answers = predict_files(Brightness(), dataset, files)
    said = Answers(dataset.class_names, has_rows=False)
    return {answer.file.name: str(said.label(answer)) for answer in answers if isinstance(answer, Prediction)}


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 16, 12)])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"])
def test_pictures_of_every_mode_and_size_are_read(
    mode: str, shape: tuple[int, int, int], tmp_path: Path
) -> None:
    files = []
    for name, size, level in [("dark", (31, 50), 20), ("bright", (4, 3), 235)]:
        gray = np.full(size, level, dtype=np.uint8)
        if mode == "I;16":
            picture = Image.fromarray(gray.astype(np.uint16) * 257)
        else:
            picture = Image.fromarray(gray).convert(mode)
        file = tmp_path / f"{name}.tif"
        picture.save(file)
        files.append(file)
    assert labels_of(files, bright_or_dark(shape)) == {"dark.tif": "dark", "bright.tif": "bright"}


def test_what_cannot_be_read_is_named_with_its_reason_and_the_rest_is_labelled(tmp_path: Path) -> None:
    Image.effect_noise((64, 64), 90).save(tmp_path / "good.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "good.png").read_bytes()[:500])
    (tmp_path / "notes.txt").write_text("not a picture")
    (tmp_path / "empty.jpg").write_bytes(b"")
    answers = list(predict_files(Brightness(), bright_or_dark(), files_in(tmp_path)))
    unreadable = {
        answer.file.name: answer.reason for answer in answers if isinstance(answer, UnreadablePicture)
    }
    assert sorted(unreadable) == ["empty.jpg", "half.png", "notes.txt"]
    assert unreadable["notes.txt"] == "not an image"
    assert "truncated" in unreadable["half.png"]
    assert [answer.file.name for answer in answers if isinstance(answer, Prediction)] == ["good.png"]


def test_more_pictures_than_a_batch_are_all_labelled_in_order(tmp_path: Path) -> None:
    files = [tmp_path / f"{index:04}.png" for index in range(BATCH + 3)]
    for file in files:
        Image.new("L", (2, 2), 255).save(file)
    assert list(labels_of(files, bright_or_dark())) == [file.name for file in files]


def test_confidence_is_the_probability_of_the_label(tmp_path: Path) -> None:
    Image.new("L", (8, 8), 255).save(tmp_path / "white.png")
    (answer,) = predict_files(Brightness(), bright_or_dark(), [tmp_path / "white.png"])
    assert isinstance(answer, Prediction)
    assert answer.confidence == pytest.approx(1 / (1 + np.exp(-16)))
    line = Answers(("dark", "bright"), has_rows=False).line(answer)
    assert line == f"bright  100.0 %  {tmp_path / 'white.png'}"


def test_a_model_of_something_else_than_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="this dataset has samples of 13: pictures have 1 or 3 channels"):
        list(predict_files(Brightness(), bright_or_dark((13,)), [tmp_path]))


def test_a_folder_is_searched_with_its_subfolders_but_not_hidden_ones(tmp_path: Path) -> None:
    for folder in ("sub", ".git"):
        (tmp_path / folder).mkdir()
    for name in ("b.png", "sub/a.png", ".DS_Store", ".git/c.png"):
        (tmp_path / name).touch()
    assert files_in(tmp_path) == [tmp_path / "b.png", tmp_path / "sub" / "a.png"]


def test_an_empty_or_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no pictures in"):
        files_in(tmp_path)
    with pytest.raises(SettingError, match="is not a folder"):
        files_in(tmp_path / "missing")


CLASSES = ("cat", "dog", "owl")
UNSURE = Prediction(Path("a,b.png"), (0.25, 0.6, 0.15))


def test_the_csv_quotes_what_needs_it(tmp_path: Path) -> None:
    answers = Answers(CLASSES, has_rows=False)
    write_csv(tmp_path / "out.csv", answers.columns(), [answers.csv_row(UNSURE)])
    assert (tmp_path / "out.csv").read_text() == 'file,label,confidence\n"a,b.png",dog,0.600000\n'


def test_the_most_probable_classes_and_all_probabilities_are_given_when_asked() -> None:
    answers = Answers(CLASSES, has_rows=True, top=2, probabilities=True)
    found = Prediction(Path("x.npz"), UNSURE.probabilities, row=4)
    assert answers.as_json(found) == {
        "file": "x.npz",
        "row": 4,
        "label": "dog",
        "confidence": 0.6,
        "top": [{"label": "dog", "probability": 0.6}, {"label": "cat", "probability": 0.25}],
        "probabilities": {"cat": 0.25, "dog": 0.6, "owl": 0.15},
    }
    row = dict(zip(answers.columns(), answers.csv_row(found), strict=True))
    assert row == {
        "file": Path("x.npz"), "row": 4, "label": "dog", "confidence": "0.600000", "label2": "cat",
        "confidence2": "0.250000", "p(cat)": "0.250000", "p(dog)": "0.600000", "p(owl)": "0.150000",
    }  # fmt: skip
    shown = answers.line(found).split()
    assert shown[:6] == ["dog", "60.0", "%", "cat", "25.0", "%"]
    assert shown[6:9] == ["p(cat)", "25.0", "%"]
    assert shown[-1] == "x.npz:4"


def test_below_the_threshold_there_is_no_label() -> None:
    strict, lax = (Answers(CLASSES, has_rows=False, threshold=share) for share in (0.61, 0.6))
    assert (strict.label(UNSURE), lax.label(UNSURE)) == (None, "dog")
    assert strict.as_json(UNSURE)["label"] is None
    assert strict.csv_row(UNSURE)[1:] == ["", "0.600000"]
    assert strict.line(UNSURE) == "(unsure)   60.0 %  a,b.png"


def test_a_single_picture_and_the_images_of_an_npz_file_are_labelled(tmp_path: Path) -> None:
    Image.new("L", (8, 8), 255).save(tmp_path / "white.png")
    levels = np.array([0, 255, 200], dtype=np.uint8)
    images = np.broadcast_to(levels[:, None, None], (3, 8, 8))
    np.savez(tmp_path / "x.npz", train_images=images[:1], test_images=images)
    dataset, answers = bright_or_dark(), Answers(("dark", "bright"), has_rows=True)
    for source, expected in (
        ("white.png", [(None, "bright")]),
        ("x.npz", [(0, "dark"), (1, "bright"), (2, "bright")]),
    ):
        found = [
            one for one in predict(Brightness(), dataset, tmp_path / source) if isinstance(one, Prediction)
        ]
        assert [(one.row, answers.label(one)) for one in found] == expected


def test_what_the_model_does_not_take_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "large.npz", test_images=np.zeros((2, 9, 9), np.uint8))
    with pytest.raises(DataError, match=r"test_images has 1×9×9 images, not 1×8×8"):
        list(predict(Brightness(), bright_or_dark(), tmp_path / "large.npz"))
    np.savez(tmp_path / "none.npz", labels=np.zeros(2))
    with pytest.raises(DataError, match=r"none\.npz has no images"):
        list(predict(Brightness(), bright_or_dark(), tmp_path / "none.npz"))
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SettingError, match=r"x\.csv: the run was not trained on a table"):
        list(predict(Brightness(), bright_or_dark(), tmp_path / "x.csv"))
