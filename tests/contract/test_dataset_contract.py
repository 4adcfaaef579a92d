"""What every dataset that is read from files promises, whatever the files are."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedil_model.data.datasets import open_dataset
from fedil_model.data.datasets.checking import check_views
from fedil_model.data.datasets.interface import Dataset
from fedil_model.settings import DataSettings

CPU = torch.device("cpu")


def folder(place: Path) -> Path:
    for name in ("cat", "dog"):
        (place / name).mkdir(parents=True)
        for number in range(8):
            pixels = np.random.default_rng(number).integers(0, 256, (9, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / name / f"{number}.png")
    return place


def npz(place: Path) -> Path:
    images = np.random.default_rng(0).integers(0, 256, (8, 9, 9), dtype=np.uint8)
    labels = np.arange(8) % 2
    np.savez(
        place / "x.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels
    )
    return place / "x.npz"


def csv(place: Path) -> Path:
    rows = [f"{n},{'uvw'[n % 3]},{'' if n == 4 else n / 7},{'ab'[n % 2]}" for n in range(12)]
    (place / "x.csv").write_text("n,kind,share,label\n" + "\n".join(rows))
    return place / "x.csv"


def nothing(place: Path) -> Path:
    return place / "nothing"


@dataclass(frozen=True)
class Kind:
    name: str
    write: Callable[[Path], Path]
    options: dict[str, Any]

    def opened(self, root: Path, **more: Any) -> Dataset:
        return open_dataset(DataSettings(name=self.name, root=root, options={**self.options, **more}))


KINDS = [
    Kind("digits", nothing, {}),
    Kind("folder", folder, {"size": 8}),
    Kind("npz", npz, {}),
    Kind("csv", csv, {"label": "label"}),
]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def root(kind: Kind, tmp_path: Path) -> Path:
    return kind.write(tmp_path)


def test_its_samples_fit_its_description_and_its_views(kind: Kind, root: Path) -> None:
    dataset = kind.opened(root)
    train, test = dataset.load_train(), dataset.load_test()
    check_views(kind.name, dataset, train, test, CPU)
    assert set(train.labels.tolist()) == set(test.labels.tolist()) == set(range(len(dataset.class_names)))


def test_opened_again_it_gives_the_same_samples_in_the_same_order(kind: Kind, root: Path) -> None:
    first, again = kind.opened(root), kind.opened(root)
    for one, other in ((first.load_train(), again.load_train()), (first.load_test(), again.load_test())):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.labels, other.labels)


def test_views_are_a_function_of_the_generator(kind: Kind, root: Path) -> None:
    dataset = kind.opened(root)
    raw = dataset.load_train().inputs
    for view in (dataset.views.weak, dataset.views.strong):
        first, same, other = (view(raw, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
        assert torch.equal(first, same)
        assert not torch.equal(first, other)


def test_where_its_files_are_not_it_opens_with_the_options_that_it_names(kind: Kind, root: Path) -> None:
    here = kind.opened(root)
    written = json.loads(json.dumps(here.elsewhere))
    away = kind.opened(Path("nowhere"), **written)
    assert (away.class_names, away.input_shape) == (here.class_names, here.input_shape)
    raw = here.load_train().inputs
    assert torch.equal(away.views.plain(raw), here.views.plain(raw))
    there = kind.opened(root, **written)
    assert torch.equal(there.load_train().inputs, raw)
