"""A batch in parts: the same gradients, but for rounding."""

import pytest
import torch
from torch import Tensor

from fedil_model.methods.fedil.batch import ViewedBatch
from fedil_model.methods.fedil.ledger import Ledger
from fedil_model.methods.fedil.method import FedIL
from fedil_model.methods.interface import ClientResult
from tests.unit.fedil_model.steps import UNLABELLED, activate, broadcast_of
from tests.unit.fedil_model.test_fedil_method import method


def client_result(fedil: FedIL, micro_batch: int | None, num_credible: int) -> ClientResult:
    """With some samples promoted, so that every loss has its part."""
    ledger = Ledger.empty(len(UNLABELLED))
    ledger.credible_N[:num_credible] = True
    ledger.labels_N[:num_credible] = 1
    fedil.micro_batch = micro_batch
    return activate(fedil, broadcast_of(fedil), ledger.to_arrays())


ONE_STEP = {"epochs": 1, "batch_size": 64, "clip_norm": 0.0, "momentum": 0.0, "nesterov": False}


@pytest.mark.parametrize("micro_batch", [1, 7, 16, 59])
@pytest.mark.parametrize("num_credible", [0, 10, 59, 60])
@pytest.mark.parametrize("profile", ["paper", "fedil"])
def test_gradients_of_parts_add_up_to_those_of_the_batch(
    profile: str, num_credible: int, micro_batch: int
) -> None:
    whole = client_result(method(profile, client=ONE_STEP), None, num_credible)
    parts = client_result(method(profile, client=ONE_STEP), micro_batch, num_credible)
    step = whole.update["delta.params"]
    assert float(step.norm()) > 1e-3
    assert torch.allclose(step, parts.update["delta.params"], atol=1e-6)
    for name, value in whole.metrics.items():
        assert parts.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    assert parts.num_steps == whole.num_steps == 1


def test_over_many_steps_the_parts_stay_close() -> None:
    whole, parts = (client_result(method("fedil"), size, 10) for size in (None, 5))
    assert not torch.equal(whole.update["delta.params"], parts.update["delta.params"]), "bits do differ"
    assert torch.allclose(whole.update["delta.params"], parts.update["delta.params"], atol=1e-4)


def test_parts_no_smaller_than_the_batch_are_the_batch_bit_for_bit() -> None:
    # 500: as many as a shard is looked at in anyway.
    whole, parts = (client_result(method("fedil"), size, 10) for size in (None, 500))
    assert torch.equal(whole.update["delta.params"], parts.update["delta.params"])


def batch(num_unlabelled: int, num_sure: int, num_trusted: int) -> ViewedBatch:
    sure_B = torch.arange(num_unlabelled) < num_sure
    weak_B = torch.arange(num_unlabelled).float()[:, None]
    trusted_L = torch.arange(num_trusted).float()[:, None]
    return ViewedBatch(
        weak_B, weak_B[:, 0].long(), sure_B, weak_B[sure_B] + 0.5, trusted_L, trusted_L[:, 0].long()
    )


@pytest.mark.parametrize("sizes", [(10, 4, 3), (10, 10, 0), (0, 0, 7), (3, 0, 11), (1, 1, 1)])
@pytest.mark.parametrize("limit", [1, 2, 4, 100])
def test_every_sample_is_in_one_part_beside_its_own_strong_view(
    sizes: tuple[int, int, int], limit: int
) -> None:
    whole = batch(*sizes)
    parts = [part for part, _, _ in whole.parts(limit)]
    for name in vars(whole):
        together: Tensor = torch.cat([getattr(part, name) for part in parts])
        assert torch.equal(together, getattr(whole, name)), name
    for part in parts:
        assert max(len(part.weak_B), len(part.trusted_L)) in range(1, limit + 1)
        assert torch.equal(part.strong_S, part.weak_B[part.sure_B] + 0.5)
    shares = [shares for _, *shares in whole.parts(limit)]
    if len(shares) > 1:
        assert sum(share_B for share_B, _ in shares) == pytest.approx(1.0 if sizes[0] else 0.0)
        assert sum(share_L for _, share_L in shares) == pytest.approx(1.0 if sizes[2] else 0.0)
