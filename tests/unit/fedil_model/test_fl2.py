"""(FL)²: thresholds of a client's own, training against sharp minima, weights by learning status."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from fedil_model.methods import find_method, make_learning
from fedil_model.methods.fl2 import FL2, FL2Settings, adaptive_thresholds, ascent_step
from fedil_model.methods.interface import Folded
from fedil_model.methods.semifl import NOTHING_CONFIDENT
from fedil_model.training.flat_model import Weights
from tests.unit.fedil_model.steps import (
    LABELLED,
    UNLABELLED,
    activate,
    answer,
    answered,
    broadcast_of,
    copied,
    initial_accuracy,
    make,
    play,
    same,
)

ONE_STEP = {
    "epochs": 1,
    "batch_size": 64,
    "clip_norm": 0.0,
    "momentum": 0.0,
    "nesterov": False,
    "weight_decay": 0.0,
    "lr": 1.0,
}


def method(**changes: Any) -> FL2:
    changes["server"] = {"pretrain_epochs": 5, **changes.get("server", {})}
    made = make("fl2", **changes)
    assert isinstance(made, FL2)
    return made


# ---- formulas -------------------------------------------------------------------------------------------------------


def test_thresholds_are_the_mean_confidence_scaled_by_how_often_a_class_is_expected() -> None:
    probabilities_NC = torch.tensor([[0.9, 0.1, 0.0], [0.5, 0.3, 0.2], [0.1, 0.7, 0.2]])
    confidence, thresholds_C = adaptive_thresholds(probabilities_NC)
    assert float(confidence) == pytest.approx(0.7)
    # Expected classes: 0.5, 1.1/3, 0.4/3, of which the first is the largest.
    assert thresholds_C.tolist() == pytest.approx([0.7, 0.7 * 2.2 / 3, 0.7 * 0.8 / 3])


def test_the_ascent_step_is_that_of_adaptive_sam() -> None:
    """The last of the parameters is a bias, which is not scaled."""
    params_P, grads_P = torch.tensor([1.0, -2.0, 0.0, 4.0]), torch.tensor([0.3, 0.4, -5.0, 0.5])
    scales = [1.01, 2.01, 0.01, 1.0]
    scaled = [s * g for s, g in zip(scales, grads_P.tolist(), strict=True)]
    length = sum(x * x for x in scaled) ** 0.5
    step_P = ascent_step(params_P, grads_P, 3, radius=0.1)
    expected = [0.1 * s * x / length for s, x in zip(scales, scaled, strict=True)]
    assert step_P.tolist() == pytest.approx(expected, rel=1e-5)
    assert params_P.tolist() == [1.0, -2.0, 0.0, 4.0]
    assert ascent_step(params_P, torch.zeros(4), 3, 0.1).tolist() == [0.0] * 4


def loaded(made: FL2) -> Weights:
    received = Weights.named(broadcast_of(made), "global")
    made._student.load(received)
    made._student.module.train()
    made._student.grads.zero_()
    return received


def test_the_gradient_is_that_of_the_chosen_samples_and_that_of_the_divergence_after_the_ascent() -> None:
    """Against torch's own gradients of a network with the same weights."""
    made = method(method={"radius": 0.5})
    received = loaded(made)
    inputs_B, labels_B = LABELLED.inputs, LABELLED.labels
    sure_B = torch.arange(20) % 3 == 0
    losses = made._learn(inputs_B, labels_B, sure_B)
    assert torch.equal(made._student.params, received.params)  # the ascent is undone, to the bit
    other = made._network()

    def gradient(params_P: torch.Tensor, loss: Any) -> tuple[torch.Tensor, torch.Tensor]:
        other.load(Weights(params_P, received.buffers))
        other.module.train()
        other.grads.zero_()
        value = loss(other.module(inputs_B))
        value.backward()
        return value.detach(), other.grads.clone()

    fix, g_fix = gradient(received.params, lambda logits: functional.cross_entropy(logits, labels_B))
    _, g_sure = gradient(
        received.params, lambda logits: functional.cross_entropy(logits[sure_B], labels_B[sure_B])
    )
    targets_BC = other.module(inputs_B).detach().softmax(1)
    is_weight = [p.ndim > 1 for p in other._parameters for _ in range(p.numel())]
    scale_P = torch.where(torch.tensor(is_weight), received.params.abs() + 0.01, 1.0)
    there_P = received.params + 0.5 * scale_P**2 * g_sure / (scale_P * g_sure).norm()

    def divergence(logits_BC: torch.Tensor) -> torch.Tensor:
        gap_BC = targets_BC.log() - logits_BC.log_softmax(1)
        return torch.sum((targets_BC * gap_BC).sum(1)[sure_B]) / len(sure_B)

    sharpness, g_sharpness = gradient(there_P, divergence)
    assert float(sharpness) > 1e-3
    assert losses.tolist() == pytest.approx([float(fix), float(sharpness)], rel=1e-3)
    assert torch.allclose(made._student.grads, g_fix + g_sharpness, atol=1e-4)
    assert float(g_sharpness.norm()) > 0.05 * float(g_fix.norm())


