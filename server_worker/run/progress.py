"""What the server carries from round to round, and how it goes into a checkpoint and comes back."""

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from broker_config.protocol.errors import CheckpointDamaged
from fedil_model.methods.interface import State
from fedil_model.training.convergence import Increment
from fedil_model.training.flat_model import Weights, from_arrays, to_arrays
from server_worker.run.checkpoint import Checkpoint
from server_worker.watch.events import RoundRecord, record_from_fields, record_to_json

_RECORD, _INCREMENTS = "record", "increments"
_MARKED = "marked"
"""The store has this run's mark: whoever writes a checkpoint has seen to that. Earlier versions knew none."""


@dataclass(frozen=True)
class Progress:
    round: int
    state: State
    activations: tuple[int, ...]
    """How often each client has been asked so far"""
    selection: tuple[int, ...]
    """Who is asked in the next round; decided before, so that a restart asks the same"""
    labelled: tuple[tuple[int, int], ...]
    """Of each client: samples with a pseudo-label, samples in its credible set"""
    increments: tuple[Increment, ...]
    models: Mapping[str, Weights]
    """What to evaluate and export; empty before the first round closes"""
    record: RoundRecord | None
    """The last closed round, not yet evaluated"""
    answered: tuple[int, ...] = ()
    """Of each client: the last activation that it has answered, so that a lost ledger is noticed"""
    buffer: Mapping[str, Any] | None = None
    """Buffered mode: who is in flight, as plain fields"""
    bases: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)
    """Buffered mode: the broadcasts that clients in flight may have started from, by version"""


def to_checkpoint(progress: Progress, recipe_digest: str) -> Checkpoint:
    tensors = {f"state/{name}": tensor for name, tensor in progress.state.items()}
    for version, broadcast in progress.bases.items():
        tensors |= {f"base/{version}/{name}": tensor for name, tensor in broadcast.items()}
    keys_of = {id(tensor): key for key, tensor in tensors.items()}
    models = {}
    for name, weights in progress.models.items():
        parts = {f"model/{name}.params": weights.params, f"model/{name}.buffers": weights.buffers}
        # θ′ is part of the state already.
        models[name] = [keys_of.setdefault(id(tensor), key) for key, tensor in parts.items()]
        tensors.update({key: tensor for key, tensor in parts.items() if keys_of[id(tensor)] == key})
    meta = {
        "recipe_digest": recipe_digest,
        "activations": list(progress.activations),
        "selection": list(progress.selection),
        "labelled": [list(pair) for pair in progress.labelled],
        "models": models,
        "answered": list(progress.answered),
        "buffer": progress.buffer,
        _MARKED: True,
    }
    # Not among the fields, whose size is bounded: it grows with the clients and with what they say.
    record = (record_to_json(progress.record) if progress.record else "null").encode()
    increments = np.array([astuple(increment) for increment in progress.increments]).reshape(-1, 3)
    arrays = {**to_arrays(tensors), _RECORD: np.frombuffer(record, np.uint8), _INCREMENTS: increments}
    return Checkpoint(progress.round, meta, arrays)


def from_checkpoint(checkpoint: Checkpoint, recipe_digest: str) -> Progress:
    meta, arrays = checkpoint.meta, dict(checkpoint.arrays)
    try:
        record = json.loads(arrays.pop(_RECORD).tobytes())
        increments = arrays.pop(_INCREMENTS).tolist()
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
            selection=tuple(meta["selection"]),
            labelled=tuple((pair[0], pair[1]) for pair in meta["labelled"]),
            increments=tuple(Increment(*row) for row in increments),
            models={n: Weights(tensors[keys[0]], tensors[keys[1]]) for n, keys in meta["models"].items()},
            record=record_from_fields(record) if record else None,
            answered=tuple(meta["answered"]),
            buffer=meta["buffer"],
            bases=_bases(tensors),
        )
    except (KeyError, TypeError, IndexError) as error:
        raise CheckpointDamaged(
            f"the checkpoint of round {checkpoint.round} lacks {error}: it was written by another version"
        ) from error


def is_marked(checkpoint: Checkpoint) -> bool:
    return _MARKED in checkpoint.meta


def _bases(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    bases: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if key.startswith("base/"):
            _, version, name = key.split("/", 2)
            bases.setdefault(int(version), {})[name] = tensor
    return bases
