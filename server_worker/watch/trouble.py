"""What keeps a run from going on, and since when, for terminal, page and board alike."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from server_worker.watch.events import Watcher
from server_worker.watch.survey import Survey
from server_worker.watch.words import Trouble

_MISSED_AFTER_SECONDS, _ABSENT_AFTER_SECONDS = 4.0, 20.0
"""While the run waits for clients, and before: at its start workers come a little later than the server."""


_SERVICES = ("RabbitMQ", "Redis")


@dataclass(frozen=True)
class _Brokers:
    what: str
    since: float


class TroubleWatch(Watcher):
    """Fed with surveys, outages and phases from any thread. Tells `on_change` whenever something else is the matter."""

    def __init__(self, min_sites: int, clock: Callable[[], float] = time.time) -> None:
        self._min_sites, self._clock = min_sites, clock
        self._lock = threading.Lock()
        self._brokers: _Brokers | None = None
        self._absent: Mapping[str, float] = {}
        """Sites without a worker → since when"""
        self._num_sites, self._waits = 0, False
        self._told: tuple[Trouble, ...] = ()
        self.on_change: Callable[[tuple[Trouble, ...]], None] = lambda _: None

    def brokers_away(self, what: str) -> None:
        """`what`: the error, which logs tell in full"""
        service = next((name for name in _SERVICES if name in what), "")
        words = f"{service} is away" if service else what
        with self._lock:
            self._brokers = _Brokers(words, self._brokers.since if self._brokers else self._clock())
        self._tell()

    def brokers_back(self) -> None:
        with self._lock:
            self._brokers = None
        self._tell()

    def survey(self, survey: Survey) -> None:
        if survey.trouble:  # what it says of sites is from an earlier one
            self.brokers_away(survey.trouble)
            return
        with self._lock:
            self._brokers = None
            self._absent = {site: self._absent.get(site, survey.at) for site in survey.absent}
            self._num_sites = survey.num_sites
        self._tell()

    def phase(self, round_number: int, name: str) -> None:  # noqa: ARG002
        with self._lock:
            self._waits = name == "wait"
        self._tell()

    def over(self) -> None:
        """The run has ended."""
        with self._lock:
            self._brokers, self._absent = None, {}
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            found = self._found()
            if found == self._told:
                return
            self._told = found
        self.on_change(found)

    def _found(self) -> tuple[Trouble, ...]:
        present = self._num_sites - len(self._absent)
        stops = self._waits and present < max(1, min(self._min_sites, self._num_sites))
        brokers = [Trouble(self._brokers.what, self._brokers.since, stops=True)] if self._brokers else []
        patience = _MISSED_AFTER_SECONDS if self._waits else _ABSENT_AFTER_SECONDS
        absent = [
            Trouble(f"site {site} has no worker" if self._num_sites > 1 else "no worker", since, stops)
            for site, since in self._absent.items()
            if self._clock() - since >= patience
        ]
        return (*brokers, *absent)
