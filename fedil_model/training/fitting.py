"""What is done to a model on the labelled samples before its predictions count, where a method declares it: a new
linear head on frozen features, or training of the whole network. The same weights give the same bits."""

import math
from typing import Literal

import torch
from torch.nn import functional as F

from fedil_model.data.datasets.interface import Samples, Views
from fedil_model.networks.interface import features_of
from fedil_model.settings import Learning, ServerSettings
from fedil_model.training.evaluate import evaluating
from fedil_model.training.flat_model import FlatModel, Weights
from fedil_model.training.precision import seeded
from fedil_model.training.supervised import train_supervised

FitKind = Literal["", "linear_probe", "fine_tune"]
PROBE_STEPS = 100
PROBE_DECAY = 1e-4
TUNE_EPOCHS, TUNE_PARTS, TUNE_LR = 100, 10, 0.01
"""The rate follows a cosine, part by part."""


def fit_model(
    kind: FitKind,
    model: FlatModel,
    weights: Weights,
    labelled: Samples,
    views: Views,
    learning: Learning,
    seed: int,
) -> Weights:
    model.load(weights)
    with model.temporarily_loaded(), seeded(seed, model.device):
        if kind == "linear_probe":
            _probe(model, labelled, views)
        elif kind == "fine_tune":
            _tune(model, labelled, views, learning, seed)
        return model.weights()


def _probe(model: FlatModel, labelled: Samples, views: Views) -> None:
    """Logistic regression on the features, from zero, by L-BFGS: convex, so nothing is drawn."""
    embed, head = features_of(model.module)
    with evaluating(model.module):
        features_NF = torch.cat(
            [embed(views.plain(part)) for part in torch.split(labelled.inputs, 500)]
        ).float()
    weight = torch.zeros_like(head.weight, requires_grad=True)
    bias = torch.zeros(head.out_features, device=model.device, requires_grad=head.bias is not None)
    parameters = [weight] if head.bias is None else [weight, bias]
    optimiser = torch.optim.LBFGS(parameters, max_iter=PROBE_STEPS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(F.linear(features_NF, weight, bias), labelled.labels)
        value = value + PROBE_DECAY * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        head.weight.copy_(weight)
        if head.bias is not None:
            head.bias.copy_(bias)


def _tune(model: FlatModel, labelled: Samples, views: Views, learning: Learning, seed: int) -> None:
    settings = ServerSettings(batch_size=learning.server.batch_size, momentum=0.9, weight_decay=5e-4)
    generator = torch.Generator().manual_seed(seed)
    for part in range(TUNE_PARTS):
        train_supervised(
            model,
            labelled,
            views,
            settings,
            epochs=TUNE_EPOCHS // TUNE_PARTS,
            lr=TUNE_LR * (1.0 + math.cos(math.pi * part / TUNE_PARTS)) / 2.0,
            strong_weight=0.0,
            generator=generator,
            precision=learning.autocast,
        )
