"""A site's unlabelled samples, client by client, in a folder: inputs only, so no label can reach a worker.

`inputs.npy` holds all samples, those of one client next to each other; `offsets.npy` where each client begins.
The array is memory-mapped: any number of workers on a machine share one copy.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from broker_config.durable import make_directory, write_atomically
from fedil_model.errors import DataError


class Shards(Protocol):
    def inputs(self, client: int) -> Tensor:
        """One client's samples, always in the same order: the ledger counts on it."""


class ShardFolder:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            self._inputs = np.load(directory / "inputs.npy", mmap_mode="r", allow_pickle=False)
            self._offsets = np.load(directory / "offsets.npy", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(f"no shards in {directory} ({error})") from error

    def inputs(self, client: int) -> Tensor:
        if not 0 <= client < len(self._offsets) - 1:
            raise DataError(
                f"client {client} is not in {self._directory}, which has {len(self._offsets) - 1}"
            )
        return torch.from_numpy(np.array(self._inputs[self._offsets[client] : self._offsets[client + 1]]))


def write_shards(directory: Path, inputs: Tensor, clients: Sequence[np.ndarray]) -> None:
    """`offsets.npy` comes last: a folder that has it is whole."""
    if (directory / "offsets.npy").exists():
        return
    make_directory(directory)
    _save(directory / "inputs.npy", inputs[torch.from_numpy(np.concatenate(clients))].numpy())
    _save(directory / "offsets.npy", np.cumsum([0, *(len(client) for client in clients)]))


def _save(path: Path, array: np.ndarray) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    write_atomically(path, [header.getvalue(), np.ascontiguousarray(array).data.cast("B")])
