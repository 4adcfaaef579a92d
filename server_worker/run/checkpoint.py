"""A run's progress after a round, on disk: whole or absent, with a digest against flipped bits."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from broker_config.process.durable import make_directory, write_atomically
from broker_config.protocol.errors import CheckpointDamaged, MessageRejected
from broker_config.protocol.wire import MAX_HEADER_BYTES, decode_arrays, encode_arrays

_log = logging.getLogger(__name__)
_KIND = "checkpoint"
_JOURNAL_KIND = "asked"
_JOURNAL_FILE = "asked.journal"
_KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    round: int
    """The last one that closed; 0 before the first."""
    meta: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]


class CheckpointFolder:
    """The last two checkpoints of one run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, checkpoint: Checkpoint) -> None:
        make_directory(self._directory)
        meta = {**checkpoint.meta, "round": checkpoint.round}
        path = self._path(checkpoint.round)
        write_atomically(path, encode_arrays(_KIND, meta, checkpoint.arrays))
        _log.info("checkpoint %s saved", path.name)
        for old in self._paths()[:-_KEEP]:
            old.unlink(missing_ok=True)

    def latest(self) -> Checkpoint | None:
        paths = self._paths()
        if not paths:
            return None
        try:
            # Our own file, with numbers of every client: bounded by its size alone.
            meta, arrays = decode_arrays(np.fromfile(paths[-1], np.uint8).data, _KIND, MAX_HEADER_BYTES)
            return Checkpoint(int(meta["round"]), meta, arrays)
        except (MessageRejected, KeyError, TypeError, ValueError) as error:
            help = "start the run in a new folder"
            if len(paths) > 1:
                help = (
                    f"delete it to continue from {paths[-2].name} or, if clients have gone on since, {help}"
                )
            raise CheckpointDamaged(f"checkpoint {paths[-1]} is damaged ({error}): {help}") from error

    def save_journal(self, fields: Mapping[str, Any]) -> None:
        """Clients that the server is about to ask, between two checkpoints; small, since it is written with every
        task."""
        make_directory(self._directory)
        write_atomically(self._directory / _JOURNAL_FILE, encode_arrays(_JOURNAL_KIND, fields, {}))

    def journal(self) -> Mapping[str, Any] | None:
        path = self._directory / _JOURNAL_FILE
        if not path.exists():
            return None
        try:
            return decode_arrays(bytearray(path.read_bytes()), _JOURNAL_KIND, MAX_HEADER_BYTES)[0]
        except MessageRejected as error:
            raise CheckpointDamaged(
                f"{path} is damaged ({error}): delete it to ask clients anew from the last checkpoint"
            ) from error

    def _path(self, round_number: int) -> Path:
        return self._directory / f"round-{round_number:08d}.ckpt"

    def _paths(self) -> list[Path]:
        return sorted(self._directory.glob("round-*.ckpt"))
