"""The store in small: generations and fences behind one lock, in a dict or (with a directory) in files."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker_config.protocol.errors import LedgerFenced, LedgerMissing
from broker_config.protocol.schema import check_count, check_run
from broker_config.stores.memory.board import MemoryBoard
from broker_config.stores.memory.shelves import DictShelf, DirectoryShelf, Shelf

KEPT_GENERATIONS = 2


class MemoryStore:
    """With a `directory`, what was committed survives kill -9 and power cuts, and the next store on that
    directory continues. One store per directory at a time."""

    away_seconds = 0.0

    def __init__(self, directory: Path | None = None) -> None:
        self._shelf: Shelf = DictShelf() if directory is None else DirectoryShelf(directory)
        self._lock = threading.Lock()
        self._board = MemoryBoard()

    def begin(self, run: str) -> None:
        check_run("run", run)
        with self._lock:
            self._shelf.write_mark(run)

    def check_begun(self, run: str) -> None:
        check_run("run", run)
        with self._lock:
            if not self._shelf.has_mark(run):
                raise LedgerMissing(
                    f"the store has lost all that it kept of run {run!r}: restore it from a backup, or start a new run"
                )

    def open_activation(self, run: str, client: int, activation: int) -> None:
        _check_names(run, client, activation)
        with self._lock:
            record = self._shelf.record(run, client)
            if activation < record.opened:
                raise fenced(run, client, activation, record.opened)
            if activation > record.opened:
                self._shelf.write_record(run, client, replace(record, opened=activation))

    def read(self, run: str, client: int, before_activation: int, at_least: int = 0) -> bytes | None:
        _check_names(run, client, before_activation)
        with self._lock:
            record = self._shelf.record(run, client)
            earlier = [activation for activation in record.kept if activation < before_activation]
            if earlier and max(earlier) >= at_least:
                return self._shelf.ledger(run, client, max(earlier))
        if record.kept and not earlier and 0 < record.first < before_activation:
            raise made_room(run, client, before_activation, record.kept)
        if at_least:
            raise LedgerMissing(
                f"run {run!r}, client {client}: the ledger of activation {at_least} was committed and is gone: "
                "restore the store from a backup, or start a new run"
            )
        return None

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool:
        _check_names(run, client, activation)
        with self._lock:
            record = self._shelf.record(run, client)
            if activation in record.kept:
                return False
            if activation < record.opened:
                raise fenced(run, client, activation, record.opened)
            if not record.opened:
                # A ledger without a record would look like a lost record after a crash.
                self._shelf.write_record(run, client, record)
            self._shelf.write_ledger(run, client, activation, ledger)
            kept = (*record.kept, activation)[-KEPT_GENERATIONS:]
            first = record.first or activation
            self._shelf.write_record(run, client, replace(record, opened=activation, first=first, kept=kept))
            for dropped in set(record.kept) - set(kept):
                self._shelf.drop_ledger(run, client, dropped)
            return True

    def clients(self, run: str) -> list[int]:
        check_run("run", run)
        with self._lock:
            return sorted(self._shelf.clients(run))

    def latest(self, run: str, clients: Sequence[int] | None = None) -> dict[int, tuple[int, bytes]]:
        check_run("run", run)
        newest: dict[int, tuple[int, bytes]] = {}
        with self._lock:
            for client in sorted(self._shelf.clients(run) if clients is None else clients):
                check_count("client", client)
                if kept := self._shelf.record(run, client).kept:
                    newest[client] = (kept[-1], self._shelf.ledger(run, client, kept[-1]))
        return newest

    def ledgers(self, run: str, activations: Mapping[int, int]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        with self._lock:
            for client, activation in activations.items():
                _check_names(run, client, activation)
                if activation in self._shelf.record(run, client).kept:
                    found[client] = self._shelf.ledger(run, client, activation)
        return found

    def announce(self, topic: str, name: str, facts: Mapping[str, object], seconds: float) -> None:
        self._board.announce(topic, name, facts, seconds)

    def withdraw(self, topic: str, name: str) -> None:
        self._board.withdraw(topic, name)

    def notices(self, topic: str) -> dict[str, dict[str, Any]]:
        return self._board.notices(topic)

    def health(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """Nothing is held open."""


def _check_names(run: str, client: int, activation: int) -> None:
    check_run("run", run)
    check_count("client", client)
    check_count("activation", activation)


def fenced(run: str, client: int, activation: int, opened: int) -> LedgerFenced:
    return LedgerFenced(f"run {run!r}, client {client}: activation {activation} is over, {opened} is open")


def made_room(run: str, client: int, before_activation: int, kept: tuple[int, ...]) -> LedgerMissing:
    return LedgerMissing(
        f"run {run!r}, client {client}: what came before activation {before_activation} has made room for {kept}: "
        "drop this task, a later one is under way"
    )
