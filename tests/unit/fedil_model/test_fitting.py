import pytest
import torch

from fedil_model.data.augment import TensorViews
from fedil_model.data.datasets.interface import Samples
from fedil_model.errors import NetworkError
from fedil_model.methods import make_learning
from fedil_model.networks import build_network
from fedil_model.settings import NetworkSettings
from fedil_model.training.evaluate import accuracy
from fedil_model.training.fitting import FitKind, fit_model
from fedil_model.training.flat_model import FlatModel, Weights

LEARNING = make_learning({"server": {"batch_size": 10}})


def clouds(seed: int, count: int = 80) -> Samples:
    labels = torch.arange(count) % 4
    noise = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return Samples(torch.eye(8)[:4][labels] * 3.0 + noise, labels)


def network() -> FlatModel:
    return FlatModel(build_network(NetworkSettings(name="mlp", width=16, norm="gn"), (8,), 4, seed=0))


def fitted(kind: FitKind) -> tuple[Weights, Weights, float, float]:
    """Weights before and after, and accuracy on other samples before and after"""
    model, views, test = network(), TensorViews(), clouds(2)
    before = model.weights()
    started = accuracy(model.module, test, views)
    after = fit_model(kind, model, before, clouds(1), views, LEARNING, seed=3)
    model.load(after)
    return before, after, started, accuracy(model.module, test, views)


@pytest.mark.parametrize("kind", ["linear_probe", "fine_tune"])
def test_a_fitted_model_predicts_better_and_the_same_every_time(kind: FitKind) -> None:
    _, first, started, reached = fitted(kind)
    assert reached > max(started, 0.8)
    assert torch.equal(first.params, fitted(kind)[1].params)


def test_a_linear_probe_changes_the_head_only() -> None:
    before, after, *_ = fitted("linear_probe")
    head = FlatModel(torch.nn.Linear(16, 4)).num_params
    changed = int((before.params != after.params).sum())
    assert 0 < changed <= head


def test_a_network_without_features_is_named_with_what_to_add() -> None:
    model = FlatModel(torch.nn.Sequential(torch.nn.Linear(8, 4)))
    with pytest.raises(NetworkError, match=r"gives no features.*embed\(x\)"):
        fit_model("linear_probe", model, model.weights(), clouds(1), TensorViews(), LEARNING, seed=0)
