"""Keeps one notice up to date in the store: that a process is running, and what it does."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from broker_config.protocol.errors import FedILError
from broker_config.stores.interface import Store

_log = logging.getLogger(__name__)
EVERY_SECONDS = 5.0
_TTL_SECONDS = 3 * EVERY_SECONDS
_AT_MOST_EVERY_SECONDS = 0.5
"""Tasks may take milliseconds; no reader needs updates that fast."""


class Presence:
    """A thread with its own connection. An error of the store is logged once per outage and disturbs nothing else."""

    def __init__(
        self, connect: Callable[[], Store], topic: str, name: str, facts: Mapping[str, object]
    ) -> None:
        """`facts` must contain "state"; the notice adds "since", the time when that state began."""
        self._connect, self._topic, self.name = connect, topic, name
        self._facts: dict[str, object] = {"since": time.time(), **facts}
        self._lock = threading.Lock()
        self._changed, self._closing = threading.Event(), threading.Event()
        self._store: Store | None = None
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="fedil-presence", daemon=True)

    def update(self, **facts: object) -> None:
        with self._lock:
            if facts.get("state", self._facts["state"]) != self._facts["state"]:
                self._facts["since"] = time.time()
            self._facts |= facts
        if not self._changed.is_set():  # set() wakes the thread each time
            self._changed.set()

    def __enter__(self) -> "Presence":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._changed.set()
        self._thread.join(EVERY_SECONDS)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._changed.clear()
            self._try(self._announce)
            self._closing.wait(_AT_MOST_EVERY_SECONDS)
            self._changed.wait(EVERY_SECONDS)
        if self._store is not None:
            self._try(lambda store: store.withdraw(self._topic, self.name))
            self._drop()

    def _announce(self, store: Store) -> None:
        with self._lock:
            facts = dict(self._facts)
        store.announce(self._topic, self.name, facts, _TTL_SECONDS)

    def _try(self, action: Callable[[Store], None]) -> None:
        try:
            if self._store is None:
                self._store = self._connect()
            action(self._store)
            if self._failed:
                _log.info("the status of %s is updated again", self.name)
            self._failed = False
        except (FedILError, OSError) as error:
            self._drop()
            if not self._failed:
                _log.warning("cannot update the status of %s: %s", self.name, error)
            self._failed = True

    def _drop(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with suppress(FedILError):
                store.close()
