"""For flat or tabular inputs: `depth` hidden layers of `width` units; any input shape is flattened."""

import math
from itertools import pairwise

from torch import Tensor, nn

from fedil_model.networks.making import made
from fedil_model.networks.normalisation import NormKind, make_norm
from fedil_model.settings import NetworkSettings


class Mlp(nn.Module):
    def __init__(
        self, in_features: int, num_classes: int, width: int = 64, norm: NormKind = "gn", *, depth: int = 2
    ) -> None:
        super().__init__()
        sizes = [in_features, *[width] * depth]
        self.hidden = nn.Sequential(nn.Flatten())
        for size_in, size_out in pairwise(sizes):
            self.hidden.append(nn.Linear(size_in, size_out))
            self.hidden.append(make_norm(norm, size_out, spatial=False))
            self.hidden.append(nn.ReLU(inplace=True))
        self.fc = nn.Linear(sizes[-1], num_classes)

    def embed(self, x: Tensor) -> Tensor:
        features_BF: Tensor = self.hidden(x)
        return features_BF

    def forward(self, x: Tensor) -> Tensor:
        logits_BK: Tensor = self.fc(self.embed(x))
        return logits_BK


def make_mlp(input_shape: tuple[int, ...], num_classes: int, settings: NetworkSettings) -> Mlp:
    network: Mlp = made(Mlp, math.prod(input_shape), num_classes, settings)
    return network
