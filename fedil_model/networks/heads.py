"""Heads of self-supervised methods, on the features that a network's `embed` returns.

Their batch norm always uses the statistics of its batch: heads are there to train, and no model that ships has one.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedil_model.networks.interface import features_of


class WithHeads(nn.Module):
    """A network, a projector on its features and a predictor on the projections. Its forward gives the network's
    logits, so that it trains on labels as the network alone."""

    def __init__(self, network: nn.Module, projector: nn.Module, predictor: nn.Module) -> None:
        super().__init__()
        self.network, self.projector, self.predictor = network, projector, predictor

    def forward(self, x: Tensor) -> Tensor:
        logits_BC: Tensor = self.network(x)
        return logits_BC

    def project(self, x: Tensor) -> Tensor:
        embed, _ = features_of(self.network)
        projections_BF: Tensor = self.projector(embed(x))
        return projections_BF

    def predict(self, x: Tensor) -> Tensor:
        predictions_B: Tensor = self.predictor(self.project(x))
        return predictions_B


def add_heads(network: nn.Module, make: Callable[[int], tuple[nn.Module, nn.Module]], seed: int) -> WithHeads:
    """`make`: from the number of features to projector and predictor. Same seed, same bits."""
    _, last = features_of(network)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return WithHeads(network, *make(last.in_features))


def mlp_head(size_in: int, hidden: int, size_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(size_in, hidden), head_norm(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, size_out)
    )


def head_norm(size: int, *, affine: bool = True) -> nn.Module:
    return nn.BatchNorm1d(size, affine=affine, track_running_stats=False)
