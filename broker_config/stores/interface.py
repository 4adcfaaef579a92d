"""The interface to the store: ledgers by client and activation, and status notices that expire.

Implementations: `redis/`, and `memory/` for one machine. A ledger is opaque bytes. Every implementation keeps these
promises (tests/contract/test_store_contract.py):

* One generation per activation (1, 2, …); the last two are kept.
* `commit` is atomic, idempotent and durable: a generation that exists is not overwritten.
* `open_activation` is a fence: commits of earlier activations are refused from then on.
* `begin` writes a mark that only the server may write or delete. A store without the mark has lost the ledgers of the
  site, whatever it still holds.
* Calls may come from several threads at a time.

Notices say which servers and workers are running and what they do: topic → name → facts. They may be lost.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Store(Protocol):
    """One connection to a store."""

    @property
    def outage_seconds(self) -> float:
        """Total time that calls waited for an unavailable store"""

    @property
    def server_id(self) -> str:
        """The server that answered the last `begin` or `count`: after a restart or a failover it is another one, which
        may lack what was written last. Empty for a store that never loses writes."""

    def begin(self, run: str, site: str) -> None:
        """Mark the run as begun where this store keeps the ledgers of the site's clients. Idempotent."""

    def count(self, run: str, site: str, counted: int) -> int:
        """Advance this mark beyond `counted`, up to which the server has counted at this site, and return the new
        count. Raises LedgerMissing if there is no mark, because the run never began here or the store lost its data,
        and if the store's own count is lower: it has gone back to an earlier state. What clients of the site committed
        before the call is in every later state of the store that has its count."""

    def open_activation(self, run: str, client: int, activation: int) -> None:
        """Called before the server asks `client` to train for the `activation`-th time. Idempotent. Raises
        LedgerFenced for an activation earlier than the open one."""

    def read(self, run: str, client: int, before_activation: int, at_least: int = 0) -> bytes | None:
        """The latest generation before `before_activation`; None if none that early was ever committed. Raises
        LedgerMissing if it was dropped or lost, or if it is older than `at_least`, which the caller knows to have been
        committed."""

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool:
        """Write one generation: True if this call wrote it, False if it exists. Raises LedgerFenced if it does not
        exist and a later activation is open or committed."""

    def clients(self, run: str) -> list[int]:
        """Clients with a ledger or an open activation, in ascending order."""

    def latest(self, run: str, clients: Sequence[int] | None = None) -> dict[int, tuple[int, bytes]]:
        """client → (activation, ledger) of the newest generation, of these clients or of all. All of them are in
        memory at once; `newest_ledgers` iterates over a whole run."""

    def ledgers(self, run: str, activations: Mapping[int, int]) -> dict[int, bytes]:
        """client → ledger of the given activation, where it is kept."""

    def announce(self, topic: str, name: str, facts: Mapping[str, object], ttl_seconds: float) -> None:
        """Write a notice, in place of one with the same name. It expires after `ttl_seconds`."""

    def withdraw(self, topic: str, name: str) -> None:
        """Delete a notice. Idempotent."""

    def notices(self, topic: str) -> dict[str, dict[str, Any]]:
        """name → facts of the notices that have not expired."""

    def health(self) -> Mapping[str, float]:
        """used_memory_bytes, evicted_keys and keys of the whole store; empty if they are unknown or this user may not
        read them."""

    def close(self) -> None: ...
