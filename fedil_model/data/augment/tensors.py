"""Views of anything that is not an image: noise and dropped features."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class TensorViews:
    """Features should have about unit scale; give `mean` and `std` (per feature, or one for all) if not."""

    mean: Sequence[float] | np.ndarray | Tensor = (0.0,)
    std: Sequence[float] | np.ndarray | Tensor = (1.0,)
    weak_noise: float = 0.05
    strong_noise: float = 0.2
    strong_dropout: float = 0.2
    """Share of features that the strong view sets to their mean."""

    def plain(self, raw: Tensor) -> Tensor:
        # float32 said aloud: the numbers of a NumPy array are float64, and would make the features so.
        mean, std = (
            torch.as_tensor(values, dtype=torch.float32, device=raw.device)
            for values in (self.mean, self.std)
        )
        return (raw.to(torch.float32) - mean) / std

    def weak(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        features = self.plain(raw)
        return features.add_(_normal_like(features, generator), alpha=self.weak_noise)

    def strong(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        features = self.plain(raw)
        features.add_(_normal_like(features, generator), alpha=self.strong_noise)
        dropped = torch.rand(features.shape, generator=generator, device=generator.device)
        return features.masked_fill_((dropped < self.strong_dropout).to(features.device), 0.0)


def _normal_like(features: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(features.shape, generator=generator, device=generator.device).to(features.device)
