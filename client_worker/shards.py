"""A site's unlabelled samples, client by client, in a folder: inputs only, so no label can reach a worker.

| file | holds |
|---|---|
| inputs.npy  | all samples, those of one client next to each other, as the recipe's dataset would give them |
| offsets.npy | where each client begins, and at the end the number of samples |
| clients.npy | which clients of the federation these are; without this file 0, 1, 2, … |

A site writes its own pictures in this form with `fedil shards --images`, any other data with a few lines of its own:

    import numpy as np
    from client_worker.shards import write_shards

    scans = np.load("scans.npy")                                 # (N, 1, 28, 28), uint8
    write_shards("shards", {40: scans[:600], 41: scans[600:]})   # this site's clients are 40 and 41

The order of a client's samples must stay: its ledger counts on it. To add samples, make a folder anew for the
next run. The array is memory-mapped: any number of workers on a machine share one copy.

Torch is imported only for tensors: starting workers checks their folder without it.
"""

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from broker_config.process.durable import make_directory, write_atomically
from fedil_model.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

_INPUTS, _OFFSETS, _CLIENTS = "inputs.npy", "offsets.npy", "clients.npy"


class Shards(Protocol):
    def inputs(self, client: int) -> "Tensor":
        """One client's samples, always in the same order: the ledger counts on it."""


class ShardFolder:
    def __init__(self, directory: Path, remedy: str = "make them anew, see fedil shards --help") -> None:
        """`remedy`: what helps if they are damaged."""
        self._directory, self._remedy = directory, remedy
        self._inputs, self._offsets = self._read(_INPUTS), np.array(self._read(_OFFSETS))
        self._check_offsets()
        numbered = (directory / _CLIENTS).exists()
        clients = self._read(_CLIENTS) if numbered else np.arange(len(self._offsets) - 1)
        self._check_clients(clients)
        self._places = {int(client): place for place, client in enumerate(clients)}

    def _read(self, name: str) -> np.ndarray:
        path = self._directory / name
        try:
            return np.lib.format.open_memmap(path, mode="r")
        except FileNotFoundError as error:
            raise DataError(f"no shards in {self._directory} (it has no {name}): {self._remedy}") from error
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error
        except ValueError as error:
            raise self._damaged(f"{name} is damaged") from error

    def _check_offsets(self) -> None:
        inputs, offsets = self._inputs, self._offsets
        if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 2:
            raise self._damaged(f"{_OFFSETS} must hold whole numbers, one per client and one more")
        if offsets[0] != 0 or (np.diff(offsets) < 0).any() or inputs.shape[:1] != (offsets[-1],):
            raise self._damaged(f"{_OFFSETS} must go from 0 up to the number of samples in {_INPUTS}")

    def _check_clients(self, clients: np.ndarray) -> None:
        if clients.shape != (len(self._offsets) - 1,) or clients.dtype.kind not in "iu":
            raise self._damaged(
                f"{_CLIENTS} must hold {len(self._offsets) - 1} whole numbers, as {_OFFSETS} says"
            )
        if len(np.unique(clients)) != len(clients) or clients.min() < 0:
            raise self._damaged(f"{_CLIENTS} must name every client once, by a number from 0 up")

    def _damaged(self, why: str) -> DataError:
        return DataError(f"the shards in {self._directory} cannot be used: {why}; {self._remedy}")

    @property
    def clients(self) -> tuple[int, ...]:
        return tuple(self._places)

    def inputs(self, client: int) -> "Tensor":
        if client not in self._places:
            raise DataError(
                f"client {client} is not in {self._directory}, which has {brief(self.clients)}: "
                "is this the right site's folder?"
            )
        import torch

        place = self._places[client]
        return torch.from_numpy(np.array(self._inputs[self._offsets[place] : self._offsets[place + 1]]))


def has_shards(directory: Path) -> bool:
    """`offsets.npy` is written last: a folder that has it is whole."""
    return (directory / _OFFSETS).exists()


def check_unwritten(directory: Path) -> None:
    if has_shards(directory):
        raise DataError(f"{directory} has shards already: choose another folder, or delete this one first")


def write_shards(directory: str | os.PathLike[str], samples: Mapping[int, "np.ndarray | Tensor"]) -> None:
    """`samples`: the federation's number of each client → its samples, the first axis counting them. All have the
    shape and type that the recipe's dataset gives its inputs. Shards that exist are never overwritten."""
    folder = Path(directory)
    check_unwritten(folder)
    clients = sorted(samples)
    parts = [np.ascontiguousarray(samples[client]) for client in clients]
    _check_alike(clients, parts)
    make_directory(folder)
    offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    _save(folder / _INPUTS, (int(offsets[-1]), *parts[0].shape[1:]), parts)
    _save(folder / _CLIENTS, (len(clients),), [np.array(clients, dtype=np.int64)])
    _save(folder / _OFFSETS, offsets.shape, [offsets])


def _check_alike(clients: Sequence[int], parts: Sequence[np.ndarray]) -> None:
    if not parts:
        raise DataError("there are no shards to write: name at least one client")
    if clients[0] < 0:
        raise DataError(f"client {clients[0]}: clients are numbered from 0 up")
    import torch

    try:
        torch.from_numpy(np.empty(0, parts[0].dtype))
    except (TypeError, ValueError) as error:
        raise DataError(f"samples of type {parts[0].dtype} cannot be trained on: {error}") from error
    for client, part in zip(clients, parts, strict=True):
        if part.ndim < 2 or part.shape[1:] != parts[0].shape[1:] or part.dtype != parts[0].dtype:
            raise DataError(
                f"client {client} has {part.dtype} samples of shape {part.shape[1:]}, client {clients[0]} has "
                f"{parts[0].dtype} of {parts[0].shape[1:]}: they must be alike, the first axis counting samples"
            )


def _save(path: Path, shape: tuple[int, ...], parts: Sequence[np.ndarray]) -> None:
    """As np.save would, but atomically, and without joining the parts in memory."""
    header = io.BytesIO()
    about = {"descr": np.lib.format.dtype_to_descr(parts[0].dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, about)
    write_atomically(path, [header.getvalue(), *(part.data.cast("B") for part in parts if part.size)])


def brief(clients: Sequence[int]) -> str:
    """0, 1, 2, 5 → "clients 0–2, 5"."""
    runs: list[list[int]] = []
    for client in sorted(clients):
        if runs and client == runs[-1][1] + 1:
            runs[-1][1] = client
        else:
            runs.append([client, client])
    shown = [str(first) if first == last else f"{first}–{last}" for first, last in runs]
    more = f" and more ({len(clients)} in all)" if len(shown) > 10 else ""
    return f"clients {', '.join(shown[:10])}{more}"
