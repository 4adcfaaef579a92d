"""FedIL's non-IID setting, exact: each client holds exactly c distinct classes.

Every class is held by K·c/C of the K clients (one more or less when that is not whole), and its samples
are spread evenly over them. Drawing shards, as FedCon and SemiFL do, gives "at most c" instead.
"""

import numpy as np

from fedil_model.errors import DataError
from fedil_model.settings import SplitSettings

MAX_SHUFFLES = 100


def partition_classes(
    labels: np.ndarray, num_clients: int, settings: SplitSettings, rng: np.random.Generator
) -> list[np.ndarray]:
    classes = np.unique(labels)
    per_client = max(1, round(settings.classes_share * len(classes)))
    held_Kc = _holder_matrix(len(classes), num_clients, per_client, rng)
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for place, label in enumerate(classes):
        holders = rng.permutation(np.flatnonzero((held_Kc == place).any(axis=1)))
        members = rng.permutation(np.flatnonzero(labels == label))
        if len(members) < len(holders):
            raise DataError(
                f'split.partition="classes": class {label} has {len(members)} unlabelled samples for '
                f"{len(holders)} clients; lower split.clients or split.classes_share"
            )
        for holder, part in zip(holders, np.array_split(members, len(holders)), strict=True):
            parts[holder].append(part)
    return [np.concatenate(own) for own in parts]


def _holder_matrix(
    num_classes: int, num_clients: int, per_client: int, rng: np.random.Generator
) -> np.ndarray:
    """The classes of each client, K×c: shuffled class lists, then swaps until no row repeats a class."""
    num_places = num_clients * per_client
    if num_places < num_classes:
        raise DataError(
            f'split.partition="classes": split.clients={num_clients} with {per_client} classes each cannot '
            f"hold all {num_classes} classes; raise split.clients or split.classes_share"
        )
    for _ in range(MAX_SHUFFLES):
        lists = [rng.permutation(num_classes) for _ in range(-(-num_places // num_classes))]
        held_Kc = np.concatenate(lists)[:num_places].reshape(num_clients, per_client)
        if _swap_until_distinct(held_Kc, rng):
            return held_Kc
    raise DataError(f"no way found to give {per_client} of {num_classes} classes to each client")


def _swap_until_distinct(held_Kc: np.ndarray, rng: np.random.Generator) -> bool:
    """A swap takes away one repeat and makes none, so this ends; False if it is stuck."""
    for client, row in enumerate(held_Kc):
        while (repeats := _repeated_places(row)).size:
            place = repeats[0]
            lacks_it = ~(held_Kc == row[place]).any(axis=1)
            is_new_here = ~np.isin(held_Kc, row)
            choices = np.argwhere(is_new_here & lacks_it[:, None])
            if not len(choices):
                return False
            other, there = rng.choice(choices)
            held_Kc[client, place], held_Kc[other, there] = held_Kc[other, there], held_Kc[client, place]
    return True


def _repeated_places(row: np.ndarray) -> np.ndarray:
    _, first = np.unique(row, return_index=True)
    return np.setdiff1d(np.arange(len(row)), first)
