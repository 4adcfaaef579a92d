"""Shuffled and cut: sizes differ by at most one."""

import numpy as np

from fedil_model.settings import SplitSettings


def partition_iid(
    labels: np.ndarray, num_clients: int, _settings: SplitSettings, rng: np.random.Generator
) -> list[np.ndarray]:
    return np.array_split(rng.permutation(len(labels)), num_clients)
