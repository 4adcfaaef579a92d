"""What travels: small values with plain fields. How they become bytes is `wire.py`'s business."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from broker_config.transports.interface import ModelAddress


@dataclass(frozen=True)
class ModelEntry:
    """An entry of the model log: where it is, and the digest of its bytes."""

    address: ModelAddress
    digest: str


@dataclass(frozen=True)
class TrainTask:
    """Server → the queue of the client's site. With the model, the ledger generation before `activation` and
    the client's data it determines the update, bit for bit."""

    run: str
    round: int
    client: int
    activation: int
    model: ModelEntry
    learning: str
    """The settings as JSON (fedil_model.settings.Learning)"""
    extras: Mapping[str, ModelEntry] = field(default_factory=dict)
    """Entries that only some clients receive, by name"""
    ledger_at_least: int = 0
    """The last activation that this client has answered: its ledger is there, or something was lost."""


@dataclass(frozen=True)
class Update:
    """A worker → the run's server: what one client learned."""

    run: str
    round: int
    client: int
    activation: int
    base_version: int
    num_samples: int
    num_steps: int
    tensors: Mapping[str, np.ndarray]
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Refusal:
    """A worker → the run's server, instead of an update: this client cannot answer, and why."""

    run: str
    round: int
    client: int
    activation: int
    reason: str
    detail: str


Message = TrainTask | Update | Refusal

MODEL_KIND = "model"
"""What a body of the model log is called on the wire"""
LEDGER_KIND = "ledger"
"""What a ledger is called in the store"""
