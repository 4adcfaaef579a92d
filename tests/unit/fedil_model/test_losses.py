"""ξa and ξb: their values, and where their gradients go. B batch, C classes."""

import math

import pytest
import torch
from torch import Tensor

from fedil_model.methods.fedil.losses import consistency_loss, pseudo_label_loss


def logits(*rows: tuple[float, ...]) -> Tensor:
    """Of these probabilities."""
    return torch.tensor(rows).log()


def kl(p: tuple[float, ...], q: tuple[float, ...]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def test_the_pseudo_label_loss_is_a_mean_over_the_whole_batch() -> None:
    logits_BC = logits((0.5, 0.5), (0.25, 0.75), (0.1, 0.9), (0.2, 0.8))
    labels_B, mask_B = torch.tensor([0, 1, 0, 1]), torch.tensor([True, True, False, False])
    expected = (-math.log(0.5) - math.log(0.75)) / 4
    assert float(pseudo_label_loss(logits_BC, labels_B, mask_B)) == pytest.approx(expected, rel=1e-6)


def test_a_batch_without_a_confident_sample_has_no_pseudo_label_loss_and_no_gradient() -> None:
    logits_BC = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = pseudo_label_loss(logits_BC, torch.zeros(4, dtype=torch.int64), torch.zeros(4))
    torch.autograd.backward(loss)
    assert float(loss.detach()) == 0.0
    assert logits_BC.grad is not None
    assert not logits_BC.grad.any()


def test_only_confident_samples_have_a_gradient() -> None:
    logits_BC = torch.zeros(2, 3, requires_grad=True)
    torch.autograd.backward(pseudo_label_loss(logits_BC, torch.tensor([1, 1]), torch.tensor([1.0, 0.0])))
    assert logits_BC.grad is not None
    third = 1 / 3
    assert logits_BC.grad[0].tolist() == pytest.approx([third / 2, (third - 1) / 2, third / 2])
    assert logits_BC.grad[1].tolist() == [0.0, 0.0, 0.0]


def test_the_consistency_loss_is_the_divergence_of_the_server_from_the_client_and_not_the_other_way() -> None:
    server, client = (0.7, 0.2, 0.1), (0.2, 0.3, 0.5)
    loss = float(consistency_loss(logits(server), logits(client)))
    assert loss == pytest.approx(kl(server, client), rel=1e-5)
    assert loss != pytest.approx(kl(client, server), rel=1e-2)


def test_the_consistency_loss_is_a_mean_over_samples_and_not_over_classes() -> None:
    server, client = (0.7, 0.2, 0.1), (0.2, 0.3, 0.5)
    loss = float(consistency_loss(logits(server, client), logits(client, client)))
    assert loss == pytest.approx(kl(server, client) / 2, rel=1e-5)


def test_the_consistency_loss_pulls_the_client_and_leaves_the_server_alone() -> None:
    server_BC = logits((0.7, 0.3)).requires_grad_()
    client_BC = logits((0.4, 0.6)).requires_grad_()
    torch.autograd.backward(consistency_loss(server_BC, client_BC))
    assert server_BC.grad is None
    assert client_BC.grad is not None
    # Of softmax and KL: p_θ − p_θ₀.
    assert client_BC.grad[0].tolist() == pytest.approx([-0.3, 0.3], rel=1e-5)


def test_agreement_costs_nothing_however_sure_it_is() -> None:
    sure_BC = torch.tensor([[200.0, -200.0]])
    assert float(consistency_loss(sure_BC, sure_BC.clone())) == 0.0
    assert math.isfinite(float(consistency_loss(sure_BC, -sure_BC)))
