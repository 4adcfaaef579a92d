"""What two runs must share to be the same run."""

from collections.abc import Iterator

from broker_config.stores.batches import newest_ledgers
from broker_config.stores.interface import Store
from broker_config.wire import digest
from server_worker.checkpoint import CheckpointFolder


def model_digest(checkpoints: CheckpointFolder) -> str:
    """Of θ′ in the last checkpoint; empty if there is none."""
    checkpoint = checkpoints.latest()
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
