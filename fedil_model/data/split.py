"""Which training samples are the server's labelled set, and which are the clients' unlabelled shards.

A split can be kept beside the results: all methods of one table must share it.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedil_model.data.partitions import PARTITIONS
from fedil_model.errors import DataError
from fedil_model.seeding import derive_seed
from fedil_model.settings import SplitSettings


@dataclass(frozen=True, eq=False)
class Split:
    """Sorted positions in the training set, int64; none occurs twice. Compare splits by their digest."""

    labelled: np.ndarray
    clients: tuple[np.ndarray, ...]
    seed: int

    def deal(self) -> tuple[np.ndarray, ...]:
        """The clients' shards; raises DataError where they are not here to be dealt out."""
        if not self.held:
            raise DataError(
                'split.partition = "elsewhere": the clients\' data are at their sites, which write their own shards '
                "(see fedil shards --help); start fedil server here"
            )
        return self.clients

    @property
    def held(self) -> tuple[int, ...]:
        """How many samples each client has; empty where their data are elsewhere."""
        counts = tuple(map(len, self.clients))
        return counts if any(counts) else ()

    @cached_property
    def digest(self) -> str:
        content = hashlib.sha256(f"fedil-split-1 seed={self.seed} clients={len(self.clients)}".encode())
        for positions in (self.labelled, *self.clients):
            content.update(len(positions).to_bytes(8, "little"))
            content.update(positions.astype("<i8").tobytes())
        return content.hexdigest()

    def to_json(self) -> str:
        """One line a client, for eyes and for diff."""
        clients = ",\n  ".join(json.dumps(positions.tolist()) for positions in self.clients)
        return (
            f'{{"seed": {self.seed},\n "digest": "{self.digest}",\n'
            f' "labelled": {json.dumps(self.labelled.tolist())},\n "clients": [\n  {clients}\n ]}}\n'
        )

    @classmethod
    def load(cls, path: Path) -> "Split":
        try:
            written = json.loads(path.read_text(encoding="utf-8"))
            split = cls(
                _positions(written["labelled"]),
                tuple(map(_positions, written["clients"])),
                int(written["seed"]),
            )
            digest = written["digest"]
        except FileNotFoundError as error:
            raise DataError(f"no split in {path}") from error
        except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
            raise DataError(f"{path} is not a saved split ({type(error).__name__}: {error})") from error
        if split.digest != digest:
            raise DataError(f"{path} was altered: its content has digest {split.digest}, it claims {digest}")
        return split


def _positions(written: Any) -> np.ndarray:
    if not isinstance(written, list) or not all(type(position) is int for position in written):
        raise ValueError("positions must be a list of whole numbers")
    return np.array(written, dtype=np.int64)


def refuse_missing_classes(labels: np.ndarray, class_names: Sequence[str], settings: SplitSettings) -> None:
    """A stratified split promises labels of every class."""
    if settings.partition == "elsewhere" or settings.label_split != "stratified":
        return
    present = set(np.unique(labels).tolist())
    missing = [name for label, name in enumerate(class_names) if label not in present]
    if missing:
        shown = ", ".join(map(repr, missing[:10])) + (", …" if len(missing) > 10 else "")
        raise DataError(
            f'the training data has no sample of {shown}; split.label_split="stratified" needs one a class at '
            'least (or use "random")'
        )


def make_split(
    labels: np.ndarray,
    num_classes: int,
    settings: SplitSettings,
    seed: int,
    owners: np.ndarray | None = None,
) -> Split:
    """The labelled set depends on the seed alone, so that partitions can be compared on the same labels. `owners`: the
    client of each sample, for the partition "natural"."""
    labels = np.asarray(labels)
    if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
        raise DataError(f"labels go from {labels.min()} to {labels.max()}, expected 0 to {num_classes - 1}")
    if settings.partition == "elsewhere":
        nothing = np.zeros(0, np.int64)
        return Split(np.arange(len(labels)), (nothing,) * settings.clients, seed)
    labelled = _choose_labelled(
        labels, num_classes, settings, np.random.default_rng(derive_seed(seed, "labelled"))
    )
    unlabelled = np.setdiff1d(np.arange(len(labels)), labelled)
    if len(unlabelled) < settings.clients:
        raise DataError(
            f"split.clients={settings.clients}, but only {len(unlabelled)} unlabelled samples are left "
            f"({len(labels)} in all, {len(labelled)} labelled)"
        )
    rng = np.random.default_rng(derive_seed(seed, "partition", settings.partition))
    if settings.partition == "natural":
        parts = _by_owner(owners, unlabelled, settings.clients)
    else:
        parts = PARTITIONS[settings.partition](labels[unlabelled], settings.clients, settings, rng)
    if empty := sum(1 for part in parts if not len(part)):
        raise DataError(
            f'split.partition="{settings.partition}" leaves {empty} of split.clients={settings.clients} '
            "without a sample; lower split.clients"
        )
    return Split(labelled, tuple(np.sort(unlabelled[part]) for part in parts), seed)


def _by_owner(owners: np.ndarray | None, unlabelled: np.ndarray, num_clients: int) -> list[np.ndarray]:
    if owners is None:
        raise DataError(
            'split.partition="natural": the data does not say which client a sample belongs to '
            '(data.name = "csv" does, with data.options.site)'
        )
    if num_clients != owners.max() + 1:
        raise DataError(
            f"split.clients={num_clients}, but the data belongs to {owners.max() + 1} clients: set it to that"
        )
    return [np.flatnonzero(owners[unlabelled] == client) for client in range(num_clients)]


def _choose_labelled(
    labels: np.ndarray, num_classes: int, settings: SplitSettings, rng: np.random.Generator
) -> np.ndarray:
    count, setting = _num_labelled(len(labels), settings)
    if not 0 < count < len(labels):
        raise DataError(f"{setting} asks for {count} labelled samples, the training set has {len(labels)}")
    if settings.label_split == "random":
        return np.sort(rng.choice(len(labels), size=count, replace=False))
    if count < num_classes:
        raise DataError(
            f'{setting} gives {count} labels for {num_classes} classes; split.label_split="stratified" needs '
            'one a class at least (or use "random")'
        )
    return _choose_stratified(labels, num_classes, count, rng)


def _num_labelled(num_samples: int, settings: SplitSettings) -> tuple[int, str]:
    if settings.labelled is not None:
        return settings.labelled, f"split.labelled={settings.labelled}"
    fraction = settings.labelled_fraction or 0.0
    return round(fraction * num_samples), f"split.labelled_fraction={fraction}"


def _choose_stratified(
    labels: np.ndarray, num_classes: int, count: int, rng: np.random.Generator
) -> np.ndarray:
    """The same number of each class; what does not divide, or what a rare class lacks, goes to the others by
    lot: deal one sample of each class in turn, in a new order each turn, until there are enough."""
    decks = [rng.permutation(np.flatnonzero(labels == label)) for label in range(num_classes)]
    turn = np.concatenate([np.arange(len(deck)) for deck in decks])
    lot = rng.random(len(turn))
    return np.sort(np.concatenate(decks)[np.lexsort((lot, turn))[:count]])
