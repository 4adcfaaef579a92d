"""Whether the store still has what a run's clients committed."""

from collections.abc import Mapping
from contextlib import suppress

from broker_config.protocol.errors import FedILError, LedgerMissing
from broker_config.stores.interface import Store
from server_worker.round.sites import Sites

_EVER = 2**62
"""An activation that no client reaches"""


class LedgerChecks:
    """`answered`: the last activation that each client has answered."""

    def __init__(self, run: str, store: Store, sites: Sites) -> None:
        self._run, self._store, self._sites = run, store, sites
        self._counted = dict.fromkeys(sites.names(), 0)
        """The store's count of each site, as this server knows it"""
        self._saved = dict(self._counted)
        """As the last checkpoint has it"""
        self._first_servers: dict[str, str] = {}
        """Where the ledgers of each site were when the run began; empty after a restart"""

    def begin(self) -> None:
        for site in self._sites.names():
            self._store.begin(self._run, site)
            self._first_servers[site] = self._store.server_id

    def resume(self, counted: Mapping[str, int]) -> None:
        """`counted`: the store's counts in the checkpoint"""
        self._counted |= counted
        self.saved()

    def saved(self) -> None:
        """A checkpoint has the present counts."""
        self._saved = dict(self._counted)

    def count(self) -> dict[str, int]:
        """Called before a checkpoint. Raises an error if the store has lost the run, or has gone back to an earlier
        state, as in a failover to a replica that was behind. Only the server may write the marks: no site can cause
        this."""
        for site in self._sites.names():
            # Of other sites the checkpoint needs no more than the last one did.
            if self._counted[site] != self._saved[site]:
                self._count(site)
        return dict(self._counted)

    def _count(self, site: str) -> None:
        try:
            self._counted[site] = self._store.count(self._run, site, self._counted[site])
        except LedgerMissing as error:
            # Raises again if the checkpoint needs what is lost.
            self._store.count(self._run, site, self._saved[site])
            raise FedILError(
                f"the store of run {self._run} has lost what clients committed since the last checkpoint, as in a "
                "failover to a replica that was behind: start the server again with the same command, and they train "
                "it again"
            ) from error

    def has(self, client: int, activation: int) -> bool:
        """Called before an answer counts: whether the client's ledger of this activation is in the store. Looked up
        only if the store may have lost it: the client that sent its update had committed it. Raises an error as `count`
        does, if that concerns the client's site."""
        site = self._sites.site_of(client)
        self._count(site)
        server = self._store.server_id
        if server in ("", self._first_servers.get(site)):
            return True
        try:
            self._store.read(self._run, client, activation + 1, at_least=activation)
        except LedgerMissing:
            return False
        return True

    def check(self, answered: tuple[int, ...]) -> None:
        """Raises an error as `count` does, of any site, and if the store has lost the ledgers of all clients that have
        answered, or is ahead of the checkpoint. One client's ledger may be its own site's fault; all of them are the
        store's."""
        # First: clients that trained while the store was emptied have committed ledgers since.
        for site in self._sites.names():
            self._count(site)
        lost: LedgerMissing | None = None
        for client, activation in enumerate(answered):
            if activation:
                try:
                    self._store.read(self._run, client, activation + 1, at_least=activation)
                except LedgerMissing as error:
                    lost = lost or error
                else:
                    return
        if lost is not None and any(self._only_later(*each) for each in enumerate(answered)):
            raise FedILError(
                f"the ledgers of run {self._run} are ahead of its newest checkpoint: restore the run's folder and the "
                "store together, or start a new run"
            ) from lost
        if lost is not None:
            raise lost

    def _only_later(self, client: int, activation: int) -> bool:
        """The store dropped this generation for later ones, which it has. A store that was restored from an older copy
        may hold a later one too, from a task that was under way, but it dropped nothing for it."""
        try:
            self._store.read(self._run, client, activation + 1)
        except LedgerMissing:
            with suppress(LedgerMissing):
                return self._store.read(self._run, client, _EVER, at_least=activation + 1) is not None
        return False
