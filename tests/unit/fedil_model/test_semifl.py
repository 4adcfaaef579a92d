"""SemiFL: pseudo-labels of the received model, mixed samples, and training on labels after the average."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional

from fedil_model.data.augment import TensorViews
from fedil_model.data.datasets.interface import Samples
from fedil_model.errors import NumericError
from fedil_model.methods import find_method, make_learning
from fedil_model.methods.interface import ClientResult, State
from fedil_model.methods.semifl import SemiFL, SemiFLSettings, mix_loss
from fedil_model.training.evaluate import accuracy
from fedil_model.training.flat_model import FlatModel, Weights
from tests.unit.fedil_model.steps import (
    LABELLED,
    UNLABELLED,
    activate,
    answer,
    answered,
    cloud,
    copied,
    initial_accuracy,
    make,
    play,
    same,
)

ONE_STEP = {
    "epochs": 1,
    "batch_size": 64,
    "lr": 0.1,
    "lr_schedule": "constant",
    "clip_norm": 0.0,
    "momentum": 0.0,
    "nesterov": False,
    "weight_decay": 0.0,
}


def method(**changes: Any) -> SemiFL:
    settings = {"threshold": 0.6, **changes.pop("method", {})}
    made = make("semifl", profile="paper", method=settings, **changes)
    assert isinstance(made, SemiFL)
    return made


def begun(made: SemiFL) -> State:
    """After a first round, in which nobody is confident, the model has learned from labels."""
    state = made.initial_state(LABELLED)
    step = made.server_step(state, LABELLED, 1)
    return made.end_round(state, step.broadcast, LABELLED, 1).state


def client(made: SemiFL, state: State | None = None, **options: Any) -> ClientResult:
    broadcast = made.server_step(begun(made) if state is None else state, LABELLED, 2).broadcast
    return activate(made, broadcast, **({"round_number": 2} | options))


def test_the_loss_of_mixed_samples_weighs_both_labels_by_their_shares() -> None:
    logits_BC = torch.tensor([[0.5, 0.5], [0.2, 0.8]]).log()
    loss = mix_loss(logits_BC, torch.tensor([0, 1]), torch.tensor([1, 0]), share=0.3)
    first, second = -(math.log(0.5) + math.log(0.8)) / 2, -(math.log(0.5) + math.log(0.2)) / 2
    assert float(loss) == pytest.approx(0.3 * first + 0.7 * second)


class Recorder(torch.nn.Module):
    """A linear network that remembers its inputs while it trains."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network, self.seen = network, list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.append(x.detach().clone())
        logits: Tensor = self.network(x)
        return logits


