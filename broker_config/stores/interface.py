"""The seam to where ledgers live, and to a board of notices that fade.

A ledger is opaque bytes; the store knows only generations.

* One generation per activation (1, 2, …), the last two kept.
* `commit` is atomic and idempotent: a generation that exists is left as it is.
* `open_activation` fences: afterwards commits of earlier activations are refused.
* What was committed survives the death of whoever committed it.
* `begin` leaves a mark that only a server may write or delete: without it a store has lost the run, whatever ledgers
  were committed since.

The board tells who is there and what they are doing: workers by site, servers by run. It may be forgotten.
Calls may come from several threads at a time.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Store(Protocol):
    @property
    def away_seconds(self) -> float:
        """For how long it could not be reached by those who asked, in all"""

    def begin(self, run: str) -> None:
        """The server is about to begin this run. Repeating it is harmless."""

    def check_begun(self, run: str) -> None:
        """Raises LedgerMissing if the run never began here, or if that was lost with all else that there was of it."""

    def open_activation(self, run: str, client: int, activation: int) -> None:
        """The server is about to ask `client` to train for the `activation`-th time. Repeating it is
        harmless; going back is refused with LedgerFenced."""

    def read(self, run: str, client: int, before_activation: int, at_least: int = 0) -> bytes | None:
        """The latest generation earlier than `before_activation`; None if none so early was ever committed.
        Raises LedgerMissing if there was one and it is gone, or if it is older than generation `at_least`, which
        the reader knows to have been committed."""

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool:
        """True if this call wrote it, False if that generation is already there, whatever was opened since.
        Raises LedgerFenced if it is not and a later activation is open or committed."""

    def clients(self, run: str) -> list[int]:
        """Of whom there is something, if only an open activation; in order."""

    def latest(self, run: str, clients: Sequence[int] | None = None) -> dict[int, tuple[int, bytes]]:
        """client → (activation, ledger) of the newest generations, of these clients or of all. In memory all at once:
        who walks over a whole run takes `newest_ledgers`."""

    def ledgers(self, run: str, activations: Mapping[int, int]) -> dict[int, bytes]:
        """client → its ledger of the activation that is named for it, where that is kept"""

    def announce(self, topic: str, name: str, facts: Mapping[str, object], seconds: float) -> None:
        """Put a notice on the board, in place of the one with that name; it fades after `seconds`."""

    def withdraw(self, topic: str, name: str) -> None: ...

    def notices(self, topic: str) -> dict[str, dict[str, Any]]:
        """Name → facts of what has not faded."""

    def health(self) -> Mapping[str, float]:
        """For people who watch: used_memory_bytes, evicted_keys, keys (of all who use it); empty where nothing is
        known, or where this user may not ask."""

    def close(self) -> None: ...
