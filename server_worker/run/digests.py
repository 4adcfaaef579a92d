"""Digests that two runs share if they are the same run."""

from collections.abc import Iterator

from broker_config.protocol.wire import digest
from broker_config.stores.batches import newest_ledgers
from broker_config.stores.interface import Store
from server_worker.run.checkpoint import Checkpoint


def model_digest(checkpoint: Checkpoint | None) -> str:
    """Of the model that ships; empty before the first round has closed."""
    keys = checkpoint.meta["models"].get("global", ()) if checkpoint else ()
    parts = [checkpoint.arrays[key] for key in keys] if checkpoint else []
    return digest([part.data for part in parts if part.size]) if parts else ""


def ledger_digest(store: Store, run: str) -> str:
    return digest(_parts(store, run))


def _parts(store: Store, run: str) -> Iterator[bytes]:
    for client, activation, ledger in newest_ledgers(store, run):
        yield f"{client}:{activation}:{len(ledger)}:".encode()
        yield ledger
