from pathlib import Path

import numpy as np
import pytest
import torch

from client_worker.shards import ShardFolder, brief, has_shards, write_shards
from fedil_model.errors import DataError

PIXELS = np.arange(20, dtype=np.uint8).reshape(10, 2)


def test_each_client_has_its_own_samples_in_order(tmp_path: Path) -> None:
    write_shards(
        tmp_path / "shards", {0: PIXELS[[7, 1]], 1: PIXELS[:0], 2: torch.from_numpy(PIXELS)[[0, 9, 3]]}
    )
    shards = ShardFolder(tmp_path / "shards")
    assert shards.clients == (0, 1, 2)
    assert shards.inputs(0).tolist() == PIXELS[[7, 1]].tolist()
    assert shards.inputs(1).shape == (0, 2)
    assert shards.inputs(2).tolist() == PIXELS[[0, 9, 3]].tolist()
    assert shards.inputs(2).dtype == torch.uint8


def test_a_site_may_hold_any_of_the_federations_clients(tmp_path: Path) -> None:
    write_shards(tmp_path, {41: PIXELS[5:], 40: PIXELS[:5]})
    shards = ShardFolder(tmp_path)
    assert shards.inputs(40).tolist() == PIXELS[:5].tolist()
    assert shards.inputs(41).tolist() == PIXELS[5:].tolist()
    with pytest.raises(DataError, match=r"client 0 is not in .*, which has clients 40–41: is this the right"):
        shards.inputs(0)


def test_without_numbers_clients_count_from_0(tmp_path: Path) -> None:
    np.save(tmp_path / "inputs.npy", PIXELS)
    np.save(tmp_path / "offsets.npy", [0, 4, 10])
    shards = ShardFolder(tmp_path)
    assert shards.clients == (0, 1)
    assert shards.inputs(1).tolist() == PIXELS[4:].tolist()


def test_the_files_are_what_numpy_reads(tmp_path: Path) -> None:
    write_shards(tmp_path, {3: PIXELS.astype(np.float32), 5: np.asfortranarray(PIXELS.astype(np.float32))})
    assert np.array_equal(np.load(tmp_path / "inputs.npy"), np.concatenate([PIXELS, PIXELS]))
    assert np.load(tmp_path / "inputs.npy").dtype == np.float32
    assert np.load(tmp_path / "offsets.npy").tolist() == [0, 10, 20]
    assert np.load(tmp_path / "clients.npy").tolist() == [3, 5]


def test_shards_that_exist_are_not_overwritten(tmp_path: Path) -> None:
    assert not has_shards(tmp_path)
    write_shards(tmp_path, {0: PIXELS})
    assert has_shards(tmp_path)
    with pytest.raises(DataError, match="has shards already: choose another folder"):
        write_shards(tmp_path, {0: PIXELS[:3]})
    assert len(ShardFolder(tmp_path).inputs(0)) == 10


def test_a_folder_without_shards_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"no shards in {tmp_path}"):
        ShardFolder(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("offsets.npy", [0, 4, 11], "must go from 0 up to the number of samples"),
        ("offsets.npy", [0, 6, 4, 10], "must go from 0 up to the number of samples"),
        ("offsets.npy", [1, 10], "must go from 0 up to the number of samples"),
        ("offsets.npy", [0.0, 10.0], "must hold whole numbers"),
        ("offsets.npy", [], "must hold whole numbers"),
        ("offsets.npy", [[0, 10]], "must hold whole numbers"),
        ("clients.npy", [1], "must hold 2 whole numbers"),
        ("clients.npy", [1, 1], "must name every client once"),
        ("clients.npy", [-1, 1], "must name every client once"),
    ],
)
def test_a_folder_that_contradicts_itself_is_named(
    tmp_path: Path, name: str, content: list[int], words: str
) -> None:
    np.save(tmp_path / "inputs.npy", PIXELS)
    np.save(tmp_path / "offsets.npy", [0, 4, 10])
    np.save(tmp_path / name, content)
    with pytest.raises(DataError, match=words):
        ShardFolder(tmp_path)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ({}, "name at least one client"),
        ({-1: PIXELS}, "numbered from 0 up"),
        ({0: PIXELS, 1: PIXELS.astype(np.float32)}, "client 1 has float32 samples"),
        ({0: PIXELS, 1: PIXELS[:, :1]}, r"client 1 has uint8 samples of shape \(1,\)"),
        ({0: PIXELS[0]}, "the first axis counting samples"),
        ({0: np.array([["a"]])}, "cannot be trained on"),
    ],
)
def test_samples_that_do_not_belong_together_are_refused_before_anything_is_written(
    tmp_path: Path, samples: dict[int, np.ndarray], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        write_shards(tmp_path / "shards", samples)
    assert not (tmp_path / "shards").exists()


def test_many_clients_are_named_briefly() -> None:
    assert brief([0]) == "clients 0"
    assert brief([5, 0, 1, 2]) == "clients 0–2, 5"
    assert brief(range(0, 100, 2)).endswith(", 18 and more (50 in all)")


@pytest.mark.parametrize("name", ["inputs.npy", "offsets.npy", "clients.npy"])
@pytest.mark.parametrize("content", [b"", b"not an array", b"\x93NUMPY\x01\x00v\x00{'descr'"])
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, name: str, content: bytes) -> None:
    write_shards(tmp_path, {0: PIXELS})
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        DataError, match=rf"{tmp_path} cannot be used: {name} is damaged; make them anew, see"
    ):
        ShardFolder(tmp_path)
    with pytest.raises(DataError, match=f"{name} is damaged; pray$"):
        ShardFolder(tmp_path, remedy="pray")


def test_an_archive_is_not_taken_for_an_array(tmp_path: Path) -> None:
    write_shards(tmp_path, {0: PIXELS})
    with (tmp_path / "inputs.npy").open("wb") as file:
        np.savez(file, PIXELS)
    with pytest.raises(DataError, match=r"inputs\.npy is damaged"):
        ShardFolder(tmp_path)
