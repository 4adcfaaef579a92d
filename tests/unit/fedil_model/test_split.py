import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedil_model.data.split import Split, make_split, refuse_missing_classes
from fedil_model.errors import DataError
from fedil_model.settings import SplitSettings

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))


def split_of(seed: int = 0, labels: np.ndarray = LABELS, **settings: Any) -> Split:
    return make_split(labels, 10, SplitSettings(**{"labelled": 50, "clients": 10, **settings}), seed)


@given(
    labelled=st.integers(10, 300),
    clients=st.integers(1, 30),
    label_split=st.sampled_from(["stratified", "random"]),
    seed=st.integers(0, 2**63 - 1),
)
def test_server_and_clients_share_the_training_set_without_overlap(
    labelled: int, clients: int, label_split: str, seed: int
) -> None:
    split = split_of(seed, labelled=labelled, clients=clients, label_split=label_split)
    assert len(split.labelled) == labelled
    everything = np.concatenate((split.labelled, *split.clients))
    assert np.array_equal(np.sort(everything), np.arange(len(LABELS)))
    assert all(np.array_equal(part, np.sort(part)) for part in split.clients)
    if label_split == "stratified":
        counts = np.bincount(LABELS[split.labelled], minlength=10)
        assert counts.max() - counts.min() <= (1 if labelled <= 10 * 60 else 60)


def test_the_paper_gets_its_numbers() -> None:
    labels = np.repeat(np.arange(10), 5000)
    split = make_split(labels, 10, SplitSettings(labelled_fraction=0.01), seed=0)
    assert np.bincount(labels[split.labelled]).tolist() == [50] * 10
    assert {len(part) for part in split.clients} == {495}
    assert len(split.clients) == 100


def test_a_rare_class_gives_what_it_has_and_the_others_make_up_for_it() -> None:
    labels = np.concatenate((np.zeros(3), np.repeat(np.arange(1, 10), 50))).astype(np.int64)
    split = split_of(labels=labels, labelled=100)
    counts = np.bincount(labels[split.labelled], minlength=10)
    assert counts[0] == 3
    assert counts.sum() == 100
    assert set(counts[1:]) <= {10, 11}


def test_the_labelled_set_depends_on_the_seed_and_not_on_the_partition() -> None:
    first, other_partition, other_seed = split_of(), split_of(partition="classes"), split_of(seed=1)
    assert np.array_equal(first.labelled, other_partition.labelled)
    assert not np.array_equal(first.labelled, other_seed.labelled)
    assert len({first.digest, other_partition.digest, other_seed.digest}) == 3
    assert split_of().digest == first.digest


def test_a_saved_split_comes_back_the_same(tmp_path: Path) -> None:
    split = split_of(partition="dirichlet")
    (tmp_path / "split.json").write_text(split.to_json())
    loaded = Split.load(tmp_path / "split.json")
    assert loaded.digest == split.digest
    assert loaded.seed == split.seed
    assert all(np.array_equal(left, right) for left, right in zip(loaded.clients, split.clients, strict=True))


def test_a_split_that_was_moved_by_one_sample_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    written = json.loads(split_of().to_json())
    written["clients"][0][0], written["clients"][1][0] = written["clients"][1][0], written["clients"][0][0]
    path.write_text(json.dumps(written))
    with pytest.raises(DataError, match="was altered"):
        Split.load(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"seed": 0, "digest": "", "labelled": [0.5], "clients": []}']
)
def test_a_file_that_is_no_split_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "split.json").write_text(text)
    with pytest.raises(DataError, match="is not a saved split"):
        Split.load(tmp_path / "split.json")
    with pytest.raises(DataError, match="no split in"):
        Split.load(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labelled": 600}, r"split\.labelled=600 asks for 600 .* has 600"),
        ({"labelled": None, "labelled_fraction": 0.0001}, r"split\.labelled_fraction=0\.0001 asks for 0"),
        ({"labelled": 9}, r"split\.labelled=9 gives 9 labels for 10 classes"),
        ({"labelled": 550, "clients": 60}, r"split\.clients=60, but only 50 unlabelled .*600 in all, 550"),
        ({"labelled": 590, "partition": "batch_noniid"}, r"batch_noniid"),
    ],
)
def test_an_impossible_split_names_the_setting_and_the_numbers(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        split_of(**settings)


def test_labels_outside_of_the_classes_are_refused() -> None:
    with pytest.raises(DataError, match="labels go from 0 to 9, expected 0 to 8"):
        make_split(LABELS, 9, SplitSettings(labelled=50), seed=0)


def test_elsewhere_keeps_everything_labelled_here_and_deals_nothing_out() -> None:
    labels = np.arange(40) % 4
    split = make_split(labels, 4, SplitSettings(partition="elsewhere", clients=3), seed=1)
    assert split.labelled.tolist() == list(range(40))
    assert [len(held) for held in split.clients] == [0, 0, 0]
    with pytest.raises(DataError, match="at their sites"):
        split.deal()


def test_elsewhere_is_not_told_how_many_labels_there_are() -> None:
    with pytest.raises(ValueError, match="do not say how many"):
        SplitSettings(partition="elsewhere", labelled=10)


def test_a_class_without_a_sample_is_named_where_the_labels_should_be_stratified() -> None:
    names = [f"class {label}" for label in range(12)]
    with pytest.raises(DataError, match=r"no sample of 'class 10', 'class 11'; split\.label_split"):
        refuse_missing_classes(LABELS, names, SplitSettings(labelled=50))
    refuse_missing_classes(LABELS, names[:10], SplitSettings(labelled=50))
    refuse_missing_classes(LABELS, names, SplitSettings(labelled=50, label_split="random"))
    refuse_missing_classes(LABELS, names, SplitSettings(partition="elsewhere"))
