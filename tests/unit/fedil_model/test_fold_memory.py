from typing import Any

import torch
from torch import Tensor

from fedil_model.aggregation import IncrementalFold
from fedil_model.exact_sum import BLOCK
from fedil_model.hyperparameters import FedILSettings
from fedil_model.parameters import Weights


def test_the_fold_holds_four_models_and_some_scratch() -> None:
    size = 4 * BLOCK
    theta, server = (Weights(torch.full((size,), value), torch.zeros(0)) for value in (1.0, 1.1))
    fold = IncrementalFold(theta, server, FedILSettings(), size, 0.99)
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_in(fold)}
    assert sum(held.values()) <= 4 * (4 * size) + 16 * BLOCK


def tensors_in(thing: Any) -> list[Tensor]:
    if isinstance(thing, Tensor):
        return [thing]
    if isinstance(thing, (list, tuple)):
        return [t for item in thing for t in tensors_in(item)]
    if type(thing).__module__.startswith("fedil_model.") and not isinstance(thing, FedILSettings):
        return [t for value in vars(thing).values() for t in tensors_in(value)]
    return []
