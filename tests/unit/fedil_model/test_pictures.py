"""How files become samples; every mode of a picture is read in tests/unit/ops/test_predict.py."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedil_model.data.datasets import open_dataset
from fedil_model.data.datasets.pictures import UnreadablePicture, read_picture, read_pictures
from fedil_model.errors import DataError
from fedil_model.settings import DataSettings

GRAY = (1, 8, 8)


def test_a_picture_of_the_right_size_reaches_the_network_unchanged(tmp_path: Path) -> None:
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    picture = read_picture(tmp_path / "a.png", GRAY)
    assert np.array_equal(picture, pixels[None])


def test_colours_reach_their_own_channels(tmp_path: Path) -> None:
    Image.new("RGB", (5, 5), (255, 100, 7)).save(tmp_path / "a.png")
    picture = read_picture(tmp_path / "a.png", (3, 2, 4))
    assert picture.shape == (3, 2, 4)
    assert picture[:, 0, 0].tolist() == [255, 100, 7]


def test_a_photograph_is_turned_upright(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8), dtype=np.uint8)
    pixels[:4] = 255
    upside_down = Image.Exif()
    upside_down[0x0112] = 3
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=upside_down)
    picture = read_picture(tmp_path / "a.png", GRAY)
    assert picture[0, :4].max() == 0
    assert picture[0, 4:].min() == 255


def test_many_are_read_in_their_order_and_counted(tmp_path: Path) -> None:
    files = [tmp_path / f"{level}.png" for level in (9, 200, 50)]
    for file in files:
        Image.new("L", (20, 30), int(file.stem)).save(file)
    counted: list[int] = []
    pictures = read_pictures(files, GRAY, counted.append)
    assert pictures.shape == (3, *GRAY)
    assert pictures.dtype == np.uint8
    assert pictures[:, 0, 3, 3].tolist() == [9, 200, 50]
    assert counted == [1, 2, 3]


def test_one_that_cannot_be_read_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a picture")
    said = rf"^cannot read {tmp_path}/notes\.txt as a picture \(not an image\): remove or replace it$"
    with pytest.raises(UnreadablePicture, match=said):
        read_pictures([tmp_path / "notes.txt"], GRAY)
    with pytest.raises(DataError, match=r"gone\.png as a picture \(No such file or directory\)"):
        read_picture(tmp_path / "gone.png", GRAY)


def test_a_dataset_reads_its_labelled_pictures_the_same_way(tmp_path: Path) -> None:
    """Or a 16-bit or a turned picture would be one thing with its label and another without."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(5):
            deep = np.full((12, 9), 257 * 40 * number, dtype=np.uint16)
            Image.fromarray(deep).save(tmp_path / name / f"{number}.png")
    options = {"size": 8, "gray": True}
    dataset = open_dataset(DataSettings(name="folder", root=tmp_path, options=options))
    levels = [*dataset.load_train().inputs[:, 0, 0, 0], *dataset.load_test().inputs[:, 0, 0, 0]]
    assert sorted(map(int, levels)) == sorted([0, 40, 80, 120, 160] * 2)
