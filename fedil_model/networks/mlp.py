"""For flat or tabular inputs: `depth` hidden layers of `width` units; any input shape is flattened."""

import math
from itertools import pairwise

from torch import Tensor, nn

from fedil_model.networks.classifier import Classifier
from fedil_model.networks.normalisation import NormKind, make_norm


class Mlp(Classifier):
    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, width: int, norm: NormKind, *, depth: int = 2
    ) -> None:
        super().__init__()
        sizes = [math.prod(input_shape), *[width] * depth]
        self.hidden = nn.Sequential(nn.Flatten())
        for size_in, size_out in pairwise(sizes):
            self.hidden.append(nn.Linear(size_in, size_out))
            self.hidden.append(make_norm(norm, size_out, spatial=False))
            self.hidden.append(nn.ReLU(inplace=True))
        self.fc = nn.Linear(sizes[-1], num_classes)

    def embed(self, x: Tensor) -> Tensor:
        features_BF: Tensor = self.hidden(x)
        return features_BF