class PlainViews(TensorViews):
    """Views without randomness; the strong one is negative."""

    def weak(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        return self.plain(raw)

    def strong(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        return -self.plain(raw)


@pytest.mark.parametrize("norm", ["gn", "sbn"])
def test_one_step_is_that_of_the_papers_loss(norm: str) -> None:
    """L = CE(A(x_f), ŷ_f) + λ·CE(x_mix, ŷ_f) + (1 − λ)·CE(x_mix, ŷ_r), with x_mix = λ·α(x_f) + (1 − λ)·α(x_r), each
    cross-entropy with batch statistics of its own."""
    made = method(client=ONE_STEP, network={"norm": norm})
    made._views = PlainViews()
    state = begun(made)
    recorder = Recorder(made._student.module)
    made._student.module = recorder
    result = client(made, state)
    strong_B, mixed_B = recorder.seen

    model = made._network()
    model.load(Weights.named(state, "global"))
    inputs_N = UNLABELLED
    with torch.no_grad():
        confidence_N, labels_N = model.module.eval()(inputs_N).softmax(1).max(1)
    share = float(np.random.default_rng(made._seed("mix", 2, 0)).beta(0.75, 0.75))
    sure_B = torch.stack([(inputs_N == -row).all(1).nonzero()[0, 0] for row in strong_B])
    assert sorted(sure_B.tolist()) == (confidence_N >= 0.6).nonzero()[:, 0].tolist()
    others = (mixed_B - share * inputs_N[sure_B]) / (1 - share)
    any_B = torch.cdist(others, inputs_N).argmin(1)
    assert torch.allclose(others, inputs_N[any_B], atol=1e-3)
    assert len(set(any_B.tolist()) - set(sure_B.tolist())) > 0, "any sample may be mixed in, confident or not"

    model.module.train()
    model.grads.zero_()
    logits_strong_BC, logits_BC = model.module(strong_B), model.module(mixed_B)
    fix = functional.cross_entropy(logits_strong_BC, labels_N[sure_B])
    one, two = (functional.cross_entropy(logits_BC, labels_N[each]) for each in (sure_B, any_B))
    mix = share * one + (1 - share) * two
    torch.autograd.backward(fix + mix)
    assert torch.allclose(result.update["delta.params"], -0.1 * model.grads, atol=1e-6)
    assert result.metrics["loss_fix"] == pytest.approx(float(fix.detach()), rel=1e-5)
    assert result.metrics["loss_mix"] == pytest.approx(float(mix.detach()), rel=1e-5)
    assert result.metrics["sure_share"] == len(sure_B) / 60


def test_a_client_moves_and_leaves_what_it_received_alone() -> None:
    made = method(client={"weight_decay": 0.0})
    broadcast = made.server_step(begun(made), LABELLED, 2).broadcast
    before = copied(broadcast)
    result = activate(made, broadcast)
    assert float(result.update["delta.params"].norm()) > 1e-3
    assert same(before, broadcast)
    assert result.state == {}
    assert 0 < result.num_steps <= 2 * 4


def test_only_confident_samples_make_steps() -> None:
    result = client(method())
    num_sure = round(result.metrics["sure_share"] * len(UNLABELLED))
    assert 0 < num_sure < len(UNLABELLED)
    assert result.num_steps in (2 * -(-num_sure // 16), 2 * (num_sure // 16))


def test_a_client_without_a_confident_sample_sends_nothing_and_does_not_count() -> None:
    made = method(method={"threshold": 1.0})
    state = made.initial_state(LABELLED)
    result = client(made, state)
    assert (result.update, result.num_steps, result.metrics) == ({}, 0, {"sure_share": 0.0})
    broadcast = made.server_step(state, LABELLED, 1).broadcast
    fold = made.open_fold(state, {1: broadcast}, 1, LABELLED)
    verdict = fold.add(answered(result))
    assert (verdict.outcome, verdict.counts) == ("nothing_confident", False)
    after = fold.close()
    assert same(after.state, state)
    assert after.delta_norm == 0.0


def test_an_empty_update_that_claims_steps_is_invalid() -> None:
    made = method()
    state = made.initial_state(LABELLED)
    fold = made.open_fold(state, {1: made.server_step(state, LABELLED, 1).broadcast}, 1, LABELLED)
    assert fold.add(answer({}, num_steps=3)).outcome == "invalid"


def test_the_same_task_gives_the_same_bits_in_a_fresh_method_and_another_client_others() -> None:
    state = begun(method())
    first, second = (client(method(), state) for _ in range(2))
    assert same(first.update, second.update)
    assert first.metrics == second.metrics
    assert not same(first.update, client(method(), state, client=1).update)
    assert not same(first.update, client(method(), state, round_number=3).update)


def test_torchs_and_numpys_global_random_states_are_left_alone() -> None:
    torchs, numpys = torch.random.get_rng_state(), str(np.random.get_state())
    play(method(), 2)
    assert torch.equal(torchs, torch.random.get_rng_state())
    assert numpys == str(np.random.get_state())


@pytest.mark.parametrize("micro_batch", [1, 7, 40])
def test_gradients_of_parts_add_up_to_those_of_the_batch(micro_batch: int) -> None:
    whole, parts = (method(client=ONE_STEP, network={"norm": "gn"}) for _ in range(2))
    parts.micro_batch = micro_batch
    state = begun(whole)
    a, b = client(whole, state), client(parts, state)
    assert float(a.update["delta.params"].norm()) > 1e-3
    assert torch.allclose(a.update["delta.params"], b.update["delta.params"], atol=1e-6)
    assert a.metrics == pytest.approx(b.metrics, abs=1e-5)


def test_the_model_that_ships_is_trained_on_labels_after_the_average() -> None:
    made = method(network={"norm": "sbn"})
    state = begun(made)
    step = made.server_step(state, LABELLED, 2)
    fold = made.open_fold(step.state, {2: step.broadcast}, 2, LABELLED)
    assert fold.add(answered(activate(made, step.broadcast), 2)).counts
    folded = fold.close()
    average = copied(folded.state)
    end = made.end_round(folded.state, step.broadcast, LABELLED, 2)
    assert torch.equal(end.models["aggregate"].params, average["global.params"])
    assert torch.equal(end.state["global.params"], end.models["global"].params)
    assert torch.equal(end.state["global.buffers"], end.models["global"].buffers)
    assert not torch.equal(end.models["global"].params, average["global.params"])
    assert same(average, folded.state)
    assert end.metrics["loss_server"] > 0.0
    moved = end.models["global"].params - step.broadcast["global.params"]
    assert end.delta_norm == pytest.approx(float(moved.norm()), rel=1e-5)


def statistics_of(made: SemiFL, weights: Weights) -> Tensor:
    """Of the network with these weights, from the labelled samples."""
    model: FlatModel = made._network()
    model.load(weights)
    made._student = model
    made._refresh(LABELLED)
    return model.buffers()


def test_static_statistics_are_those_of_the_servers_labelled_samples() -> None:
    state, _ = play(method(network={"norm": "sbn"}), 2)
    weights = Weights.named(state, "global")
    assert torch.equal(weights.buffers, statistics_of(method(network={"norm": "sbn"}), weights))


def test_every_labelled_sample_counts_in_static_statistics_and_a_last_one_is_not_alone() -> None:
    """501 samples: in parts of 500 and 1 the last would count as much as all others, and have no variance."""
    made, many = method(network={"norm": "sbn"}), cloud(501, 5)
    weights = Weights.named(made.initial_state(many), "global")
    model = made._network()
    model.load(weights)
    first = next(module for module in model.module.modules() if isinstance(module, torch.nn.Linear))
    with torch.no_grad():
        expected = first(many.inputs).mean(0)
    assert torch.allclose(weights.buffers[: len(expected)], expected, atol=2e-2)


def test_momentum_carries_half_of_the_last_step_on() -> None:
    made = method()
    state = begun(made)
    broadcast = made.server_step(state, LABELLED, 2).broadcast
    step = torch.full_like(state["global.params"], 0.01)
    update = Weights(step, state["global.buffers"] * 0).tensors("delta")
    for expected in (0.01, 0.015, 0.0175):
        fold = made.open_fold(state, {2: broadcast}, 2, LABELLED)
        fold.add(answer(update, base_version=2))
        after = fold.close().state
        moved = after["global.params"] - broadcast["global.params"]
        assert torch.allclose(moved, torch.full_like(moved, expected), atol=1e-6)
        state = {**state, "momentum": after["momentum"]}


@pytest.mark.parametrize("norm", ["none", "gn", "bn", "sbn"])
def test_with_every_norm_a_round_ends_in_a_finite_model_of_both_kinds(norm: str) -> None:
    state, accuracies = play(method(network={"norm": norm}), 2)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in state.values())
    assert accuracies.keys() == {"global", "aggregate"}


def test_it_learns() -> None:
    made = method(method={"threshold": 0.95})
    _, accuracies = play(made, 6)
    assert accuracies["global"][-1] > 0.85 > 0.4 > initial_accuracy(made)
    assert accuracies["aggregate"][-1] > 0.85


def test_clients_learn_what_the_labels_alone_do_not_show() -> None:
    """Two labels of each class, and labels that a model of these has for the clients' samples."""
    few = Samples(LABELLED.inputs[:8], LABELLED.labels[:8])
    made = method(method={"threshold": 0.8}, client={"epochs": 5})
    state = made.initial_state(few)
    found = []
    for number in range(1, 9):
        step = made.server_step(state, few, number)
        fold = made.open_fold(step.state, {number: step.broadcast}, number, LABELLED)
        for each in range(3):
            inputs = cloud(60, 10 + each).inputs
            result = activate(made, step.broadcast, inputs=inputs, round_number=number, client=each)
            fold.add(answered(result, number, each))
        end = made.end_round(fold.close().state, step.broadcast, few, number)
        state = end.state
        model = made._network()
        model.load(end.models["global"])
        found.append(accuracy(model.module, cloud(400, 98), TensorViews()))
    alone = method()
    alone_state = alone.initial_state(few)
    for number in range(1, 9):
        step = alone.server_step(alone_state, few, number)
        alone_state = alone.end_round(alone_state, step.broadcast, few, number).state
    model = alone._network()
    model.load(Weights.named(alone_state, "global"))
    assert found[-1] > accuracy(model.module, cloud(400, 98), TensorViews())


def test_divergence_is_an_error_not_an_update() -> None:
    state = begun(method())
    with pytest.raises(NumericError, match=r"client 0 diverged: begin anew with a lower client\.lr"):
        client(method(client={"lr": 1e30, "clip_norm": 0.0}), state)


def test_the_default_profile_is_the_papers_with_training_before_round_1() -> None:
    paper, default = (
        make_learning({"method": {"name": "semifl"}, **profile}) for profile in ({"profile": "paper"}, {})
    )
    assert (paper.server.pretrain_epochs, default.server.pretrain_epochs) == (0, 50)
    assert default.model_copy(update={"server": paper.server, "profile": "paper"}) == paper
    assert paper.network.norm == "sbn"
    assert isinstance(paper.method, SemiFLSettings)
    assert (paper.method.threshold, paper.method.mixup, paper.method.server_momentum) == (0.95, 0.75, 0.5)
    for optimiser in (paper.client, paper.server):
        assert (optimiser.epochs, optimiser.batch_size, optimiser.lr) == (5, 10, 0.03)
        assert (optimiser.clip_norm, optimiser.lr_schedule) == (1.0, "cosine")


@pytest.mark.parametrize("wrong", [{"mixup": 0.0}, {"server_momentum": 1.0}, {"tau": 0.9}])
def test_settings_refuse_what_they_do_not_know(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        make_learning({"method": {"name": "semifl", **wrong}})


def test_every_reported_number_is_declared() -> None:
    made = method()
    step = made.server_step(begun(made), LABELLED, 2)
    result = activate(made, step.broadcast, round_number=2)
    fold = made.open_fold(step.state, {2: step.broadcast}, 2, LABELLED)
    verdict = fold.add(answered(result, 2))
    folded = fold.close()
    end = made.end_round(folded.state, step.broadcast, LABELLED, 2)
    display = find_method("semifl").display
    reported = {*step.metrics, *result.metrics, *folded.metrics, *end.metrics}
    assert reported == {series.name for series in display.series()}
    assert verdict.values.keys() == {value.name for value in display.client_values}
    assert list(end.models) == [model.name for model in display.models]
    assert [outcome.name for outcome in display.outcomes] == ["nothing_confident"]
