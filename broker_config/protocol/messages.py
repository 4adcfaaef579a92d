"""The messages between server and workers. `wire.py` encodes them."""

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
    """Server → task queue of the client's site. Together with the model, the ledger generation before `activation` and
    the client's data, it determines the update bit for bit."""

    run: str
    round: int
    client: int
    activation: int
    model: ModelEntry
    learning: str
    """The settings as JSON (fedil_model.settings.Learning)"""
    extras: Mapping[str, ModelEntry] = field(default_factory=dict)
    """Entries that only some clients receive, by name"""
    wire: str = "fp32"
    """The codec of the update: fedil_model.settings.Codec"""
    ledger_at_least: int = 0
    """The last activation that this client has answered. Its ledger must exist, or the store has lost data."""


@dataclass(frozen=True)
class Update:
    """Worker → update queue of the run: the result of one client's training."""

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
    """Worker → update queue of the run, instead of an update: why this client cannot train."""

    run: str
    round: int
    client: int
    activation: int
    reason: str
    detail: str


Message = TrainTask | Update | Refusal

MODEL_KIND = "model"
"""`kind` of a body in the model log"""
LEDGER_KIND = "ledger"
"""`kind` of a ledger in the store"""
