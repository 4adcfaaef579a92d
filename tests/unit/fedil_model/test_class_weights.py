import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional

from fedil_model.data.datasets.interface import Samples
from fedil_model.methods import make_learning
from fedil_model.networks import build_network
from fedil_model.training.flat_model import FlatModel
from fedil_model.training.supervised import class_weights, labelled_loss, train_supervised
from tests.unit.fedil_model.steps import CPU, LABELLED, context_of

LOGITS_BC, LABELS_B = (
    torch.randn(6, 3, generator=torch.Generator().manual_seed(0)),
    torch.tensor([0, 0, 0, 1, 0, 2]),
)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    expected = compute_class_weight("balanced", classes=np.arange(3), y=LABELS_B.numpy())
    found = class_weights("balanced", LABELS_B)
    assert found is not None
    assert found.tolist() == pytest.approx(expected.tolist())


def test_the_loss_is_torchs_weighted_cross_entropy() -> None:
    weights_C = class_weights([1.0, 5.0, 0.5], LABELS_B)
    expected = functional.cross_entropy(LOGITS_BC, LABELS_B, weights_C)
    assert float(labelled_loss(LOGITS_BC, LABELS_B, 1.0, weights_C)) == pytest.approx(float(expected))
    sure = functional.one_hot(LABELS_B) * 20.0
    assert float(labelled_loss(sure, LABELS_B, 0.5, weights_C)) == 0.0  # all of them are above the ceiling


def test_a_rare_class_is_found_more_often_with_weights() -> None:
    rows = torch.cat([torch.arange(len(LABELLED.labels))[LABELLED.labels == 0], torch.tensor([1])])
    few = Samples(LABELLED.inputs[rows] * 0.1, (LABELLED.labels[rows] == 1).long())
    chances = [rare_chance(few, weights) for weights in (None, "balanced")]
    assert chances[1] > chances[0] + 0.1


def rare_chance(samples: Samples, weights: str | None) -> float:
    learning = make_learning(
        {"network": {"name": "mlp", "width": 8, "norm": "none"}, "server": {"class_weights": weights}}
    )
    model = FlatModel(build_network(learning.network, (8,), 2, 0), CPU)
    views = context_of(learning).views
    train_supervised(model, samples, views, learning, seed=0, epochs=20, lr=0.1, strong_weight=0.0)
    with torch.no_grad():
        return float(model.module.eval()(views.plain(samples.inputs[-1:])).softmax(1)[0, 1])
