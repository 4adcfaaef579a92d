"""Linear probe and fine-tuning of a model on the labelled samples, before its predictions count."""

from typing import Literal, get_args

import pytest
import torch
from torch import Tensor, nn

from fedil_model.data.augment import TensorViews
from fedil_model.errors import NetworkError
from fedil_model.methods import make_learning
from fedil_model.networks import build_network, features_of, refresh_statistics
from fedil_model.settings import NetworkSettings
from fedil_model.training import fitting
from fedil_model.training.evaluate import accuracy, evaluating
from fedil_model.training.fitting import FitKind, fit_model
from fedil_model.training.flat_model import FlatModel, Weights
from tests.unit.fedil_model.steps import cloud

Norm = Literal["none", "bn", "sbn", "gn"]
LEARNING = make_learning({"server": {"batch_size": 10}})
LABELLED = cloud(100, 1)
KINDS: list[FitKind] = ["linear_probe", "fine_tune"]


@pytest.fixture(autouse=True)
def few_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "TUNE_EPOCHS", 20)


def network(norm: Norm = "gn") -> nn.Module:
    return build_network(NetworkSettings(name="mlp", width=16, norm=norm), (8,), 4, seed=3)


def fitted(kind: FitKind, model: FlatModel, weights: Weights, seed: int = 5) -> Weights:
    return fit_model(kind, model, weights, LABELLED, TensorViews(), LEARNING, seed)


def accuracy_of(model: FlatModel, weights: Weights) -> float:
    with model.temporarily_loaded():
        model.load(weights)
        return accuracy(model.module, cloud(400, 9), TensorViews())


@pytest.mark.parametrize("norm", ["none", "bn", "sbn", "gn"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_random_network_learns_the_labels(kind: FitKind, norm: Norm) -> None:
    model = FlatModel(network(norm))
    start = model.weights()
    before = start.clone()
    after = fitted(kind, model, start)
    assert accuracy_of(model, after) > max(0.7, accuracy_of(model, start))
    assert torch.equal(start.params, before.params)
    assert torch.equal(start.buffers, before.buffers)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_weights_and_seed_give_the_same_bits_and_no_global_state_is_drawn(kind: FitKind) -> None:
    weights = FlatModel(network()).weights()
    state = torch.random.get_rng_state()
    first, second = (fitted(kind, FlatModel(network()), weights) for _ in range(2))
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(first.params, second.params)
    used = FlatModel(network())
    fitted(kind, used, Weights(weights.params * 2, weights.buffers))
    assert torch.equal(fitted(kind, used, weights).params, first.params), (
        "what was fitted before has no effect"
    )


def test_fine_tuning_draws_batches_and_views_from_its_seed() -> None:
    model = FlatModel(network())
    weights = model.weights()
    assert not torch.equal(
        fitted("fine_tune", model, weights, 1).params, fitted("fine_tune", model, weights, 2).params
    )


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_a_probe_changes_nothing_but_the_last_layer(norm: Norm) -> None:
    model = FlatModel(network(norm))
    weights = model.weights()
    after = fitted("linear_probe", model, weights)
    model.load(after)
    embed, head = features_of(model.module)
    reference = network(norm)
    state = {name: tensor for name, tensor in model.module.state_dict().items() if not name.startswith("fc.")}
    assert all(torch.equal(tensor, reference.state_dict()[name]) for name, tensor in state.items())
    with evaluating(model.module):
        features_NF = embed(LABELLED.inputs)
    loss = nn.functional.cross_entropy(head(features_NF), LABELLED.labels)
    torch.autograd.backward(loss + fitting.PROBE_DECAY * head.weight.square().sum())
    assert head.weight.grad is not None
    assert float(head.weight.grad.norm()) < 1e-2, "it is at its optimum"


def test_fine_tuning_changes_the_whole_network() -> None:
    model = FlatModel(network())
    weights = model.weights()
    model.load(fitted("fine_tune", model, weights))
    reference = network().state_dict()
    for name, tensor in model.module.state_dict().items():
        assert not torch.equal(tensor, reference[name]), name


def test_static_statistics_belong_to_the_tuned_weights() -> None:
    model = FlatModel(network("sbn"))
    weights = model.weights()
    after = fitted("fine_tune", model, weights)
    assert not torch.allclose(after.buffers, weights.buffers)
    again = FlatModel(network("sbn"))
    again.load(Weights(after.params, weights.buffers))
    refresh_statistics(again.module, LABELLED.inputs, TensorViews().plain)
    assert torch.equal(again.buffers(), after.buffers)


def test_a_model_without_a_fit_is_the_model_itself() -> None:
    model = FlatModel(network())
    weights = model.weights()
    assert torch.equal(fitted("", model, weights).params, weights.params)
    assert set(get_args(FitKind)) == {"", *KINDS}


class WithDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def embed(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, training=self.training)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.embed(x))
        return logits


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_stays_off_since_a_run_may_be_training_in_another_thread(kind: FitKind) -> None:
    model = FlatModel(WithDropout())
    state = torch.random.get_rng_state()
    fitted(kind, model, model.weights())
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_network_without_features_can_be_tuned_and_not_probed() -> None:
    model = FlatModel(nn.Sequential(nn.Linear(8, 4)))
    weights = model.weights()
    assert accuracy_of(model, fitted("fine_tune", model, weights)) > 0.7
    with pytest.raises(NetworkError, match=r"Sequential gives no features.*add a method embed\(x\)"):
        fitted("linear_probe", model, weights)
