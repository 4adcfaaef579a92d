"""Regular surveys of workers, queue depths and the store, for metrics and the live page. A thread with connections of
its own takes them; the run decides nothing by them."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from broker_config.brokers.topology import DEAD_LETTERS, tasks_queue, updates_queue, workers_topic
from broker_config.protocol.errors import FedILError
from broker_config.stores.interface import Store
from broker_config.transports.interface import Transport

_log = logging.getLogger(__name__)
EVERY_SECONDS = 5.0


@dataclass(frozen=True)
class Survey:
    at: float = 0.0
    """Seconds since 1970"""
    workers: tuple[Mapping[str, Any], ...] = ()
    """What each worker reports about itself, with its "name" and "site". Sites write this: do not trust it."""
    clients_alive: int = 0
    """Clients whose site has a worker"""
    depths: Mapping[str, int] = field(default_factory=dict)
    """Messages waiting in "tasks" (of all sites), "updates" and "dead_letters", as far as known"""
    store: Mapping[str, float] = field(default_factory=dict)
    """See Store.health"""
    trouble: str = ""
    """Why the brokers cannot be reached; the rest is then from an earlier survey."""
    absent: tuple[str, ...] = ()
    """Sites without a worker"""
    num_sites: int = 0


class Surveyor:
    def __init__(
        self,
        run: str,
        sites: Mapping[str, range],
        connect: Callable[[], tuple[Transport, Store]],
        tell: Callable[[Survey], None],
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        self._run, self._sites, self._connect, self._tell = run, dict(sites), connect, tell
        self._every = every_seconds
        self._closing = threading.Event()
        self._last = Survey()
        self._connections: tuple[Transport, Store] | None = None
        self._thread = threading.Thread(target=self._run_surveys, name="fedil-survey", daemon=True)

    def __enter__(self) -> "Surveyor":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(self._every)

    def _run_surveys(self) -> None:
        while not self._closing.is_set():
            self._last = self._take_or_explain()
            self._tell(self._last)
            self._closing.wait(self._every)
        self._drop()

    def _take_or_explain(self) -> Survey:
        try:
            if self._connections is None:
                self._connections = self._connect()
            return self._take(*self._connections)
        except Exception as error:  # of any kind: the next survey may succeed
            self._drop()
            # Never empty: without trouble the brokers count as reachable.
            trouble = " ".join(str(error).split())[:300] or type(error).__name__
            if not self._last.trouble and not self._closing.is_set():
                _log.warning("no survey of the brokers: %s", trouble)
            return replace(self._last, at=time.time(), trouble=trouble)

    def _take(self, transport: Transport, store: Store) -> Survey:
        present = {site: store.notices(workers_topic(site)) for site in self._sites}
        return Survey(
            at=time.time(),
            workers=tuple(
                {**facts, "name": name, "site": site}
                for site, notices in present.items()
                for name, facts in sorted(notices.items())
            ),
            absent=tuple(site for site, notices in present.items() if not notices),
            num_sites=len(present),
            clients_alive=sum(len(self._sites[site]) for site, notices in present.items() if notices),
            depths=self._depths(transport),
            store=store.health(),
        )

    def _depths(self, transport: Transport) -> dict[str, int]:
        kinds = {
            "tasks": [tasks_queue(site) for site in self._sites],
            "updates": [updates_queue(self._run, site) for site in self._sites],
            "dead_letters": [DEAD_LETTERS],
        }
        found: dict[str, int] = {}
        for kind, queues in kinds.items():
            known = [depth for queue in queues if (depth := transport.depth(queue)) is not None]
            if known:
                found[kind] = sum(known)
        return found

    def _drop(self) -> None:
        connections, self._connections = self._connections, None
        for connection in connections or ():
            with suppress(FedILError, OSError):
                connection.close()
