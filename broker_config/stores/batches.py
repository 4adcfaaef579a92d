"""Iterates over the ledgers of many clients with only a few in memory."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from broker_config.stores.interface import Store

_T = TypeVar("_T")
CLIENTS_AT_ONCE = 20


def newest_ledgers(store: Store, run: str) -> Iterator[tuple[int, int, bytes]]:
    """(client, activation, ledger) of every client, in ascending order."""
    for batch in in_batches(store.clients(run)):
        for client, (activation, ledger) in sorted(store.latest(run, batch).items()):
            yield client, activation, ledger


def in_batches(items: Sequence[_T], size: int = CLIENTS_AT_ONCE) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
