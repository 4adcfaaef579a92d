"""What is done to a model on the labelled samples before its predictions count, where a method declares it.

The same weights and seed give the same bits. Nothing is drawn from torch's global generator, so that a run may fit its
models while it trains. N samples, F features, B batch.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedil_model.data.datasets.interface import Samples, Views
from fedil_model.networks import features_of, refresh_statistics
from fedil_model.settings import Learning
from fedil_model.training.batches import shuffled_batches
from fedil_model.training.evaluate import evaluating
from fedil_model.training.flat_model import FlatModel, Weights
from fedil_model.training.precision import autocast

FitKind = Literal["", "linear_probe", "fine_tune"]
PROBE_STEPS, PROBE_DECAY = 100, 1e-4
TUNE_EPOCHS, TUNE_LR, TUNE_MOMENTUM, TUNE_DECAY = 100, 0.01, 0.9, 5e-4


def fit_model(
    kind: FitKind,
    model: FlatModel,
    weights: Weights,
    labelled: Samples,
    views: Views,
    learning: Learning,
    seed: int,
) -> Weights:
    """linear_probe: a new last layer on frozen features. fine_tune: training of the whole network."""
    with model.temporarily_loaded():
        model.load(weights)
        if kind == "linear_probe":
            _probe(model, labelled, views)
        elif kind == "fine_tune":
            _tune(model, labelled, views, learning, seed)
        return model.weights()


def _probe(model: FlatModel, labelled: Samples, views: Views) -> None:
    """Logistic regression on the plain views' features, from zero, by L-BFGS: convex, so nothing is drawn."""
    embed, head = features_of(model.module)
    parts = torch.split(labelled.inputs, 500)
    with evaluating(model.module):
        features_NF = torch.cat([embed(views.plain(part)).float() for part in parts])
    parameters = [parameter for parameter in (head.weight, head.bias) if parameter is not None]
    with torch.no_grad():
        for parameter in parameters:
            parameter.zero_()
    optimiser = torch.optim.LBFGS(parameters, max_iter=PROBE_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = functional.cross_entropy(head(features_NF), labelled.labels)
        value = value + PROBE_DECAY * head.weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]


def _tune(model: FlatModel, labelled: Samples, views: Views, learning: Learning, seed: int) -> None:
    """SGD with a cosine rate on weak views, in batches of server.batch_size; published are 10 with few labels, 64 with
    many. Dropout stays off: it would draw from the global generator."""
    module = model.module.eval()
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.train()
    groups = _decayed_and_rest(module)
    optimiser = torch.optim.SGD(groups, TUNE_LR, TUNE_MOMENTUM, weight_decay=TUNE_DECAY, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, TUNE_EPOCHS)
    generator, batch_size = torch.Generator().manual_seed(seed), learning.server.batch_size
    for _ in range(TUNE_EPOCHS):
        for batch_B in shuffled_batches(len(labelled.labels), batch_size, generator, model.device):
            optimiser.zero_grad()
            with autocast(model.device, learning.autocast):
                logits_BC = module(views.weak(labelled.inputs[batch_B], generator)).float()
            loss = functional.cross_entropy(logits_BC, labelled.labels[batch_B])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        schedule.step()
    refresh_statistics(module, labelled.inputs, views.plain)


def _decayed_and_rest(module: nn.Module) -> list[dict[str, object]]:
    """Norms and biases take no weight decay."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in trainable if parameter.ndim > 1]},
        {"params": [parameter for parameter in trainable if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
