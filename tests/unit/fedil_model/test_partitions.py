from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedil_model.data.partitions import PARTITIONS
from fedil_model.errors import DataError
from fedil_model.settings import SplitSettings

Name = Literal["iid", "classes", "dirichlet", "batch_iid", "batch_noniid"]
COMPLETE: list[Name] = ["iid", "classes", "dirichlet", "batch_iid"]
seeds = st.integers(0, 2**32)


def some_labels(num_classes: int, per_class: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(num_classes), per_class))


def parts_of(
    name: Name, labels: np.ndarray, clients: int, seed: int = 0, **settings: Any
) -> list[np.ndarray]:
    split = SplitSettings(labelled=1, clients=clients, partition=name, **settings)
    return PARTITIONS[name](labels, clients, split, np.random.default_rng(seed))


def positions(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts)


def counts_by_client(parts: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@pytest.mark.parametrize("name", COMPLETE)
@given(per_class=st.integers(30, 60), clients=st.integers(5, 12), seed=seeds)
def test_every_sample_goes_to_exactly_one_client(name: Name, per_class: int, clients: int, seed: int) -> None:
    labels = some_labels(10, per_class, seed)
    parts = parts_of(name, labels, clients, seed, min_samples=1, alpha=1.0)
    assert len(parts) == clients
    assert np.array_equal(np.sort(positions(parts)), np.arange(len(labels)))


@pytest.mark.parametrize("name", list(PARTITIONS))
def test_the_same_generator_gives_the_same_parts_and_another_gives_others(name: Name) -> None:
    labels = some_labels(10, 50, 0)
    first, again = (parts_of(name, labels, 10, seed=3) for _ in range(2))
    other = parts_of(name, labels, 10, seed=4)
    assert all(np.array_equal(left, right) for left, right in zip(first, again, strict=True))
    assert not all(np.array_equal(left, right) for left, right in zip(first, other, strict=True))


@given(num=st.integers(20, 300), clients=st.integers(1, 20), seed=seeds)
def test_iid_sizes_differ_by_at_most_one(num: int, clients: int, seed: int) -> None:
    sizes = [len(part) for part in parts_of("iid", np.zeros(num, dtype=np.int64), clients, seed)]
    assert max(sizes) - min(sizes) <= 1


@given(
    num_classes=st.integers(2, 20),
    clients=st.integers(2, 25),
    share=st.floats(0.05, 1.0),
    seed=seeds,
)
def test_each_client_holds_exactly_its_number_of_classes(
    num_classes: int, clients: int, share: float, seed: int
) -> None:
    labels = some_labels(num_classes, 30, seed)
    per_client = max(1, round(share * num_classes))
    if clients * per_client < num_classes:
        with pytest.raises(DataError, match=r"split\.classes_share"):
            parts_of("classes", labels, clients, seed, classes_share=share)
        return
    counts = counts_by_client(parts_of("classes", labels, clients, seed, classes_share=share), labels)
    assert ((counts > 0).sum(axis=1) == per_client).all()
    holders_C = (counts > 0).sum(axis=0)
    assert holders_C.min() >= clients * per_client // num_classes
    assert holders_C.max() <= -(-clients * per_client // num_classes)
    for held_K in counts.T:
        shares = held_K[held_K > 0]
        assert shares.max() - shares.min() <= 1


def test_the_papers_non_iid_setting_is_two_classes_of_twenty_holders() -> None:
    labels = some_labels(10, 600, 0)
    counts = counts_by_client(parts_of("classes", labels, 100), labels)
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert ((counts > 0).sum(axis=0) == 20).all()
    assert len({tuple(row) for row in counts > 0}) > 20  # classes meet at random, not in fixed pairs


def test_a_class_with_fewer_samples_than_holders_is_refused() -> None:
    with pytest.raises(DataError, match=r"class \d has 3 unlabelled samples for 20 clients"):
        parts_of("classes", some_labels(10, 3, 0), 100)


def test_a_small_alpha_is_skewed_and_a_large_one_even() -> None:
    labels = some_labels(10, 500, 0)

    def largest_share(alpha: float) -> float:
        counts = counts_by_client(parts_of("dirichlet", labels, 20, alpha=alpha, min_samples=1), labels)
        return float((counts.max(axis=1) / counts.sum(axis=1)).mean())

    assert largest_share(0.1) > 0.5
    assert largest_share(100.0) < 0.2


@given(alpha=st.floats(0.05, 5.0), seed=seeds)
def test_nobody_gets_fewer_than_min_samples(alpha: float, seed: int) -> None:
    sizes = [len(part) for part in parts_of("dirichlet", some_labels(10, 100, seed), 8, seed, alpha=alpha)]
    assert min(sizes) >= 10
    assert sum(sizes) == 1000


def test_a_dirichlet_draw_that_cannot_succeed_says_why() -> None:
    with pytest.raises(DataError, match=r"split\.min_samples=10 .*split\.clients=30 needs 300 .*200"):
        parts_of("dirichlet", some_labels(10, 20, 0), 30)
    with pytest.raises(DataError, match=r"split\.alpha=0\.001"):
        parts_of("dirichlet", some_labels(10, 40, 0), 40, alpha=0.001)


def test_batch_iid_gives_every_client_the_same_of_every_class() -> None:
    labels = some_labels(10, 57, 0)
    counts = counts_by_client(parts_of("batch_iid", labels, 8), labels)
    assert (counts.max(axis=0) - counts.min(axis=0) <= 1).all()
    assert np.ptp(counts.sum(axis=1)) <= 1


def test_batch_noniid_follows_fedmatchs_probabilities_and_repeats_nothing() -> None:
    labels = some_labels(10, 4000, 0)
    parts = parts_of("batch_noniid", labels, 10)
    assert len(np.unique(positions(parts))) == len(positions(parts))
    shares = counts_by_client(parts, labels)[3] / 4000
    assert abs(shares[3] - 0.5) < 0.03
    assert abs(shares[2] - 0.15) < 0.03
    assert abs(shares[4] - 0.15) < 0.03
    assert shares[[0, 1, 5, 6, 7, 8, 9]].max() < 0.05


def test_batch_noniid_is_for_ten_classes() -> None:
    with pytest.raises(DataError, match=r"10 classes.* have 7"):
        parts_of("batch_noniid", some_labels(7, 10, 0), 5)
