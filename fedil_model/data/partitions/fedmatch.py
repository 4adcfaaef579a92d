"""FedMatch's two settings."""

import numpy as np

from fedil_model.errors import DataError
from fedil_model.settings import SplitSettings

PROBABILITIES_FROM_MAIN = np.array([0.50, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15])
"""Of the main class and of the classes after it, cyclically; the sources do not say which one has .02."""


def partition_batch_iid(
    labels: np.ndarray, num_clients: int, _settings: SplitSettings, rng: np.random.Generator
) -> list[np.ndarray]:
    """Each class in equal slices, dealt one class after another, so that sizes differ by at most one."""
    dealt = np.concatenate([rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)])
    return [dealt[client::num_clients] for client in range(num_clients)]


def partition_batch_noniid(
    labels: np.ndarray, num_clients: int, _settings: SplitSettings, rng: np.random.Generator
) -> list[np.ndarray]:
    """Client j draws its labels around main class j mod 10; where a class has run out it gets fewer."""
    classes = np.unique(labels)
    if len(classes) != len(PROBABILITIES_FROM_MAIN):
        raise DataError(
            'split.partition="batch_noniid" is defined for 10 classes, '
            f"the unlabelled samples have {len(classes)}"
        )
    unused = [rng.permutation(np.flatnonzero(labels == label)) for label in classes]
    parts = []
    for client in range(num_clients):
        wanted_C = rng.multinomial(len(labels) // num_clients, np.roll(PROBABILITIES_FROM_MAIN, client % 10))
        parts.append(
            np.concatenate([members[:count] for members, count in zip(unused, wanted_C, strict=True)])
        )
        unused = [members[count:] for members, count in zip(unused, wanted_C, strict=True)]
    return parts
