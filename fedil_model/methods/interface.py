"""What a federated method is to the loops around it: pure steps, state in, state out.

Everything that is sent or kept is a mapping of named tensors, so a method may broadcast, upload and remember as
many sets of weights as it likes, and its client state ("ledger") need not look like FedIL's.
Adding a method: one file, one settings class in hyperparameters.py that `Learning.method` takes, one line in METHODS.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedil_model.data.datasets.interface import Samples
from fedil_model.methods.fedil.aggregation import Verdict
from fedil_model.training.flat_model import Weights

State = Mapping[str, Tensor]
"""What the server keeps between rounds; it is what a checkpoint holds."""


@dataclass(frozen=True)
class ServerStep:
    broadcast: Mapping[str, Tensor]
    """What every selected client of the round receives."""
    losses: Mapping[str, float]


@dataclass(frozen=True)
class ClientResult:
    update: Mapping[str, Tensor]
    ledger: Mapping[str, np.ndarray]
    num_steps: int
    metrics: Mapping[str, float]
    """Must hold "pseudo_labels" and "credible", counts of the client's labelled samples (0 where a method has
    none); losses are named "loss_…"."""


@dataclass(frozen=True)
class Folded:
    state: State
    delta_norm: float
    reference_norm: float
    effort: float
    """lr × steps behind the increment, for the convergence monitor"""
    notes: tuple[str, ...] = ()


class Fold(Protocol):
    """What makes the next version out of this one: takes updates in any order, keeps none of them."""

    def add(
        self, update: Mapping[str, Tensor], num_steps: int, base_version: int, weight: float = 1.0
    ) -> Verdict:
        """`base_version` is the one that the client started from; 0 < `weight` ≤ 1 is its say in the mean."""

    def close(self) -> Folded: ...


class Method(Protocol):
    device: torch.device
    micro_batch: int | None
    """A client trains so many samples at a time, their gradients adding up to the batch's; None: the whole batch.
    For a device with too little memory: the last bits differ, and with batch norm the statistics do."""
    check_stop: Callable[[], None]
    """Called now and then while the server trains; raises where it shall stop. Nothing of that step is kept then."""

    def initial_state(self, labelled: Samples) -> State: ...

    def server_step(self, state: State, labelled: Samples, round_number: int) -> ServerStep: ...

    def open_fold(self, state: State, bases: Mapping[int, Mapping[str, Tensor]], version: int) -> Fold:
        """`bases` are the broadcasts that updates may have started from, by version; `version` is the one whose
        θ′ moves, and among them. In a synchronous round it is the only one."""

    def client_step(
        self,
        broadcast: Mapping[str, Tensor],
        inputs: Tensor,
        ledger: Mapping[str, np.ndarray] | None,
        round_number: int,
        client: int,
    ) -> ClientResult: ...

    def models(self, state: State, broadcast: Mapping[str, Tensor], labelled: Samples) -> dict[str, Weights]:
        """What to evaluate after a round, by name; "global" is the one that ships."""
