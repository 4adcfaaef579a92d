"""A test set for data that comes without one."""

import numpy as np

TEST_SEED = 20230223
"""A test set is part of the data: it must not follow the run's seed. (The day FedIL appeared on arXiv.)"""


def held_out(labels: np.ndarray, share: float) -> np.ndarray:
    """Which samples are for the test: of every class the same share."""
    rng = np.random.default_rng(TEST_SEED)
    is_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        is_test[members[: round(share * len(members))]] = True
    return is_test