@pytest.mark.parametrize("micro_batch", [1, 7])
def test_gradients_of_parts_add_up_to_those_of_the_batch(micro_batch: int) -> None:
    whole, parts = method(client=ONE_STEP | {"lr": 0.1}), method(client=ONE_STEP | {"lr": 0.1})
    parts.micro_batch = micro_batch
    broadcast = broadcast_of(whole)
    a, b = activate(whole, broadcast), activate(parts, broadcast)
    assert float(a.update["delta.params"].norm()) > 1e-3
    assert torch.allclose(a.update["delta.params"], b.update["delta.params"], atol=1e-5)
    assert a.metrics == pytest.approx(b.metrics, abs=1e-4)


# ---- clients --------------------------------------------------------------------------------------------------------


def test_a_client_moves_and_leaves_what_it_received_alone() -> None:
    made = method(client={"weight_decay": 0.0})
    broadcast = broadcast_of(made)
    before = copied(broadcast)
    result = activate(made, broadcast)
    assert float(result.update["delta.params"].norm()) > 1e-3
    assert 0.0 < result.metrics["sure_share"] < 1.0
    assert 0.25 < result.metrics["confidence"] < 1.0
    assert result.metrics["loss_sharpness"] > 0.0
    assert same(before, broadcast)
    assert same(result.update, activate(method(client={"weight_decay": 0.0}), broadcast).update)


def test_samples_are_chosen_by_the_received_model_above_the_threshold_of_their_class() -> None:
    made = method()
    broadcast = broadcast_of(made)
    result = activate(made, broadcast)
    received = Weights.named(broadcast, "global")
    made._student.load(received)
    seed = made._seed("client", 1, 0)
    probabilities_NC = made._predict(UNLABELLED, torch.Generator().manual_seed(seed)).double()
    confidence = float(probabilities_NC.max(1).values.mean())
    expected = [float(probabilities_NC[:, c].mean()) for c in range(4)]
    chosen = 0
    for row in probabilities_NC.tolist():
        label = row.index(max(row))
        chosen += max(row) > confidence * expected[label] / max(expected)
    assert result.metrics["sure_share"] == pytest.approx(chosen / len(UNLABELLED))
    assert result.metrics["confidence"] == pytest.approx(confidence, rel=1e-5)


def test_without_sure_samples_or_without_its_weight_there_is_no_ascent() -> None:
    broadcast = broadcast_of(method())
    unsure, off = (
        activate(method(method=settings), broadcast)
        for settings in ({"sure": 1.0}, {"weight_sharpness": 0.0})
    )
    assert unsure.metrics["loss_sharpness"] == off.metrics["loss_sharpness"] == 0.0
    assert torch.allclose(unsure.update["delta.params"], off.update["delta.params"], atol=1e-6)
    assert not same(off.update, activate(method(), broadcast).update)


