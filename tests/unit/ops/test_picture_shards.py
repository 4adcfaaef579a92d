"""`fedil shards --images`: a site's own pictures; how its workers train on them is in tests/integration."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from client_worker.shards import ShardFolder, write_shards
from fedil_model.data.datasets.pictures import read_picture
from ops.cli.commands.shards import tell_now_and_then
from ops.cli.main import main
from tests.unit.ops.test_worker_command import RECIPE

SOUTH = (2, 3, 4)
ELSEWHERE = RECIPE.replace("labelled = 50", 'partition = "elsewhere"')


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "two-sites.toml"
    path.write_text(ELSEWHERE)
    return str(path)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    return tmp_path / "images"


def save(file: Path, level: int) -> Path:
    """Level 9 at the top and `level` below, so that a picture that is turned or mixed up is seen."""
    file.parent.mkdir(exist_ok=True)
    pixels = np.full((30, 20, 3), level, dtype=np.uint8)
    pixels[:5] = 9
    Image.fromarray(pixels).save(file)
    return file


def shards(recipe: str, images: Path, *more: str) -> int:
    out = str(images.parent / "out")
    return main(["shards", recipe, "--site", "south", "--out", out, "--images", str(images), *more])


def levels(images: Path) -> dict[int, list[int]]:
    """Of each client's pictures, in order"""
    folder = ShardFolder(images.parent / "out")
    assert folder.inputs(folder.clients[0]).shape[1:] == (1, 8, 8)
    return {client: folder.inputs(client)[:, 0, 7, 7].tolist() for client in folder.clients}


def test_folders_named_by_clients_hold_their_pictures_in_the_order_of_names(
    recipe: str, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for client, names in {4: ["b", "a"], 2: ["c"], 3: ["x", "z", "y"]}.items():
        for name in names:
            save(images / str(client) / f"{name}.png", 10 * client + ord(name) - ord("a"))
    (images / ".DS_Store").touch()
    assert shards(recipe, images) == 0
    assert levels(images) == {2: [22], 3: [53, 54, 55], 4: [40, 41]}
    assert "6 samples of 3 clients (2 to 4)" in capsys.readouterr().out


def test_a_flat_folder_is_dealt_out_evenly_one_by_one(recipe: str, images: Path) -> None:
    for number in range(8):
        save(images / f"{number}.png", 20 * number)
    assert shards(recipe, images) == 0
    assert levels(images) == {2: [0, 60, 120], 3: [20, 80, 140], 4: [40, 100]}


def test_samples_are_what_predict_makes_of_the_same_files(recipe: str, images: Path) -> None:
    for client in SOUTH:
        Image.effect_noise((50, 40), 90).save(images / f"{client}.tif")
    assert shards(recipe, images) == 0
    written = ShardFolder(images.parent / "out")
    for client in SOUTH:
        read = read_picture(images / f"{client}.tif", (1, 8, 8))
        assert torch.equal(written.inputs(client)[0], torch.from_numpy(read.copy()))


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        (["data.name=cifar10", "data.root=nowhere"], (3, 32, 32)),
        (["data.name=folder", 'data.options={size=12, gray=true, classes=["a", "b"]}'], (1, 12, 12)),
    ],
    ids=["cifar10", "folder"],
)
def test_the_servers_data_are_not_needed(
    tmp_path: Path, images: Path, settings: list[str], shape: tuple[int, ...]
) -> None:
    path = tmp_path / "elsewhere.toml"
    path.write_text(ELSEWHERE)
    for client in SOUTH:
        save(images / f"{client}" / "a.png", 100)
    assert shards(str(path), images, *(word for setting in settings for word in ("--set", setting))) == 0
    assert ShardFolder(tmp_path / "out").inputs(3).shape == (1, *shape)
    assert ShardFolder(tmp_path / "out").inputs(3).dtype == torch.uint8


def nothing(_: Path) -> None:
    pass


def no_picture(images: Path) -> None:
    for name in "abc":
        save(images / f"{name}.png", 1)
    (images / "b.png").write_text("text")


def a_stranger(images: Path) -> None:
    for client in (2, 3, 4, 40):
        save(images / f"{client}" / "a.png", 1)


def a_number_with_a_zero(images: Path) -> None:
    for name in ("2", "3", "04"):
        save(images / name / "a.png", 1)


def one_missing(images: Path) -> None:
    for client in (2, 4):
        save(images / f"{client}" / "a.png", 1)


def one_empty(images: Path) -> None:
    one_missing(images)
    (images / "3").mkdir()


def a_mixture(images: Path) -> None:
    one_missing(images)
    save(images / "loose.png", 1)


def too_few(images: Path) -> None:
    for name in "ab":
        save(images / f"{name}.png", 1)


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (nothing, "there are no pictures in {images}"),
        (no_picture, "cannot read {images}/b.png as a picture (not an image): remove or replace it"),
        (a_stranger, "{images}/40 is no client of site south: its clients are 2 to 4, each with a folder of"),
        (a_number_with_a_zero, "{images}/04 is no client of site south"),
        (one_missing, "{images} has no folder for client 3 of site south"),
        (one_empty, "there are no pictures in {images}/3"),
        (a_mixture, "{images} holds both folders and files, such as 2 and loose.png: put every picture into"),
        (too_few, "{images} has fewer pictures (2) than site south has clients (3)"),
    ],
)
def test_what_is_wrong_with_a_folder_is_one_line(
    prepare: Callable[[Path], None], says: str, recipe: str, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(images)
    assert shards(recipe, images) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fedil: {says.format(images=images)}")
    assert not (images.parent / "out").exists()


def test_a_dataset_of_other_things_and_a_missing_folder_are_wrong_settings(
    recipe: str, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for client in SOUTH:
        save(images / f"{client}.png", 1)
    assert shards(recipe, images, "--set", "data.name=tests.federation:blobs") == 2
    assert capsys.readouterr().err.startswith("fedil: this dataset has samples of 8: pictures have 1 or 3 ")
    assert shards(recipe, images / "no") == 2
    assert capsys.readouterr().err == f"fedil: {images / 'no'} is not a folder\n"


def test_shards_that_exist_are_named_before_pictures_are_read(
    recipe: str, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_picture(images)
    write_shards(images.parent / "out", {0: torch.zeros(1, 2)})
    assert shards(recipe, images) == 1
    assert "has shards already" in capsys.readouterr().err


def test_where_nothing_is_dealt_out_a_site_is_told_how_to_write_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "elsewhere.toml"
    path.write_text(ELSEWHERE)
    words = ["shards", str(path), "--site", "south", "--out", str(tmp_path / "out")]
    assert main([*words, "--set", "data.name=mnist"]) == 2
    assert "Write them with fedil shards --images FOLDER" in capsys.readouterr().err


def test_a_recipe_that_deals_its_own_data_out_takes_no_pictures(
    tmp_path: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dealt.toml").write_text(RECIPE)
    assert shards(str(tmp_path / "dealt.toml"), images) == 2
    assert 'with pictures of their sites it must be "elsewhere"' in capsys.readouterr().err


def test_long_work_says_now_and_then_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    times: Iterator[float] = iter([0.0, 1.0, 5.5, 5.5, 7.0, 10.5, 10.5])
    tell = tell_now_and_then(4000, lambda: next(times))
    for done in (10, 20, 30, 40):
        tell(done)
    assert capsys.readouterr().err == ("fedil: 20 of 4000 pictures read\nfedil: 40 of 4000 pictures read\n")
