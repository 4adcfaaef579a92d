"""Labels that clients keep for their samples, compared with the true ones, and example pictures. Offline only: neither
server nor clients have the true labels.

A method's `view_state` names sets of labelled samples. The last is the most selective: its labels are examined."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from broker_config.protocol.errors import FedILError
from broker_config.protocol.messages import LEDGER_KIND
from broker_config.protocol.wire import decode_arrays
from fedil_model.data.datasets.interface import Samples
from fedil_model.data.split import Split
from fedil_model.errors import LearningError, StateError
from fedil_model.methods.interface import Arrays, StateView

PICTURES_SHOWN = 24
ViewState = Callable[[Arrays], StateView]


@dataclass(frozen=True)
class Picture:
    pixels: np.ndarray
    """uint8, height × width × channels (1 or 3)"""
    said: int
    is_really: int
    client: int


@dataclass(frozen=True)
class HeldLabels:
    said_N: np.ndarray
    """The label of each sample in the set"""
    truth_N: np.ndarray
    right: tuple[Picture, ...]
    wrong: tuple[Picture, ...]
    name: str = ""
    """Of the set"""
    others: int = 0
    """Samples that carry a label in another set only"""
    unreadable: tuple[int, ...] = ()
    """Clients whose ledger is not valid"""
    not_pictures: str = ""
    """Description of the samples if they are not pictures"""


Columns = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Position, label and client of each sample in the set"""


def find_held_labels(
    ledgers: Mapping[int, bytes], split: Split, train: Samples, classes: int, view: ViewState
) -> HeldLabels:
    """`ledgers`: the newest of each client"""
    (positions, said, clients), name, others, unreadable = _read(ledgers, split, classes, view)
    truth = train.labels.numpy()[positions]
    right = said == truth
    not_pictures = _not_pictures(train)

    def pictures(chosen: np.ndarray) -> tuple[Picture, ...]:
        return tuple(
            Picture(
                pixels=train.inputs[int(positions[row])].permute(1, 2, 0).numpy(),
                said=int(said[row]),
                is_really=int(truth[row]),
                client=int(clients[row]),
            )
            for row in spread_out(np.flatnonzero(chosen), said[chosen], PICTURES_SHOWN)
            if not not_pictures
        )

    shown = pictures(right), pictures(~right)
    return HeldLabels(said, truth, *shown, name, others, unreadable, not_pictures)


def _read(
    ledgers: Mapping[int, bytes], split: Split, classes: int, view: ViewState
) -> tuple[Columns, str, int, tuple[int, ...]]:
    parts: list[Columns] = [(np.zeros(0, np.int64),) * 3]
    name, others, unreadable = "", 0, list[int]()
    for client, body in sorted(ledgers.items()):
        held = split.clients[client] if client < len(split.clients) else np.zeros(0, np.int64)
        try:
            sets = view(decode_arrays(body, LEDGER_KIND)[1]).label_sets
            # A site may write any label, and for any number of samples.
            if any(labels.shape != held.shape or (labels >= classes).any() for labels in sets.values()):
                raise StateError("the ledger does not fit the data")
        except (FedILError, LearningError):
            unreadable.append(client)
            continue
        *_, name = sets
        labels_N = sets[name]
        rows = np.flatnonzero(labels_N >= 0)
        parts.append((held[rows], labels_N[rows].astype(np.int64), np.full(len(rows), client)))
        others += int(np.logical_or.reduce([labels >= 0 for labels in sets.values()]).sum()) - len(rows)
    positions, said, clients = map(np.concatenate, zip(*parts, strict=True))
    return (positions, said, clients), name, others, tuple(unreadable)


def spread_out(rows: np.ndarray, labels: np.ndarray, most: int) -> Sequence[int]:
    """A reproducible random choice of `most` rows, balanced over the classes and sorted by class."""
    rng = np.random.default_rng(0)
    lot = rng.permutation(len(rows))
    turn = np.zeros(len(rows), np.int64)
    for label in np.unique(labels):
        of_label = lot[labels[lot] == label]
        turn[of_label] = np.arange(len(of_label))
    chosen = sorted(
        lot[np.argsort(turn[lot], kind="stable")][:most], key=lambda place: (labels[place], place)
    )
    return [int(rows[place]) for place in chosen]


def _not_pictures(train: Samples) -> str:
    inputs = train.inputs
    if inputs.dim() == 4 and inputs.shape[1] in (1, 3) and str(inputs.dtype) == "torch.uint8":
        return ""
    shape = " × ".join(map(str, inputs.shape[1:])) or "1"
    return f"{shape} numbers of type {str(inputs.dtype).removeprefix('torch.')}"