def test_equal_predictions_choose_nothing_and_the_client_does_not_train() -> None:
    """A network of zeros predicts 1/C for every class, which is not above the threshold."""
    made = method()
    broadcast = {name: torch.zeros_like(tensor) for name, tensor in broadcast_of(made).items()}
    result = activate(made, broadcast)
    assert (result.update, result.num_steps) == ({}, 0)
    assert result.metrics == pytest.approx({"sure_share": 0.0, "confidence": 0.25})


@pytest.mark.parametrize("norm", ["gn", "bn", "sbn"])
def test_a_batch_of_one_sample_trains(norm: str) -> None:
    made = method(network={"norm": norm})
    loaded(made)
    losses = made._learn(LABELLED.inputs[:1], LABELLED.labels[:1], torch.tensor([True]))
    assert bool(torch.isfinite(losses).all())
    assert bool(torch.isfinite(made._student.grads).all())


# ---- the fold -------------------------------------------------------------------------------------------------------


def folded(made: FL2, confidences: list[float | None]) -> tuple[Folded, torch.Tensor]:
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    for client, confidence in enumerate(confidences):
        delta = {
            "delta.params": torch.full_like(step.broadcast["global.params"], 0.1 * client),
            "delta.buffers": torch.zeros_like(step.broadcast["global.buffers"]),
        }
        metrics = {} if confidence is None else {"confidence": confidence}
        assert fold.add(answer(delta, client=client, metrics=metrics)).counts
    return fold.close(), step.broadcast["global.params"]


@pytest.mark.parametrize(
    ("confidences", "share"),
    [
        ([0.9, 0.6], 0.4 / 0.5),
        ([0.9, -1e30], 0.75 / 0.85),  # held to 1/C
        ([0.5, 7.0], 0.0),  # held to 1
        ([0.5, None], 0.0),
    ],
)
def test_an_update_counts_by_what_its_client_is_unsure_of(
    confidences: list[float | None], share: float
) -> None:
    """Client 0 does not move, so that the mean tells the weight of client 1."""
    after, start_P = folded(method(), confidences)
    moved_P = after.state["global.params"] - start_P
    assert torch.allclose(moved_P, torch.full_like(moved_P, 0.1 * share), atol=1e-5)


def test_updates_may_count_the_same() -> None:
    after, start_P = folded(method(method={"weighting": "uniform"}), [0.9, 0.3])
    moved_P = after.state["global.params"] - start_P
    assert torch.allclose(moved_P, torch.full_like(moved_P, 0.05), atol=1e-6)


def test_a_client_that_did_not_train_has_no_part_in_the_mean() -> None:
    made = method()
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    verdict = fold.add(answer({}, num_steps=0))
    assert (verdict.outcome, verdict.counts) == (NOTHING_CONFIDENT, False)


# ---- the whole ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["gn", "bn", "sbn"])
def test_it_learns(norm: str) -> None:
    made = method(network={"norm": norm}, client={"lr": 0.03})
    _, accuracies = play(made, 4)
    assert accuracies["global"][-1] > 0.8 > 0.4 > initial_accuracy(made)


def test_the_papers_settings_are_the_default() -> None:
    paper = make_learning({"method": {"name": "fl2"}})
    settings = paper.method
    assert isinstance(settings, FL2Settings)
    assert (settings.sure, settings.radius, settings.server_momentum) == (0.95, 0.1, 0.5)
    assert (paper.profile, paper.network.norm, paper.client.batch_size) == ("paper", "sbn", 32)
    assert (paper.server.batch_size, paper.server.pretrain_epochs) == (10, 50)


def test_every_reported_number_is_declared() -> None:
    made = method()
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    result = activate(made, step.broadcast)
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    verdict = fold.add(answered(result))
    closed = fold.close()
    end = made.end_round(closed.state, step.broadcast, LABELLED, 1)
    display = find_method("fl2").display
    reported = {*step.metrics, *result.metrics, *closed.metrics, *end.metrics}
    assert reported == {series.name for series in display.series()}
    assert verdict.values.keys() == {value.name for value in display.client_values}
    assert list(end.models) == [model.name for model in display.models]
