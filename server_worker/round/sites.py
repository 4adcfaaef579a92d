"""Sites: which clients each owns, which user may answer for them, and which have workers now."""

from collections.abc import Callable, Mapping

from broker_config.brokers.topology import site_user, workers_topic
from broker_config.stores.interface import Store
from server_worker.watch.notices import Notice

_LOOK_SECONDS = 1.0
"""Loops ask at every answer, and each look asks the store once per site."""
_OFTEN_SECONDS = 5.0
"""Time between two looks beyond this is not counted as absence: no one could be seen then."""


class Sites:
    """A site is present while its workers put notices on the store's board. One that was never seen counts as present
    until the time-out has passed: workers may start more slowly than the server."""

    def __init__(
        self,
        sites: Mapping[str, range],
        store: Store,
        clock: Callable[[], float],
        timeout_seconds: float,
        server_user: str | None,
        note: Callable[[Notice], None],
        min_sites: int = 1,
    ) -> None:
        """`min_sites`: with fewer present, the run waits"""
        self.min_sites = min(min_sites, len(sites))
        self._sites, self._store, self._clock, self._timeout = dict(sites), store, clock, timeout_seconds
        self._server_user, self._note = server_user, note
        self._site_by_client = [site for site, clients in self._sites.items() for _ in clients]
        self._looked = clock()
        self._seen = dict.fromkeys(self._sites, self._looked)
        self._gone: set[str] = set()

    def names(self) -> tuple[str, ...]:
        return tuple(self._sites)

    def site_of(self, client: int) -> str:
        return self._site_by_client[client]

    def wrong_sender(self, sender: str | None, client: int) -> str:
        """Why this user, as the broker validated it, may not answer for the client; empty if it may. The server's own
        credentials are trusted; a transport without users (None) as well."""
        if sender is None or sender == self._server_user:
            return ""
        if client >= len(self._site_by_client):
            return f"user {sender!r} answers for client {client}, which this run does not have"
        site = self._site_by_client[client]
        if sender == site_user(site):
            return ""
        claimed = f"user {sender!r} answers" if sender else "the sender has no validated user id, and answers"
        return f"{claimed} for client {client}, which belongs to site {site}"

    def present(self) -> tuple[str, ...]:
        """Sites that have a worker"""
        if self._clock() - self._looked >= _LOOK_SECONDS:
            self._look()
        present = tuple(site for site, seen in self._seen.items() if self._looked - seen < self._timeout)
        gone = set(self._sites) - set(present)
        for site in sorted(gone - self._gone):
            then = "its clients are not asked until it has one"
            if len(present) < self.min_sites:
                then = f"the run waits for it, as federation.min_sites is {self.min_sites}"
            self._note(Notice(f"site {site} has no worker: {then}"))
        for site in sorted(self._gone - gone):
            self._note(Notice(f"site {site} is back", is_trouble=False))
        self._gone = gone
        return present

    def are_enough(self) -> bool:
        """As many are present as the run needs; else all tasks wait in their queues."""
        return len(self.present()) >= self.min_sites

    def _look(self) -> None:
        there = [site for site in self._sites if self._store.notices(workers_topic(site))]
        now = self._clock()
        # While no look was taken, or the store was away, no worker could be seen: that time does not count.
        unwatched = max(0.0, now - self._looked - _OFTEN_SECONDS)
        self._seen = {site: seen + unwatched for site, seen in self._seen.items()} | dict.fromkeys(there, now)
        self._looked = now
