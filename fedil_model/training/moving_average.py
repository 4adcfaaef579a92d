"""Weights that follow those of another model as an exponential moving average."""

import torch

from fedil_model.training.flat_model import FlatModel


def follow(average: FlatModel, model: FlatModel, momentum: float) -> None:
    """average ← momentum·average + (1 − momentum)·model, of the parameters; buffers are each model's own."""
    with torch.no_grad():
        average.params.lerp_(model.params, 1.0 - momentum)
