"""What two runs must share to be the same run."""

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
    parts: list[bytes] = []
    for client, (activation, ledger) in sorted(store.latest(run).items()):
        parts += [f"{client}:{activation}:{len(ledger)}:".encode(), ledger]
    return digest(parts)
