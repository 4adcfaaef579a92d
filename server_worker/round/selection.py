"""Clients of a round: a function of the run's seed, so that a restarted server asks the same ones."""

from collections.abc import Sequence

import numpy as np

from fedil_model.seeding import derive_seed


def select_clients(seed: int, round_number: int, clients: Sequence[int], count: int) -> tuple[int, ...]:
    rng = np.random.default_rng(derive_seed(seed, "selection", round_number))
    chosen = rng.choice(np.asarray(clients), size=min(count, len(clients)), replace=False)
    return tuple(sorted(int(client) for client in chosen))
