"""The store of one process: ledgers in files, notices in memory."""

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broker_config.process.durable import make_directory, write_atomically
from broker_config.protocol.errors import LedgerMissing
from broker_config.protocol.schema import check_count, check_run
from broker_config.stores.memory.ledger_files import LedgerFiles


class MemoryStore:
    """Commits survive kill -9 and power failures, and the next store on the same directory continues. Only one store
    may use a directory at a time."""

    outage_seconds = 0.0
    server_id = ""

    def __init__(self, directory: Path) -> None:
        self._storage = LedgerFiles(directory)
        self._lock = threading.Lock()
        self._topics: dict[str, dict[str, tuple[float, dict[str, Any]]]] = {}
        """topic → name → (time of expiry, facts)"""

    def begin(self, run: str, site: str) -> None:
        """One directory has the ledgers of all sites, and one mark."""
        check_run("run", run)
        check_run("site", site)
        with self._lock:
            make_directory(self._storage.mark(run).parent)
            write_atomically(self._storage.mark(run), [b""])

    def count(self, run: str, site: str, counted: int) -> int:
        """A directory loses no writes: its mark need not be written again."""
        check_run("run", run)
        check_run("site", site)
        if not self._storage.mark(run).exists():
            raise LedgerMissing(
                f"the store has lost all that it kept of run {run!r}: restore it from a backup, or start a new run"
            )
        return counted + 1

    def open_activation(self, run: str, client: int, activation: int) -> None:
        owner = _check_names(run, client, activation)
        with self._lock:
            before = self._storage.record(run, client)
            after = before.open(activation, owner)
            if after != before:
                self._storage.write_record(run, client, after)

    def read(self, run: str, client: int, before_activation: int, at_least: int = 0) -> bytes | None:
        owner = _check_names(run, client, before_activation)
        with self._lock:
            generation = self._storage.record(run, client).latest_before(before_activation, owner)
            if (generation or 0) < at_least:
                raise LedgerMissing(
                    f"{owner}: the ledger of activation {at_least} was committed and is gone: "
                    "restore the store from a backup, or start a new run"
                )
            return None if generation is None else self._storage.ledger(run, client, generation)

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool:
        owner = _check_names(run, client, activation)
        with self._lock:
            before = self._storage.record(run, client)
            after = before.commit(activation, owner)
            if after == before:
                return False
            if not before.opened:
                # After a crash, a ledger without a record would look like a lost record.
                self._storage.write_record(run, client, before)
            self._storage.write_ledger(run, client, activation, ledger)
            self._storage.write_record(run, client, after)
            for dropped in set(before.kept) - set(after.kept):
                self._storage.drop_ledger(run, client, dropped)
            return True

    def clients(self, run: str) -> list[int]:
        check_run("run", run)
        with self._lock:
            return sorted(self._storage.clients(run))

    def latest(self, run: str, clients: Sequence[int] | None = None) -> dict[int, tuple[int, bytes]]:
        check_run("run", run)
        newest: dict[int, tuple[int, bytes]] = {}
        with self._lock:
            for client in sorted(self._storage.clients(run) if clients is None else clients):
                check_count("client", client)
                if kept := self._storage.record(run, client).kept:
                    newest[client] = (kept[-1], self._storage.ledger(run, client, kept[-1]))
        return newest

    def ledgers(self, run: str, activations: Mapping[int, int]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        with self._lock:
            for client, activation in activations.items():
                _check_names(run, client, activation)
                if activation in self._storage.record(run, client).kept:
                    found[client] = self._storage.ledger(run, client, activation)
        return found

    def announce(self, topic: str, name: str, facts: Mapping[str, object], ttl_seconds: float) -> None:
        with self._lock:
            self._topics.setdefault(topic, {})[name] = (time.monotonic() + ttl_seconds, dict(facts))

    def withdraw(self, topic: str, name: str) -> None:
        with self._lock:
            self._topics.get(topic, {}).pop(name, None)

    def notices(self, topic: str) -> dict[str, dict[str, Any]]:
        now = time.monotonic()
        with self._lock:
            live = {name: notice for name, notice in self._topics.get(topic, {}).items() if notice[0] > now}
            self._topics[topic] = live
            return {name: dict(facts) for name, (_, facts) in sorted(live.items())}

    def health(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """Nothing is open between calls."""


def _check_names(run: str, client: int, activation: int) -> str:
    """Run and client, for error messages."""
    check_run("run", run)
    check_count("client", client)
    check_count("activation", activation)
    return f"run {run!r}, client {client}"
