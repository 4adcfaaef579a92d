"""`fedil shards` and `fedil worker`; what a worker then does is in tests/integration."""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import client_worker.__main__
from client_worker.shards import ShardFolder, write_shards
from fedil_model.data.datasets.digits import digits
from fedil_model.data.split import make_split
from ops.cli.commands import worker
from ops.cli.main import main
from ops.cli.recipe_files import read_recipe

RECIPE = """
name = "two-sites"
[data]
name = "digits"
[split]
labelled = 50
clients = 5
[federation]
clients_per_round = 2
[federation.sites]
north = 2
south = 3
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "two-sites.toml"
    path.write_text(RECIPE)
    return str(path)


def test_each_site_gets_its_own_clients_under_the_federations_numbers(recipe: str, tmp_path: Path) -> None:
    for site in ("north", "south"):
        assert main(["shards", recipe, "--site", site, "--out", str(tmp_path / site)]) == 0
    train, settings = digits().load_train(), read_recipe(recipe, [])
    split = make_split(train.labels.numpy(), 10, settings.split, settings.seed)
    north, south = ShardFolder(tmp_path / "north"), ShardFolder(tmp_path / "south")
    assert (north.clients, south.clients) == ((0, 1), (2, 3, 4))
    for folder in (north, south):
        for client in folder.clients:
            assert torch.equal(folder.inputs(client), train.inputs[torch.from_numpy(split.clients[client])])


def test_a_recipe_without_sites_has_one_with_all_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "shards"
    words = ["--site", "default", "--out", str(out), "--set", "split.clients=7"]
    assert main(["shards", "digits", *words, "--set", "federation.clients_per_round=2"]) == 0
    assert ShardFolder(out).clients == tuple(range(7))
    assert "samples of 7 clients (0 to 6)" in capsys.readouterr().out


def test_an_unknown_site_is_answered_with_those_that_there_are(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shards", recipe, "--site", "east", "--out", str(tmp_path / "out")]) == 2
    assert "two-sites has no site 'east': federation.sites are north, south" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_shards_that_exist_are_not_overwritten(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_shards(tmp_path, {0: torch.zeros(1, 2)})
    assert main(["shards", recipe, "--site", "north", "--out", str(tmp_path)]) == 1
    assert "has shards already" in capsys.readouterr().err


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """The options that a worker was started with"""
    monkeypatch.setenv("FEDIL_BROKER_URL", "amqp://127.0.0.1:1/")
    monkeypatch.setenv("FEDIL_STORE_URL", "redis://127.0.0.1:1")
    options: list[argparse.Namespace] = []

    def serve(given: argparse.Namespace) -> int:
        options.append(given)
        return 0

    monkeypatch.setattr(client_worker.__main__, "run", serve)
    return options


def test_a_worker_makes_its_shards_from_a_recipe_once(
    recipe: str, tmp_path: Path, served: list[argparse.Namespace]
) -> None:
    shards = tmp_path / "shards"
    words = ["worker", "--site", "south", "--shards", str(shards), "--recipe", recipe, "--grace", "9"]
    assert main(words) == 0
    written = (shards / "inputs.npy").stat().st_mtime_ns
    assert ShardFolder(shards).clients == (2, 3, 4)
    assert main(words) == 0
    assert (shards / "inputs.npy").stat().st_mtime_ns == written
    assert [options.grace for options in served] == [9.0, 9.0]


def test_workers_that_start_together_make_their_shards_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def write_slowly(_recipe: object, _site: str, shards: Path) -> tuple[range, int]:
        made.append(shards)
        time.sleep(0.2)
        write_shards(shards, {0: torch.zeros(1, 2)})
        return range(1), 1

    monkeypatch.setattr(worker, "write_site_shards", write_slowly)
    asked = argparse.Namespace(
        recipe="digits", overrides=[], plugin=[], site="default", shards=tmp_path / "s"
    )
    with ThreadPoolExecutor(4) as together:
        list(together.map(worker.prepare, [asked] * 4))
    assert made == [tmp_path / "s"]


def test_naming_a_recipe_allows_the_code_that_it_names(
    recipe: str, tmp_path: Path, served: list[argparse.Namespace]
) -> None:
    write_shards(tmp_path / "shards", {0: torch.zeros(1, 2)})
    words = ["worker", "--site", "north", "--shards", str(tmp_path / "shards")]
    assert main([*words, "--plugin", "a:b"]) == 0
    assert main([*words, "--plugin", "a:b", "--recipe", recipe, "--set", "network.name=mine:net"]) == 0
    assert [options.plugin for options in served] == [["a:b"], ["a:b", "mine:net"]]


def test_a_worker_without_addresses_is_told_both_ways_to_give_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FEDIL_BROKER_URL", raising=False)
    assert main(["worker", "--site", "s", "--shards", str(tmp_path)]) == 2
    expected = "fedil: no broker to connect to: give --broker URL, or set FEDIL_BROKER_URL\n"
    assert capsys.readouterr().err == expected


def test_the_lock_of_shards_follows_no_symbolic_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    (tmp_path / ".lock").symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic links"), worker.only_one_at(tmp_path):
        raise AssertionError
    assert elsewhere.read_text() == "precious"
