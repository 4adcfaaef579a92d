"""Label skew by a Dirichlet draw per class, as EasyFL and SemiFL do it.

A client that already holds its fair share N/K gets nothing of further classes; the whole draw is repeated
until no client has too few.
"""

import numpy as np

from fedil_model.errors import DataError
from fedil_model.settings import SplitSettings

MAX_DRAWS = 2000


def partition_dirichlet(
    labels: np.ndarray, num_clients: int, settings: SplitSettings, rng: np.random.Generator
) -> list[np.ndarray]:
    members_of = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    counts_CK = _draw_counts([len(members) for members in members_of], num_clients, settings, rng)
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for members, counts_K in zip(members_of, counts_CK, strict=True):
        pieces = np.split(rng.permutation(members), np.cumsum(counts_K)[:-1])
        for own, piece in zip(parts, pieces, strict=True):
            own.append(piece)
    return [np.concatenate(own) for own in parts]


def _draw_counts(
    class_sizes: list[int], num_clients: int, settings: SplitSettings, rng: np.random.Generator
) -> np.ndarray:
    """How many samples of each class each client gets, C×K."""
    wanted = settings.min_samples * num_clients
    if wanted > sum(class_sizes):
        raise DataError(
            f"split.min_samples={settings.min_samples} for split.clients={num_clients} needs {wanted} "
            f"unlabelled samples, there are {sum(class_sizes)}"
        )
    for _ in range(MAX_DRAWS):
        counts_CK = _draw_counts_once(class_sizes, num_clients, settings.alpha, rng)
        if counts_CK.sum(axis=0).min() >= settings.min_samples:
            return counts_CK
    raise DataError(
        f"split.alpha={settings.alpha} with split.clients={num_clients}: after {MAX_DRAWS} draws a client "
        f"still has fewer than split.min_samples={settings.min_samples}; raise alpha, or lower the others"
    )


def _draw_counts_once(
    class_sizes: list[int], num_clients: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    fair_share = sum(class_sizes) / num_clients
    counts_CK = np.zeros((len(class_sizes), num_clients), dtype=np.int64)
    for counts_K, size in zip(counts_CK, class_sizes, strict=True):
        has_room_K = counts_CK.sum(axis=0) < fair_share
        shares_K = rng.dirichlet(np.full(num_clients, alpha)) * has_room_K
        if shares_K.sum() < 1e-12:  # a very small alpha gave everything to a client that is full
            shares_K = has_room_K / num_clients
        cuts = np.floor(np.cumsum(shares_K / shares_K.sum()) * size + 0.5).astype(np.int64)
        cuts[-1] = size
        counts_K[:] = np.diff(cuts, prepend=0)
    return counts_CK
