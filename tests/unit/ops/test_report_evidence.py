from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ops.inspect.report.evidence
from broker_config.protocol.wire import encode_arrays
from fedil_model.data.augment import TensorViews
from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.data.split import Split
from fedil_model.methods.fedil.ledger import Ledger
from fedil_model.methods.fedil.ledger_view import view_ledger
from ops.inspect.report.drawing import Missing
from ops.inspect.report.evidence import gather
from ops.inspect.report.held_labels import HeldLabels, find_held_labels, spread_out
from ops.inspect.report.reading import read_run
from server_worker.run.folder import RunDir
from server_worker.run.inputs import read_inputs
from tests.unit.ops.report_runs import make_run, make_run_folder

IMAGES = torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1).expand(6, 1, 2, 2)
TRAIN = Samples(IMAGES, torch.tensor([0, 1, 2, 0, 1, 2]))
SPLIT = Split(np.array([0]), (np.array([1, 2]), np.array([3, 4, 5])), 0)


def ledger(labels: list[int], credible: list[bool]) -> bytes:
    held = Ledger(np.ones(len(labels), np.uint8), np.array(labels, np.int16), np.array(credible))
    return b"".join(encode_arrays("ledger", {}, held.to_arrays()))


def found_in(ledgers: dict[int, bytes], split: Split, train: Samples) -> HeldLabels:
    return find_held_labels(ledgers, split, train, 3, view_ledger)


def test_labels_are_found_with_label_truth_picture_and_client() -> None:
    ledgers = {0: ledger([1, 1], [True, True]), 1: ledger([0, 2, -1], [True, False, False])}
    found = found_in(ledgers, SPLIT, TRAIN)
    assert found.said_N.tolist() == [1, 1, 0]
    assert found.truth_N.tolist() == [1, 2, 0]
    assert (found.others, found.unreadable) == (1, ())
    (wrong,) = found.wrong
    assert (wrong.said, wrong.is_really, wrong.client, int(wrong.pixels[0, 0, 0])) == (1, 2, 0, 2)
    assert [(picture.said, picture.client) for picture in found.right] == [(0, 1), (1, 0)]


@pytest.mark.parametrize(
    "damaged",
    [b"nonsense", ledger([0], [True]), ledger([7, 1], [True, True])],
    ids=["bytes", "size", "a class that does not exist"],
)
def test_a_ledger_that_makes_no_sense_is_left_out_and_named(damaged: bytes) -> None:
    found = found_in({0: damaged, 1: ledger([0, 2, -1], [True, True, False])}, SPLIT, TRAIN)
    assert found.unreadable == (0,)
    assert found.said_N.tolist() == [0, 2]


def test_a_ledger_of_a_client_that_is_not_in_the_split_is_left_out() -> None:
    assert found_in({9: ledger([0], [True])}, SPLIT, TRAIN).unreadable == (9,)


def test_without_ledgers_no_label_is_found() -> None:
    found = found_in({}, SPLIT, TRAIN)
    assert (len(found.said_N), found.right, found.wrong) == (0, (), ())


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (torch.zeros(6, 8), "8 numbers of type float32"),
        (torch.zeros(6, 3, 4, 4), "3 × 4 × 4 numbers of type float32"),
        (torch.zeros(6, 2, 4, 4, dtype=torch.uint8), "2 × 4 × 4 numbers of type uint8"),
    ],
)
def test_samples_that_are_no_pictures_are_said_to_be_none(inputs: torch.Tensor, says: str) -> None:
    found = found_in({0: ledger([1, 1], [True, True])}, SPLIT, Samples(inputs, TRAIN.labels))
    assert (found.not_pictures, found.right, found.wrong) == (says, (), ())
    assert (found.said_N == found.truth_N).tolist() == [True, False]


def test_pictures_are_taken_from_all_classes_and_are_always_the_same_ones() -> None:
    labels = np.array([0] * 100 + [1] * 3 + [2] * 50)
    chosen = spread_out(np.arange(153), labels, 10)
    assert np.bincount(labels[chosen]).min() == 3
    assert len(set(chosen)) == 10
    assert chosen == spread_out(np.arange(153), labels, 10)


# ---- from a folder


def split_folder(tmp_path: Path, **settings: Any) -> Path:
    folder = make_run_folder(tmp_path / "r", **settings)
    run = read_run(folder)
    read_inputs(RunDir(folder), run.recipe, torch.device("cpu"), resume=False)
    return folder


def test_the_classes_of_server_and_clients_are_counted(tmp_path: Path) -> None:
    found = gather(read_run(split_folder(tmp_path)), None)
    assert isinstance(found.class_counts, np.ndarray)
    assert found.class_counts.shape == (21, 10)
    assert found.class_counts[0].tolist() == [5] * 10
    assert found.class_counts[1:].sum() == 1388
    assert found.class_names == tuple("0123456789")


def test_without_a_checkpoint_or_ledgers_the_reasons_are_given(tmp_path: Path) -> None:
    found = gather(read_run(split_folder(tmp_path)), None)
    assert isinstance(found.quality, Missing)
    assert "no finished round yet" in found.quality.why
    assert isinstance(found.held_labels, Missing)
    assert "--store URL" in found.held_labels.why
    assert set(found.digests) == {"split"}


def test_a_run_that_was_stopped_before_its_first_round_is_not_taken_for_a_deployment(tmp_path: Path) -> None:
    folder = split_folder(tmp_path)
    (folder / "history.jsonl").unlink()
    found = gather(read_run(folder), None)
    assert found.held_labels == Missing("no client has a ledger in the folder: no round has closed yet")


def test_data_that_cannot_be_read_costs_only_what_needs_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", data={"name": "mnist", "root": tmp_path / "nowhere", "download": True})
    found = gather(run, None)
    for part in (found.class_counts, found.held_labels, found.quality):
        assert isinstance(part, Missing)
    assert isinstance(found.quality, Missing)
    assert not (tmp_path / "nowhere").exists()  # nothing was fetched


def test_whatever_a_persons_own_dataset_raises_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> Dataset:
        raise ZeroDivisionError("half of\nhttp://me:secret@disk is gone")

    monkeypatch.setattr(ops.inspect.report.evidence, "open_dataset", broken)
    found = gather(make_run(tmp_path / "r"), None)
    assert found.quality == Missing("the data cannot be read: half of http://me:PASSWORD@disk is gone")


def test_another_dataset_than_the_splits_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = split_folder(tmp_path)
    few = Dataset(("a", "b", "c"), (4,), TensorViews(), lambda: TRAIN, lambda: TRAIN)
    monkeypatch.setattr(ops.inspect.report.evidence, "open_dataset", lambda _: few)
    found = gather(read_run(folder), None)
    assert isinstance(found.class_counts, Missing)
    assert "more samples than the 6 there are" in found.class_counts.why


def test_samples_that_lie_at_their_sites_are_not_looked_for(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "r")
    nothing = np.zeros(0, np.int64)
    (folder / "split.json").write_text(Split(np.arange(30), (nothing,) * 20, 0).to_json())
    found = gather(read_run(folder), None)
    assert found.held_labels == Missing("the clients’ samples are at their sites")
    assert isinstance(found.class_counts, np.ndarray)


def test_a_store_that_does_not_answer_is_told_without_its_password(tmp_path: Path) -> None:
    found = gather(read_run(split_folder(tmp_path)), "redis://user:secret@127.0.0.1:9")
    assert isinstance(found.held_labels, Missing)
    assert "the ledgers cannot be read" in found.held_labels.why
    assert "secret" not in found.held_labels.why
