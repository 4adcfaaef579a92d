"""What the server carries from round to round, and how it goes into a checkpoint and comes back."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from broker_config.protocol.errors import CheckpointDamaged
from fedil_model.methods.interface import State, Tensors
from fedil_model.training.convergence import Increment
from fedil_model.training.flat_model import Weights, from_arrays, to_arrays
from server_worker.round.series import Totals
from server_worker.run.checkpoint import Checkpoint
from server_worker.watch.events import RoundRecord

_CLOSED, _INCREMENTS, _TOTAL = "closed", "increments", "total/"


@dataclass(frozen=True)
class Progress:
    round: int
    state: State
    activations: tuple[int, ...]
    """How often each client has been asked so far"""
    answered: tuple[int, ...]
    """The last activation that each client has answered, so that a lost ledger is noticed"""
    totals: Totals
    increments: tuple[Increment, ...] = ()
    models: Mapping[str, Weights] = field(default_factory=dict)
    """To evaluate and export; empty before the first round closes"""
    closed: RoundRecord | None = None
    """The last closed round, not yet evaluated"""
    selection: tuple[int, ...] = ()
    """Rounds mode: clients of the next round, decided before it, so that a restarted server asks the same"""
    buffer: Mapping[str, Any] | None = None
    """Buffered mode: tasks in flight, as plain fields"""
    bases: Mapping[int, Tensors] = field(default_factory=dict)
    """Buffered mode: the broadcasts that clients in flight may have started from, by version"""
    counted: Mapping[str, int] = field(default_factory=dict)
    """The store's count of each site, which may only grow: see Store.count"""


def latest(before: Sequence[int], activations: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(max(old, activations.get(client, 0)) for client, old in enumerate(before))


def to_checkpoint(progress: Progress, recipe_digest: str) -> Checkpoint:
    tensors = {f"state/{name}": tensor for name, tensor in progress.state.items()}
    for version, broadcast in progress.bases.items():
        tensors |= {f"base/{version}/{name}": tensor for name, tensor in broadcast.items()}
    keys_of = {id(tensor): key for key, tensor in tensors.items()}
    models = {}
    for name, weights in progress.models.items():
        parts = {f"model/{name}.params": weights.params, f"model/{name}.buffers": weights.buffers}
        # A tensor of the state is written once.
        models[name] = [keys_of.setdefault(id(tensor), key) for key, tensor in parts.items()]
        tensors.update({key: tensor for key, tensor in parts.items() if keys_of[id(tensor)] == key})
    meta = {
        "recipe_digest": recipe_digest,
        "activations": list(progress.activations),
        "selection": list(progress.selection),
        "models": models,
        "answered": list(progress.answered),
        "buffer": progress.buffer,
        "counted": dict(progress.counted),
    }
    # Not among the fields, whose size is bounded: it grows with the clients and with what they report.
    closed = (progress.closed.to_json() if progress.closed else "null").encode()
    arrays = {
        **to_arrays(tensors),
        **{f"{_TOTAL}{name}": np.array(values) for name, values in progress.totals.items()},
        _CLOSED: np.frombuffer(closed, np.uint8),
        _INCREMENTS: np.array([astuple(increment) for increment in progress.increments]).reshape(-1, 3),
    }
    return Checkpoint(progress.round, meta, arrays)


def from_checkpoint(checkpoint: Checkpoint, recipe_digest: str) -> Progress:
    meta, arrays = checkpoint.meta, dict(checkpoint.arrays)
    try:
        closed = json.loads(arrays.pop(_CLOSED).tobytes())
        increments = arrays.pop(_INCREMENTS).tolist()
        totals = {key: arrays.pop(key) for key in list(arrays) if key.startswith(_TOTAL)}
        # Copied, one by one: each can go when it is not needed any more, and not only with all of the file.
        tensors = {name: tensor.clone() for name, tensor in from_arrays(arrays).items()}
        if meta["recipe_digest"] != recipe_digest:
            raise CheckpointDamaged(
                "the checkpoint belongs to another recipe: give the run a folder of its own"
            )
        return Progress(
            round=checkpoint.round,
            state={key[6:]: tensor for key, tensor in tensors.items() if key.startswith("state/")},
            activations=tuple(meta["activations"]),
            answered=tuple(meta["answered"]),
            totals={key.removeprefix(_TOTAL): tuple(values.tolist()) for key, values in totals.items()},
            increments=tuple(Increment(*row) for row in increments),
            models={n: Weights(tensors[keys[0]], tensors[keys[1]]) for n, keys in meta["models"].items()},
            closed=RoundRecord.from_fields(closed) if closed else None,
            selection=tuple(meta["selection"]),
            buffer=meta["buffer"],
            bases=_bases(tensors),
            counted=dict(meta["counted"]),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointDamaged(
            f"the checkpoint of round {checkpoint.round} lacks {error}: it was written by another version"
        ) from error


def _bases(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    bases: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if key.startswith("base/"):
            _, version, name = key.split("/", 2)
            bases.setdefault(int(version), {})[name] = tensor
    return bases
