"""What a network says of data, without touching it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedil_model.data.datasets.interface import Samples, Views
from fedil_model.training.precision import Autocast, autocast

PREDICTED_AT_A_TIME = 100
"""Larger batches of photographs are slower on a CPU: their maps do not fit into its cache."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; the mode it had before comes back."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def predict_logits(
    model: nn.Module,
    inputs: Tensor,
    views: Views,
    batch_size: int = PREDICTED_AT_A_TIME,
    precision: Autocast = "off",
) -> Tensor:
    """Logits of the plain view of every sample, on the device that the inputs are on."""
    with evaluating(model), autocast(inputs.device, precision):
        return torch.cat([model(views.plain(batch)).float() for batch in torch.split(inputs, batch_size)])


def accuracy(model: nn.Module, samples: Samples, views: Views, precision: Autocast = "off") -> float:
    predicted = predict_logits(model, samples.inputs, views, precision=precision).argmax(dim=1)
    return float((predicted == samples.labels).double().mean())
