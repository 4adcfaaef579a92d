"""Who owns which clients, who may speak for them, and whose workers are there."""

from collections.abc import Callable, Mapping
from typing import Protocol

from broker_config.brokers.topology import site_user, workers_topic
from broker_config.stores.interface import Store

_LOOK_SECONDS = 1.0
"""Loops may ask at every answer, and each look asks the store once for every site."""
_OFTEN_SECONDS = 5.0
"""Looks that are further apart than this leave time between them in which nobody watched."""


class Sites(Protocol):
    def names(self) -> tuple[str, ...]: ...

    def site_of(self, client: int) -> str: ...

    def may_speak(self, sender: str | None, client: int) -> bool:
        """Is this sender, as the broker vouches for it, the owner of the client?"""

    def present(self) -> tuple[str, ...]:
        """The sites that can be asked now."""


class OneSite:
    """All clients belong to one owner, whose workers are looked after elsewhere."""

    def __init__(self, name: str) -> None:
        self._name = name

    def names(self) -> tuple[str, ...]:
        return (self._name,)

    def site_of(self, client: int) -> str:  # noqa: ARG002
        return self._name

    def may_speak(self, sender: str | None, client: int) -> bool:  # noqa: ARG002
        return True

    def present(self) -> tuple[str, ...]:
        return (self._name,)


class WatchedSites:
    """Sites whose workers put notices on the store's board. One that was never seen counts as present until
    the time-out has passed: workers may be slower to start than the server."""

    def __init__(
        self,
        sites: Mapping[str, range],
        store: Store,
        clock: Callable[[], float],
        timeout_seconds: float,
        server_user: str | None,
        note: Callable[[str], None],
    ) -> None:
        self._sites, self._store, self._clock, self._timeout = dict(sites), store, clock, timeout_seconds
        self._server_user, self._note = server_user, note
        self._owners = [site for site, clients in self._sites.items() for _ in clients]
        """By client: sites own them in order"""
        self._looked = clock()
        self._seen = dict.fromkeys(self._sites, self._looked)
        self._gone: set[str] = set()

    def names(self) -> tuple[str, ...]:
        return tuple(self._sites)

    def site_of(self, client: int) -> str:
        return self._owners[client]

    def may_speak(self, sender: str | None, client: int) -> bool:
        """Who shares the server's own credentials is inside its walls anyway."""
        if sender is None or sender == self._server_user:
            return True
        return client < len(self._owners) and sender == site_user(self._owners[client])

    def present(self) -> tuple[str, ...]:
        if self._clock() - self._looked >= _LOOK_SECONDS:
            self._look()
        present = tuple(site for site, seen in self._seen.items() if self._looked - seen < self._timeout)
        gone = set(self._sites) - set(present)
        for site in sorted(gone - self._gone):
            self._note(f"site {site} has no worker: its clients are not asked until it has one")
        for site in sorted(self._gone - gone):
            self._note(f"site {site} is back")
        self._gone = gone
        return present

    def _look(self) -> None:
        there = [site for site in self._sites if self._store.notices(workers_topic(site))]
        now = self._clock()
        # While nobody looked, or the store was away, nobody could be seen: that time does not count.
        unwatched = max(0.0, now - self._looked - _OFTEN_SECONDS)
        self._seen = {site: seen + unwatched for site, seen in self._seen.items()} | dict.fromkeys(there, now)
        self._looked = now
