"""Ledgers of many clients, a few at a time: who walks over all of them holds only these."""

from collections.abc import Iterator, Sequence

from broker_config.stores.interface import Store

CLIENTS_AT_ONCE = 20


def newest_ledgers(store: Store, run: str) -> Iterator[tuple[int, int, bytes]]:
    """(client, activation, ledger) of all, in the order of clients."""
    for batch in in_batches(store.clients(run)):
        for client, (activation, ledger) in sorted(store.latest(run, batch).items()):
            yield client, activation, ledger


def in_batches(clients: Sequence[int], at_once: int = CLIENTS_AT_ONCE) -> Iterator[Sequence[int]]:
    for start in range(0, len(clients), at_once):
        yield clients[start : start + at_once]
