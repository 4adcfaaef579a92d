"""FedAvg and FedProx with FixMatch or UDA at the clients. B batch, C classes."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from fedil_model.errors import NumericError, SettingError, StateError
from fedil_model.methods import find_method, make_learning
from fedil_model.methods.consistency import (
    Consistency,
    ConsistencySettings,
    annealing_ceiling,
    fixmatch_loss,
    uda_loss,
)
from fedil_model.methods.interface import ClientResult, Method
from fedil_model.training.flat_model import Weights
from fedil_model.training.supervised import labelled_loss
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
}


def method(**changes: Any) -> Method:
    settings = {"threshold": 0.6, **changes.pop("method", {})}
    return make("fedavg_fixmatch", method=settings, **changes)


def logits(*rows: tuple[float, ...]) -> Tensor:
    """Of these probabilities."""
    return torch.tensor(rows).log()


def step_of(result: ClientResult) -> Tensor:
    return result.update["delta.params"]


def test_the_loss_is_a_mean_over_the_whole_batch_of_confident_samples_on_strong_views() -> None:
    weak_BC = logits((0.97, 0.03), (0.1, 0.9), (0.02, 0.98), (0.5, 0.5)).requires_grad_()
    strong_BC = logits((0.5, 0.5), (0.3, 0.7), (0.25, 0.75), (0.2, 0.8)).requires_grad_()
    loss, num_sure = fixmatch_loss(weak_BC, strong_BC, threshold=0.95)
    torch.autograd.backward(loss)
    assert float(loss.detach()) == pytest.approx((-math.log(0.5) - math.log(0.75)) / 4)
    assert int(num_sure) == 2
    assert weak_BC.grad is None
    assert strong_BC.grad is not None
    assert strong_BC.grad.any(dim=1).tolist() == [True, False, True, False]


def test_a_sample_exactly_at_the_threshold_is_confident() -> None:
    _, num_sure = fixmatch_loss(torch.zeros(3, 2), torch.zeros(3, 2), threshold=0.5)
    assert int(num_sure) == 3


def test_a_client_moves_by_its_loss_and_leaves_what_it_received_alone() -> None:
    """Without weight decay only the gradient of the loss can move it."""
    made = method(client={"weight_decay": 0.0})
    broadcast = broadcast_of(made)
    before = copied(broadcast)
    result = activate(made, broadcast)
    assert float(step_of(result).norm()) > 1e-3
    assert result.metrics["loss_pseudo"] > 0.0
    assert 0.0 < result.metrics["sure_share"] < 1.0
    assert same(before, broadcast)
    assert result.state == {}


def test_without_a_confident_sample_nothing_is_learned() -> None:
    made = method(client={"weight_decay": 0.0}, method={"threshold": 1.0})
    result = activate(made, broadcast_of(made))
    assert float(step_of(result).norm()) == 0.0
    assert result.metrics == {"loss_pseudo": 0.0, "sure_share": 0.0}


def test_the_same_task_gives_the_same_bits_in_a_fresh_method_and_another_round_others() -> None:
    broadcast = broadcast_of(method())
    first, second = (activate(method(), broadcast) for _ in range(2))
    assert same(first.update, second.update)
    assert first.metrics == second.metrics
    assert not same(first.update, activate(method(), broadcast, round_number=2).update)
    assert not same(first.update, activate(method(), broadcast, client=1).update)


def test_torchs_global_random_state_is_left_alone() -> None:
    state = torch.random.get_rng_state()
    play(method(), 1)
    assert torch.equal(state, torch.random.get_rng_state())


def test_the_proximal_term_is_mu_times_the_distance_to_what_was_received() -> None:
    """Two steps without any other gradient: the first gives the distance, which the second then shrinks."""
    mu, lr = 3.0, 0.1
    made = method(client=ONE_STEP | {"lr": lr}, method={"proximal": mu, "threshold": 1.0})
    assert isinstance(made, Consistency)
    received = Weights.named(broadcast_of(made), "global")
    made._student.load(received)
    made._student.params.add_(0.5)
    made._student.grads.zero_()
    made._add_proximal_gradient(received)
    assert torch.allclose(made._student.grads, torch.full_like(received.params, mu * 0.5), atol=1e-5)


def test_the_proximal_term_keeps_a_client_closer() -> None:
    broadcast = broadcast_of(method())
    free, held = (step_of(activate(method(method={"proximal": mu}), broadcast)).norm() for mu in (0.0, 3.0))
    assert 0.0 < float(held) < 0.9 * float(free)


@pytest.mark.parametrize("micro_batch", [1, 7, 59])
def test_gradients_of_parts_add_up_to_those_of_the_batch(micro_batch: int) -> None:
    whole, parts = method(client=ONE_STEP), method(client=ONE_STEP)
    parts.micro_batch = micro_batch
    broadcast = broadcast_of(whole)
    a, b = activate(whole, broadcast), activate(parts, broadcast)
    assert float(step_of(a).norm()) > 1e-3
    assert torch.allclose(step_of(a), step_of(b), atol=1e-6)
    assert a.metrics == pytest.approx(b.metrics, abs=1e-5)


def test_the_server_trains_before_the_broadcast_and_its_state_stays() -> None:
    made = method()
    state = made.initial_state(LABELLED)
    before = copied(state)
    step = made.server_step(state, LABELLED, 1)
    assert same(before, step.state)
    moved = step.broadcast["global.params"] - state["global.params"]
    assert step.metrics["server_norm"] == pytest.approx(float(moved.norm()))
    assert step.metrics["loss_server"] > 0.0


def test_a_round_without_updates_keeps_what_the_server_learned() -> None:
    made = method()
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    after = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED).close()
    assert torch.equal(after.state["global.params"], step.broadcast["global.params"])
    assert after.delta_norm == pytest.approx(step.metrics["server_norm"])


@pytest.mark.parametrize("norm", ["none", "gn", "bn", "sbn"])
def test_with_every_norm_a_round_ends_in_a_finite_model_of_both_kinds(norm: str) -> None:
    state, accuracies = play(method(network={"norm": norm}), 2)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in state.values())
    assert accuracies.keys() == {"global", "server"}


def test_batch_norms_variances_are_marked_for_the_fold() -> None:
    made = method(network={"norm": "bn"})
    assert isinstance(made, Consistency)
    assert made._variances().tolist() == ([False] * 16 + [True] * 16) * 2
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    hostile = {name.replace("global", "delta"): -3 * tensor for name, tensor in step.broadcast.items()}
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    assert fold.add(answer(hostile)).detail == "a running variance is negative"


def test_weights_by_samples_and_momentum_are_passed_on_to_the_fold() -> None:
    made = method(method={"weighting": "samples", "server_momentum": 0.5})
    state = made.initial_state(LABELLED)
    step = made.server_step(state, LABELLED, 1)
    one, two = (activate(made, step.broadcast, client=client) for client in (0, 1))
    fold = made.open_fold(state, {1: step.broadcast}, 1, LABELLED)
    fold.add(answer(one.update, num_samples=30))
    fold.add(answer(two.update, num_samples=90, client=1))
    after = fold.close().state
    mean = 0.25 * step_of(one) + 0.75 * step_of(two)
    assert torch.allclose(after["global.params"], step.broadcast["global.params"] + mean, atol=1e-6)
    assert torch.allclose(after["momentum"], mean, atol=1e-6)


def test_it_learns() -> None:
    made = method(client={"lr": 0.05})
    _, accuracies = play(made, 6)
    assert accuracies["global"][-1] > 0.85 > 0.4 > initial_accuracy(made)


def test_divergence_is_an_error_not_an_update() -> None:
    made = method(client={"lr": 1e30, "clip_norm": 0.0})
    with pytest.raises(NumericError, match=r"client 0 diverged: begin anew with a lower client\.lr"):
        activate(made, broadcast_of(made))


def test_a_client_without_samples_is_an_error() -> None:
    made = method()
    with pytest.raises(StateError, match="client 0 has no samples"):
        activate(made, broadcast_of(made), inputs=UNLABELLED[:0])


def test_bfloat16_autocast_trains_with_float32_weights() -> None:
    broadcast = broadcast_of(method())
    a, b = step_of(activate(method(), broadcast)), step_of(activate(method(autocast="bf16"), broadcast))
    assert b.dtype == torch.float32
    assert not torch.equal(a, b)


@pytest.mark.parametrize(
    ("name", "loss", "threshold", "proximal"),
    [
        ("fedavg_fixmatch", "fixmatch", 0.95, 0.0),
        ("fedprox_fixmatch", "fixmatch", 0.95, 0.01),
        ("fedavg_uda", "uda", 0.8, 0.0),
        ("fedprox_uda", "uda", 0.8, 0.01),
    ],
)
def test_four_methods_of_the_same_settings(name: str, loss: str, threshold: float, proximal: float) -> None:
    paper = make_learning({"profile": "paper", "method": {"name": name}})
    assert isinstance(paper.method, ConsistencySettings)
    assert (paper.method.loss, paper.method.threshold, paper.method.proximal) == (loss, threshold, proximal)
    assert (paper.method.temperature, paper.method.annealing) == (0.4, "linear" if loss == "uda" else "off")
    assert (paper.client.epochs, paper.client.batch_size, paper.client.clip_norm) == (5, 10, 1.0)
    other = make_learning({"method": {"name": name, "proximal": 0.5, "loss": "uda"}}).method
    assert isinstance(other, ConsistencySettings)
    assert (other.proximal, other.loss, other.annealing) == (0.5, "uda", "off")


# ---- UDA --------------------------------------------------------------------------------------------------------


def test_udas_loss_is_the_divergence_from_sharpened_predictions_of_confident_samples() -> None:
    weak_BC = logits((0.9, 0.1), (0.7, 0.3), (0.15, 0.85)).requires_grad_()
    strong_BC = logits((0.5, 0.5), (0.3, 0.7), (0.25, 0.75)).requires_grad_()
    loss, num_sure = uda_loss(weak_BC, strong_BC, threshold=0.8, temperature=0.5)
    torch.autograd.backward(loss)
    expected = 0.0
    for weak, strong in (((0.9, 0.1), (0.5, 0.5)), ((0.15, 0.85), (0.25, 0.75))):
        squares = [p * p for p in weak]  # T = 1/2
        target = [square / sum(squares) for square in squares]
        expected += sum(q * math.log(q / p) for q, p in zip(target, strong, strict=True))
    assert float(loss.detach()) == pytest.approx(expected / 3, rel=1e-5)
    assert int(num_sure) == 2
    assert weak_BC.grad is None
    assert strong_BC.grad is not None
    # The gradient of a cross-entropy: (prediction − target) / B.
    assert strong_BC.grad[0].tolist() == pytest.approx(
        [(0.5 - 0.81 / 0.82) / 3, (0.5 - 0.01 / 0.82) / 3], rel=1e-4
    )
    assert strong_BC.grad[1].tolist() == [0.0, 0.0]


def test_udas_loss_is_zero_where_views_agree() -> None:
    same_BC = logits((0.9, 0.1), (0.2, 0.8))
    loss, _ = uda_loss(same_BC, same_BC, threshold=0.5, temperature=1.0)
    assert float(loss) == pytest.approx(0.0, abs=1e-7)


def test_clients_train_with_the_loss_of_the_settings() -> None:
    broadcast = broadcast_of(method())
    made = method(method={"loss": "uda"}, client={"weight_decay": 0.0})
    before, result = copied(broadcast), activate(made, broadcast)
    assert float(step_of(result).norm()) > 1e-3
    assert same(before, broadcast)
    assert not torch.equal(
        step_of(result), step_of(activate(method(client={"weight_decay": 0.0}), broadcast))
    )


@pytest.mark.parametrize(
    ("schedule", "half", "end"),
    [("exp", 0.0820850, 1.0), ("linear", 0.5, 1.0), ("log", 0.9179150, 0.9932621)],
)
def test_the_ceiling_of_training_signal_annealing(schedule: str, half: float, end: float) -> None:
    assert annealing_ceiling(schedule, 15, 30, 10) == pytest.approx(0.9 * half + 0.1, rel=1e-5)
    for last in (30, 31):
        assert annealing_ceiling(schedule, last, 30, 10) == pytest.approx(0.9 * end + 0.1, rel=1e-6)
    assert annealing_ceiling(schedule, 1, 10_000, 4) == pytest.approx(0.25, abs=0.01)


def test_exponential_annealing_stays_below_the_clients_threshold_almost_to_the_end() -> None:
    below = [annealing_ceiling("exp", number, 100, 10) < 0.8 for number in range(1, 101)]
    assert below.count(True) == 94


def test_a_labelled_sample_counts_while_the_probability_of_its_label_is_at_most_the_ceiling() -> None:
    logits_BC = logits((0.9, 0.1), (0.3, 0.7), (0.4, 0.6)).requires_grad_()
    loss = labelled_loss(logits_BC, torch.tensor([0, 0, 1]), ceiling=0.65)
    torch.autograd.backward(loss)
    assert float(loss.detach()) == pytest.approx((-math.log(0.3) - math.log(0.6)) / 2)
    assert logits_BC.grad is not None
    assert logits_BC.grad.any(dim=1).tolist() == [False, True, True]
    assert float(labelled_loss(logits((0.9, 0.1)), torch.tensor([0]), ceiling=0.65)) == 0.0


def test_annealing_leaves_out_labelled_samples_that_are_known_already() -> None:
    """One step on the whole labelled set: the loss is the mean over those below the ceiling."""
    one = ONE_STEP | {"lr": 0.1}
    pretrained = {"pretrain_epochs": 3, "pretrain_lr": 0.1}
    annealed = method(server=one | pretrained, method={"annealing": "exp"}, rounds=10)
    plain = method(server=one | pretrained, rounds=10)
    state = annealed.initial_state(LABELLED)
    last, full = (made.server_step(state, LABELLED, 10) for made in (annealed, plain))
    assert same(last.broadcast, full.broadcast)
    first, full = (made.server_step(state, LABELLED, 6) for made in (annealed, plain))
    assert first.metrics["loss_server"] > full.metrics["loss_server"]
    assert first.metrics["server_norm"] != full.metrics["server_norm"]


@pytest.mark.parametrize("wrong", [{"proximal": -0.1}, {"threshold": 1.5}, {"proxmial": 1.0}])
def test_settings_refuse_what_they_do_not_know(wrong: Mapping[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        make_learning({"method": {"name": "fedavg_fixmatch", **wrong}})
    with pytest.raises(SettingError, match="did you mean fedavg_fixmatch"):
        find_method("fedavg_fixmach")


def test_every_reported_number_is_declared() -> None:
    made = method()
    step = made.server_step(made.initial_state(LABELLED), LABELLED, 1)
    result = activate(made, step.broadcast)
    fold = made.open_fold(step.state, {1: step.broadcast}, 1, LABELLED)
    verdict = fold.add(answered(result))
    folded = fold.close()
    display = find_method("fedavg_fixmatch").display
    assert {*step.metrics, *result.metrics, *folded.metrics} == {series.name for series in display.series()}
    assert verdict.values.keys() == {value.name for value in display.client_values}
    models = made.end_round(folded.state, step.broadcast, LABELLED, 1).models
    assert list(models) == [model.name for model in display.models]
