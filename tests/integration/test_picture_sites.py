"""Labels in one place, pictures without labels in two others, and nobody who sees more than its own folder."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from PIL import Image

from fedil_model.data.datasets.digits import digits
from server_worker.run.folder import RunDir
from server_worker.run.history import read_records
from tests.deployment import ROOT
from tests.services import Service

PATIENCE = 240.0
LABELLED = 200
HELD = {0: 30, 1: 20, 2: 25, 3: 25}
RECIPE = """
name = "pictures"
rounds = 2
baseline_epochs = 0
[data]
name = "folder"
root = "labelled"
options = { size = 8, gray = true, strong = "affine", classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"] }
[split]
partition = "elsewhere"
clients = 4
[network]
name = "cnn"
width = 8
[client]
epochs = 1
batch_size = 10
[server]
epochs = 1
pretrain_epochs = 5
batch_size = 20
[federation]
clients_per_round = 4
[federation.sites]
clinic = 2
phones = 2
"""


def scans() -> Iterator[tuple[Image.Image, int]]:
    """Real digits, in colour and of no size that anybody asked for"""
    train = digits().load_train()
    for pixels, label in zip(train.inputs.numpy(), train.labels.tolist(), strict=True):
        yield Image.fromarray(pixels[0]).resize((20, 24)).convert("RGB"), label


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """A folder for each, with the recipe and what it owns; the site "phones" does not know its clients apart."""
    found = {name: tmp_path / name for name in ("server", "clinic", "phones")}
    for place in found.values():
        place.mkdir()
        (place / "recipe.toml").write_text(RECIPE)
    source = scans()
    for number in range(LABELLED):
        picture, label = next(source)
        save(picture, found["server"] / "labelled" / str(label) / f"{number}.png")
    for client in (0, 1):
        for number in range(HELD[client]):
            save(next(source)[0], found["clinic"] / "images" / str(client) / f"{number}.png")
    for number in range(HELD[2] + HELD[3]):
        save(next(source)[0], found["phones"] / "images" / f"{number}.jpg")
    return found


def save(picture: Image.Image, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    picture.save(file)


class Place:
    """Where one of the three works; its commands see what is below its folder."""

    def __init__(self, folder: Path, addresses: dict[str, str]) -> None:
        self._folder = folder
        self._environment = os.environ | addresses | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def start(self, *words: str) -> "subprocess.Popen[str]":
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )

    def said(self) -> str:
        return (self._folder / "log").read_text()


def test_sites_train_on_folders_of_pictures_without_the_servers_data(
    folders: dict[str, Path], rabbitmq: Service, redis: Service
) -> None:
    addresses = {"FEDIL_BROKER_URL": rabbitmq.url, "FEDIL_STORE_URL": redis.url}
    places = {name: Place(folder, addresses) for name, folder in folders.items()}
    with ExitStack() as stack:
        for site in ("clinic", "phones"):
            words = ["shards", "recipe.toml", "--site", site, "--images", "images", "--out", "shards"]
            assert places[site].start("ops.cli", *words).wait(PATIENCE) == 0, places[site].said()
            assert "shards: 50 samples of 2 clients" in places[site].said()
            worker = places[site].start("client_worker", "--site", site, "--shards", "shards")
            stack.callback(worker.wait)
            stack.callback(worker.kill)
        server = places["server"].start("server_worker", "--recipe", "recipe.toml", "--run-dir", "run")
        stack.callback(server.wait)
        stack.callback(server.kill)
        code = server.wait(PATIENCE)
    logs = "\n".join(place.said() for place in places.values())
    assert code == 0, logs
    records = list(read_records(RunDir(folders["server"] / "run").history))
    assert len(records) == 2, logs
    for record in records:
        assert {outcome.client: outcome.num_samples for outcome in record.outcomes} == HELD, logs
    assert records[-1].accuracy["global"] > 0.6, f"{records[-1].accuracy}, guessing gives 0.1"
