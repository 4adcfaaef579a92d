"""The files in which the memory store keeps ledgers."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from broker_config.process.durable import make_directory, translated_disk_errors, write_atomically
from broker_config.protocol.errors import LedgerMissing, MessageRejected
from broker_config.protocol.wire import decode_arrays, encode_arrays
from broker_config.stores.record import LedgerRecord


class LedgerFiles:
    """<directory>/<run>/<client>/ holds `record` and one `<activation>.ledger` per kept generation;
    <directory>/<run>/begun is the run's mark.

    A generation counts as committed once the record names it. A file is read when it is needed, so a damaged one
    affects only its client.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def mark(self, run: str) -> Path:
        return self._directory / run / "begun"

    def record(self, run: str, client: int) -> LedgerRecord:
        folder = self._client_folder(run, client)
        path = folder / "record"
        if not path.exists():
            if any(folder.glob("*.ledger")):
                raise _lost(path, "it does not exist, but ledgers do")
            return LedgerRecord()
        match _read(path, "ledger_record")[0]:
            case {"opened": int(opened), "first": int(first), "kept": list(kept)}:
                return LedgerRecord(opened, first, tuple(kept))
            case fields:
                raise _lost(path, f"its fields are {sorted(fields)}")

    def write_record(self, run: str, client: int, record: LedgerRecord) -> None:
        path = self._client_folder(run, client) / "record"
        make_directory(path.parent)
        fields = {"opened": record.opened, "first": record.first, "kept": list(record.kept)}
        write_atomically(path, encode_arrays("ledger_record", fields, {}))

    def ledger(self, run: str, client: int, activation: int) -> bytes:
        """Raises LedgerMissing."""
        path = self._ledger_path(run, client, activation)
        meta, arrays = _read(path, "ledger_file")
        if (meta.get("run"), meta.get("client"), meta.get("activation")) != (run, client, activation):
            raise _lost(path, f"it belongs to {meta}")
        return arrays["ledger"].tobytes()

    def write_ledger(self, run: str, client: int, activation: int, ledger: bytes) -> None:
        meta = {"run": run, "client": client, "activation": activation}
        body = encode_arrays("ledger_file", meta, {"ledger": np.frombuffer(ledger, np.uint8)})
        write_atomically(self._ledger_path(run, client, activation), body)

    def drop_ledger(self, run: str, client: int, activation: int) -> None:
        # A file that stays only takes space: the commit has succeeded.
        with suppress(OSError):
            self._ledger_path(run, client, activation).unlink()

    def clients(self, run: str) -> Iterator[int]:
        return (int(folder.name) for folder in (self._directory / run).glob("*") if folder.name.isdecimal())

    def _client_folder(self, run: str, client: int) -> Path:
        return self._directory / run / str(client)

    def _ledger_path(self, run: str, client: int, activation: int) -> Path:
        return self._client_folder(run, client) / f"{activation}.ledger"


def _read(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        with translated_disk_errors(path):
            return decode_arrays(path.read_bytes(), kind)
    except FileNotFoundError as error:
        raise _lost(path, "it does not exist") from error
    except MessageRejected as error:
        raise _lost(path, f"it is damaged ({error})") from error


def _lost(path: Path, cause: str) -> LedgerMissing:
    return LedgerMissing(f"cannot read {path}: {cause}. Restore this file from a backup, or start a new run")
