"""Views of anything that is not an image: noise and dropped features."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Numbers = float | Sequence[float] | np.ndarray | Tensor
"""Anything that NumPy makes an array of"""


@dataclass(frozen=True, eq=False)
class TensorViews:
    """Features should have about unit scale; give `mean` and `std` (per feature, or one for all) if not. A feature
    whose `std` is 0 never changes, and is only shifted."""

    mean: Numbers = 0.0
    std: Numbers = 1.0
    weak_noise: float = 0.05
    strong_noise: float = 0.2
    strong_dropout: float = 0.2
    """Share of features that the strong view sets to their mean."""

    def __post_init__(self) -> None:
        std = _tensor_of(self.std)
        object.__setattr__(self, "mean", _tensor_of(self.mean))
        object.__setattr__(self, "std", std.masked_fill(std == 0.0, 1.0))

    def plain(self, raw: Tensor) -> Tensor:
        mean, std = (torch.as_tensor(values, device=raw.device) for values in (self.mean, self.std))
        return (raw.to(torch.float32) - mean) / std

    def weak(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        features = self.plain(raw)
        return features.add_(_normal_like(features, generator), alpha=self.weak_noise)

    def strong(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        features = self.plain(raw)
        features.add_(_normal_like(features, generator), alpha=self.strong_noise)
        dropped = torch.rand(features.shape, generator=generator, device=generator.device)
        return features.masked_fill_((dropped < self.strong_dropout).to(features.device), 0.0)


def _tensor_of(numbers: Numbers) -> Tensor:
    """A copy in float32: NumPy's own are float64, and may be read-only or run backwards, which torch does not take."""
    if isinstance(numbers, Tensor):
        return numbers.to(torch.float32)
    return torch.from_numpy(np.array(numbers, dtype=np.float32))


def _normal_like(features: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(features.shape, generator=generator, device=generator.device).to(features.device)
