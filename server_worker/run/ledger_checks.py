"""Whether the store still has what a run's clients committed."""

from contextlib import suppress

from broker_config.protocol.errors import FedILError, LedgerMissing
from broker_config.stores.interface import Store

_EVER = 2**62
"""An activation that no client reaches"""


class LedgerChecks:
    """`answered`: the last activation that each client has answered."""

    def __init__(self, run: str, store: Store) -> None:
        self._run, self._store = run, store
        self._counted = self._saved = 0
        """The store's count, as this server knows it and as the last checkpoint has it"""
        self._resumed, self._first_server = False, store.server_id

    def begin(self) -> None:
        self._store.begin(self._run)
        self._first_server = self._store.server_id

    def resume(self, counted: int) -> None:
        """`counted`: the store's count in the checkpoint"""
        self._saved = self._counted = counted
        self._resumed = True

    def saved(self) -> None:
        """A checkpoint has the present count."""
        self._saved = self._counted

    def count(self) -> int:
        """Called before an answer counts and before a checkpoint. Raises an error if the store has lost the run, or
        has gone back to an earlier state, as in a failover to a replica that was behind. Only the server may write
        the mark: no site can cause this."""
        try:
            self._counted = self._store.count(self._run, self._counted)
        except LedgerMissing as error:
            self._store.count(self._run, self._saved)  # raises again if the checkpoint needs what is lost
            raise FedILError(
                f"the store of run {self._run} has lost what clients committed since the last checkpoint, as in a "
                "failover to a replica that was behind: start the server again with the same command, and they train "
                "it again"
            ) from error
        return self._counted

    def has(self, client: int, activation: int) -> bool:
        """Whether the client's ledger of this activation is in the store. Looked up only if the store may have lost
        it: the client that sent its update had committed it."""
        server = self._store.server_id
        if not server or not (self._resumed or server != self._first_server):
            return True
        try:
            self._store.read(self._run, client, activation + 1, at_least=activation)
        except LedgerMissing:
            return False
        return True

    def check(self, answered: tuple[int, ...]) -> None:
        """Raises an error as `count` does, and if the store has lost the ledgers of all clients that have answered, or
        is ahead of the checkpoint. One client's ledger may be its own site's fault; all of them are the store's."""
        # First: clients that trained while the store was emptied have committed ledgers since.
        self.count()
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
