"""What two runs must share to be the same run."""

from collections.abc import Iterator

from broker_config.protocol.wire import digest
from broker_config.stores.batches import newest_ledgers
from broker_config.stores.interface import Store
from server_worker.run.checkpoint import Checkpoint


def model_digest(checkpoint: Checkpoint | None) -> str:
    """Of θ′; empty if there is no checkpoint."""
    if checkpoint is None:
        return ""
    parts = [checkpoint.arrays[f"state/global.{part}"] for part in ("params", "buffers")]
    return digest([part.data for part in parts if part.size])


def ledger_digest(store: Store, run: str) -> str:
    return digest(_parts(store, run))


def _parts(store: Store, run: str) -> Iterator[bytes]:
    for client, activation, ledger in newest_ledgers(store, run):
        yield f"{client}:{activation}:{len(ledger)}:".encode()
        yield ledger
