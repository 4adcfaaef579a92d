"""FedIL (arXiv 2302.11823): Algorithm 1 at the server; Algorithm 2 is in client.py, eq. 24-26 in fold.py.

θ′ is "global", θ₀ is "server", θ* − θ′ is "delta".
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedil_model.data.datasets.interface import Samples
from fedil_model.methods.fedil.client import LABEL_SHARES, ClientTraining
from fedil_model.methods.fedil.fold import FedILFold
from fedil_model.methods.fedil.gate import EXCESS_LOSSES, MOVEMENT, MOVEMENT_COSINES, LabelGate
from fedil_model.methods.fedil.shares import shares_of
from fedil_model.methods.interface import RoundEnd, ServerStep, State, Tensors
from fedil_model.training.evaluate import predict_logits
from fedil_model.training.flat_model import Weights
from fedil_model.training.optimiser import decay_factor, learning_rate

_TRIED_ON = 250
"""Labelled samples, about, that an update is tried on: enough to tell, and more would take as long as training"""


class FedIL(ClientTraining):
    def initial_state(self, labelled: Samples) -> State:
        weights = self._pretrain(labelled)
        state: dict[str, Tensor] = {**weights.tensors("global")}
        if self._settings.server_momentum > 0.0:
            state["momentum"] = torch.zeros_like(weights.params)
        if self._settings.loss_margin > 0.0:
            state[EXCESS_LOSSES] = torch.zeros(0, dtype=torch.float64)
        if self._settings.movement_filter:
            state[MOVEMENT] = torch.zeros_like(weights.params)
            state[MOVEMENT_COSINES] = torch.zeros(0, dtype=torch.float64)
        if self._settings.ema_decay > 0.0:
            state.update(weights.clone().tensors("ema"))
        state["empty_rounds"] = torch.zeros((), dtype=torch.int64)
        return state

    def server_step(self, state: State, labelled: Samples, round_number: int) -> ServerStep:
        """Eq. 22: θ₀ is θ′ trained on the labelled data."""
        kept = Weights.named(state, "global").to(self.device)
        self._student.load(kept)
        self._refresh(labelled)
        global_ = Weights(kept.params, self._student.buffers())
        server, done = self._train_on_labels(labelled, round_number)
        # What decay alone does to θ₀; the cosine must not count it as agreement.
        settings = self._learning.server
        lr = learning_rate(settings, round_number, self._learning.rounds)
        decay = torch.tensor(decay_factor(settings, lr, done.num_steps), dtype=torch.float64)
        tensors = global_.tensors("global") | server.tensors("server") | {"server_decay": decay}
        if self._settings.prior_temperature > 0.0:
            tensors[LABEL_SHARES] = shares_of(labelled.labels, self._context.num_classes)
        return ServerStep(state, tensors, {"loss_server": done.loss})

    def open_fold(
        self, state: State, bases: Mapping[int, Tensors], version: int, labelled: Samples
    ) -> FedILFold:
        gate = None
        if self._settings.loss_margin > 0.0 or self._settings.movement_filter:
            loss = partial(self._loss, _some(labelled))
            seed = self._seed("gate", version)
            gate = LabelGate(self._settings, loss, state, self._context.num_classes, seed)
        num_decayed, variances_Q = self._student.num_decayed, self._variances()
        return FedILFold(
            self._learning, self._settings, state, bases, version, num_decayed, variances_Q, gate
        )

    def _loss(self, labelled: Samples, weights: Weights) -> float:
        """Of a model on labelled samples"""
        refreshed = self._refreshed(weights, labelled)
        with self._student.temporarily_loaded():
            self._student.load_view(refreshed)
            precision = self._learning.autocast
            logits = predict_logits(self._student.module, labelled.inputs, self._views, precision=precision)
        return float(cross_entropy(logits.double(), labelled.labels))

    def end_round(
        self,
        state: State,
        broadcast: Tensors,
        labelled: Samples,
        round_number: int,  # noqa: ARG002
    ) -> RoundEnd:
        models = {
            name: self._refreshed(Weights.named(state, name), labelled)
            for name in ("global", "ema")
            if f"{name}.params" in state
        }
        return RoundEnd(state, models | {"server": Weights.named(broadcast, "server")})


def _some(labelled: Samples) -> Samples:
    """Every class with its share"""
    step = -(-len(labelled.labels) // _TRIED_ON)
    rows = labelled.labels.argsort(stable=True)[::step]
    return Samples(labelled.inputs[rows], labelled.labels[rows])
