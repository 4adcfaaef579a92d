"""Batches of sure samples only: what they hold, how many there are, and when they are the default."""

from collections import Counter

import numpy as np
import pytest
import torch

from fedil_model.methods.fedil.client import _Plan, _Targets
from fedil_model.methods.fedil.ledger import NO_LABEL, Ledger, Observation
from fedil_model.methods.fedil.settings import FedILSettings

CPU = torch.device("cpu")


def targets_of(sure: list[bool]) -> _Targets:
    size = len(sure)
    labels = torch.arange(size) % 3
    confidence = torch.where(torch.tensor(sure), 0.99, 0.5) - torch.arange(size) * 1e-4
    return _Targets(Observation(labels.numpy(), np.array(sure)), labels, confidence, torch.tensor(sure))


def positions(plan: _Plan, batch_size: int) -> list[torch.Tensor]:
    batches = plan.batches(batch_size, torch.Generator().manual_seed(0))
    return [plan.unlabelled_U[batch] for batch in batches]


@pytest.mark.parametrize(
    ("num_sure", "batch_size"), [(13, 10), (13, 50), (29, 10), (40, 10), (99, 25), (100, 25)]
)
def test_an_epoch_has_the_size_of_the_shard_and_repeats_sure_samples_evenly(
    num_sure: int, batch_size: int
) -> None:
    size = 100
    plan = _Plan.sure_only(
        Ledger.empty(size), targets_of([n < num_sure for n in range(size)]), CPU, least=10, credible=True
    )
    batches = positions(plan, batch_size)
    counts = Counter(torch.cat(batches).tolist())
    assert len(batches) == -(-size // batch_size)
    assert sum(counts.values()) == size
    assert set(counts) == set(range(num_sure))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_short_last_batch_is_left_out() -> None:
    plan = _Plan.sure_only(
        Ledger.empty(104), targets_of([n < 20 for n in range(104)]), CPU, least=10, credible=True
    )
    assert [len(batch) for batch in positions(plan, 25)] == [25, 25, 25, 25]


def test_without_sure_samples_the_most_confident_are_trained_on() -> None:
    plan = _Plan.sure_only(Ledger.empty(60), targets_of([False] * 60), CPU, least=10, credible=True)
    assert set(torch.cat(positions(plan, 10)).tolist()) == set(range(10))
    assert plan.sure_share == 0.0


def test_credible_samples_keep_their_labels() -> None:
    labels, credible = np.full(40, NO_LABEL, np.int16), np.zeros(40, bool)
    labels[39], credible[39] = 7, True
    ledger = Ledger.empty(40)
    ledger = Ledger(**{**vars(ledger), "labels_N": labels, "credible_N": credible})
    plan = _Plan.sure_only(ledger, targets_of([n < 12 for n in range(40)]), CPU, least=10, credible=True)
    taught = plan.taught(40)
    assert taught[39] == 7
    assert (taught[:12] == np.arange(12) % 3).all()
    assert (taught[12:39] == NO_LABEL).all()


def test_auto_follows_the_network() -> None:
    settings = FedILSettings(batches="auto", pseudo_source="ensemble", weight_pseudo_weak=1.0)
    with_statistics, without = settings.for_network(True), settings.for_network(False)
    assert (
        with_statistics.batches,
        with_statistics.weight_pseudo_weak,
        with_statistics.weight_consistency,
    ) == (
        "sure",
        0.0,
        0.0,
    )
    assert (without.batches, without.weight_pseudo_weak, without.weight_consistency) == ("mixed", 1.0, 1.0)


def test_they_need_labels_before_training() -> None:
    with pytest.raises(ValueError, match="set pseudo_source"):
        FedILSettings(batches="sure")
