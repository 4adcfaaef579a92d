"""FlatSGD against torch.optim.SGD, and decay_factor against training without gradients."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from fedil_model.settings import OptimiserSettings
from fedil_model.training.flat_model import FlatModel
from fedil_model.training.optimiser import FlatSGD, decay_factor, learning_rate

LR = 0.1


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))


def settings_of(**knobs: Any) -> OptimiserSettings:
    return OptimiserSettings(
        **{"momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "clip_norm": 0.0, **knobs}
    )


COMBINATIONS = [
    {"momentum": momentum, "nesterov": nesterov, "weight_decay": decay, "clip_norm": clip}
    for (momentum, nesterov), decay, clip in itertools.product(
        [(0.0, False), (0.9, False), (0.9, True)], [0.0, 0.05], [0.0, 0.5]
    )
]


@pytest.mark.parametrize("knobs", COMBINATIONS, ids=str)
def test_flat_sgd_takes_the_steps_of_torch_sgd(knobs: dict[str, Any]) -> None:
    ours, theirs = network(), network()
    model = FlatModel(ours)
    optimiser = FlatSGD(model, settings_of(**knobs), LR)
    matrices = [p for p in theirs.parameters() if p.ndim > 1]
    others = [p for p in theirs.parameters() if p.ndim <= 1]
    reference = torch.optim.SGD(
        [
            {"params": matrices, "weight_decay": knobs["weight_decay"]},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=LR,
        momentum=knobs["momentum"],
        nesterov=knobs["nesterov"],
    )
    generator = torch.Generator().manual_seed(1)
    clipped = 0
    for _ in range(12):
        x, y = torch.randn(16, 6, generator=generator), torch.randn(16, 3, generator=generator) * 3
        optimiser.zero_grad()
        torch.autograd.backward(nn.functional.mse_loss(ours(x), y))
        optimiser.step()
        reference.zero_grad()
        torch.autograd.backward(nn.functional.mse_loss(theirs(x), y))
        if knobs["clip_norm"]:
            clipped += bool(
                nn.utils.clip_grad_norm_(theirs.parameters(), knobs["clip_norm"]) > knobs["clip_norm"]
            )
        reference.step()
    assert optimiser.num_steps == 12
    assert clipped > 0 or not knobs["clip_norm"]
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=2e-6, atol=2e-7)


def test_gradients_below_the_clip_are_left_alone() -> None:
    models = [FlatModel(network()) for _ in range(2)]
    for model, clip in zip(models, (0.0, 5.0), strict=True):
        model.grads.fill_(0.01)
        FlatSGD(model, settings_of(clip_norm=clip), LR).step()
    assert torch.equal(models[0].params, models[1].params)


def test_gradients_are_zeroed_in_place_so_that_they_stay_views() -> None:
    model = FlatModel(network())
    optimiser = FlatSGD(model, settings_of(), LR)
    model.module(torch.ones(2, 6)).sum().backward()
    assert model.grads.any()
    optimiser.zero_grad()
    assert not model.grads.any()
    model.module(torch.ones(2, 6)).sum().backward()
    assert model.grads.any()


@pytest.mark.parametrize("num_steps", [0, 1, 2, 40])
@pytest.mark.parametrize("knobs", [k for k in COMBINATIONS if k["weight_decay"]], ids=str)
def test_the_decay_factor_is_what_steps_without_gradients_leave(
    knobs: dict[str, Any], num_steps: int
) -> None:
    settings = settings_of(**knobs)
    model = FlatModel(network())
    start = model.params.clone()
    optimiser = FlatSGD(model, settings, LR)
    for _ in range(num_steps):
        optimiser.zero_grad()
        optimiser.step()
    factor = decay_factor(settings, LR, num_steps)
    assert (factor < 1.0) == (num_steps > 0)
    decayed = model.num_decayed
    torch.testing.assert_close(model.params[:decayed], factor * start[:decayed], rtol=1e-5, atol=1e-8)
    assert torch.equal(model.params[decayed:], start[decayed:])


@pytest.mark.parametrize("knobs", [k for k in COMBINATIONS if k["weight_decay"]], ids=str)
def test_a_trained_weight_is_its_decayed_start_and_what_the_gradients_added(knobs: dict[str, Any]) -> None:
    """The gradients being given, the part that they add does not depend on where the weights started."""
    settings, num_steps = settings_of(**knobs), 20
    moves = []
    for seed in (0, 1):
        model = FlatModel(network(seed))
        start = model.params.clone()
        optimiser = FlatSGD(model, settings, LR)
        generator = torch.Generator().manual_seed(5)
        for _ in range(num_steps):
            model.grads.copy_(torch.randn(model.grads.shape, generator=generator))
            optimiser.step()
        decayed = model.num_decayed
        moves.append(model.params[:decayed] - decay_factor(settings, LR, num_steps) * start[:decayed])
    torch.testing.assert_close(moves[0], moves[1], rtol=1e-4, atol=1e-5)


def test_without_decay_the_factor_is_one() -> None:
    assert decay_factor(settings_of(momentum=0.9, nesterov=True), LR, 100) == 1.0


def test_plain_decay_is_the_textbook_power() -> None:
    assert decay_factor(settings_of(weight_decay=5e-4), 0.03, 250) == pytest.approx(
        (1 - 0.03 * 5e-4) ** 250, rel=1e-12
    )


def test_a_constant_learning_rate_is_constant() -> None:
    settings = settings_of(lr=0.03, lr_schedule="constant")
    assert {learning_rate(settings, r, 10) for r in (1, 5, 10, 99)} == {0.03}


def test_a_cosine_learning_rate_falls_from_lr_to_its_floor() -> None:
    settings = settings_of(lr=0.2, lr_schedule="cosine", lr_floor=0.1)
    rates = [learning_rate(settings, r, 10) for r in range(1, 13)]
    assert rates[0] == 0.2
    assert rates[5] == pytest.approx(0.2 * 0.55)
    assert rates[:11] == sorted(set(rates), reverse=True)
    # A run that is continued beyond its rounds stays at the floor.
    assert rates[10] == rates[11] == pytest.approx(0.02)


def test_a_strangers_number_of_steps_costs_no_time() -> None:
    settings = OptimiserSettings(weight_decay=5e-4)
    assert decay_factor(settings, 0.03, 2**62) == pytest.approx(0.0, abs=1e-9)
    assert decay_factor(settings, 0.03, 0) == 1.0
