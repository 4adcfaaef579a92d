"""What a run has come to, with digests that two runs share if they are the same run."""

from collections.abc import Iterator
from dataclasses import dataclass

from broker_config.protocol.buffers import digest
from broker_config.stores.batches import newest_ledgers
from broker_config.stores.interface import Store
from server_worker.run.checkpoint import Checkpoint, CheckpointFolder
from server_worker.run.folder import RunDir


@dataclass(frozen=True)
class Outcome:
    run: str
    rounds_done: int
    stopped: bool
    model_digest: str
    ledger_digest: str = ""
    split_digest: str = ""
    """These two are empty where they are not known."""


def outcome_of(
    where: RunDir, run: str, stopped: bool, ledger_digest: str = "", split_digest: str = ""
) -> Outcome:
    latest = CheckpointFolder(where.checkpoints).latest()
    rounds_done = latest.round if latest else 0
    return Outcome(run, rounds_done, stopped, model_digest(latest), ledger_digest, split_digest)


def model_digest(checkpoint: Checkpoint | None) -> str:
    """Of the model that ships, or of the server's state before the first round has closed; empty without a
    checkpoint."""
    if checkpoint is None:
        return ""
    state = sorted(key for key in checkpoint.arrays if key.startswith("state/"))
    keys = checkpoint.meta["models"].get("global", state)
    return digest([checkpoint.arrays[key].data for key in keys if checkpoint.arrays[key].size])


def ledger_digest(store: Store, run: str) -> str:
    return digest(_parts(store, run))


def _parts(store: Store, run: str) -> Iterator[bytes]:
    for client, activation, ledger in newest_ledgers(store, run):
        yield f"{client}:{activation}:{len(ledger)}:".encode()
        yield ledger
