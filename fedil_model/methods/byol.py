"""BYOL (arXiv 2006.07733) at the clients, which FedU and FedEMA share.

f is the network with its projector, h the predictor. The online networks f and h predict what the target network f_t
makes of another view of the same sample; f_t follows f as a moving average, and no gradient goes through it. Both views
pass through a network together, so that its batch norm sees both.
B batch, F size of a projection, P parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedil_model.data.augment.distortion import SIMCLR
from fedil_model.data.datasets.interface import Samples
from fedil_model.errors import StateError
from fedil_model.methods.averaging import AveragingFold
from fedil_model.methods.base import split_batch
from fedil_model.methods.declared import chart, client_share, loss_series
from fedil_model.methods.interface import (
    Activation,
    Answer,
    Arrays,
    Bases,
    ClientResult,
    ClientValue,
    Display,
    MethodContext,
    Series,
    State,
    Tensors,
    Verdict,
)
from fedil_model.methods.self_supervised import (
    FITTED_MODELS,
    UPDATES_CHART,
    HeadSettings,
    SelfSupervised,
    client_losses_chart,
    distorted_view,
)
from fedil_model.networks import features_of
from fedil_model.networks.heads import mlp_head
from fedil_model.training.flat_model import Weights, from_arrays, to_arrays

MOST_DIVERGENCE = 5.0
"""Drawn, and kept of what a client reports"""


class ByolSettings(HeadSettings):
    momentum: float = Field(default=0.99, ge=0.0, le=1.0)
    """m: after each step f_t ← m·f_t + (1 − m)·f."""
    max_age: int | None = Field(default=None, ge=1)
    """A client that last trained more than this many rounds ago begins as if it had never trained: what it kept is too
    far from the model that it receives. Not set: it always uses what it kept."""


DEFAULT_PROFILE: dict[str, Any] = {
    "network": {"norm": "auto"},
    "client": {"lr_schedule": "cosine", "clip_norm": 1.0},
}
PUBLISHED_PROFILE: dict[str, Any] = {
    "network": {"norm": "bn"},
    "client": {
        "epochs": 5,
        "batch_size": 128,
        "lr": 0.032,
        "lr_schedule": "cosine",
        "nesterov": False,
        "clip_norm": 0.0,
    },
    "method": {"hidden": 4096, "output": 2048},
}


_OWN_SHARE = "Share that a client's own weights have in what it begins with."


def byol_display(own_share_help: str, threshold: float | None = None, threshold_if: str = "") -> Display:
    """`threshold`: the divergence from which a client keeps its own predictor, which the setting `threshold_if` says"""
    return Display(
        models=FITTED_MODELS,
        charts=(
            UPDATES_CHART,
            client_losses_chart(
                loss_series("byol", "BYOL", "Distance of predictions from the target's projections, 0 to 8.")
            ),
            chart(
                "Divergence",
                "How far local training moves the network's weights, on average over its weight tensors.",
                Series(
                    "divergence",
                    "divergence",
                    "Mean norm of the change of a weight tensor in local training.",
                    source="client_mean",
                    unit="norm",
                ),
            ),
            chart("Own weights", own_share_help, client_share("own_share", "own", _OWN_SHARE, "own %")),
        ),
        client_values=(
            ClientValue(
                "divergence",
                "divergence",
                "How far local training moved the network's weights, as the client reports it.",
                low=0.0,
                high=MOST_DIVERGENCE,
                threshold=threshold,
                threshold_if=threshold_if,
                buckets=(0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, MOST_DIVERGENCE),
            ),
        ),
    )


def byol_loss(predictions_BF: Tensor, projections_BF: Tensor) -> Tensor:
    """2 − 2·cos, mean over samples: the squared distance between unit vectors."""
    return 2.0 - 2.0 * functional.cosine_similarity(predictions_BF, projections_BF).mean()


@dataclass(frozen=True)
class Start:
    """What an activation begins with."""

    online: Weights
    target: Weights
    own_share: float
    """Of the client's own weights in `online`"""


class Byol(SelfSupervised):
    _settings: ByolSettings

    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        self._view = distorted_view(context.views, SIMCLR)

    def _make_heads(self, num_features: int) -> tuple[nn.Module, nn.Module]:
        hidden, output = self._settings.hidden, self._settings.output
        return mlp_head(num_features, hidden, output), mlp_head(output, hidden, output)

    # ---- what FedU and FedEMA do in their own ways ------------------------------------------------------------------

    def _begin(self, received: Weights, kept: Tensors) -> Start:
        """From what this client received and what it kept, which is not too old"""
        raise NotImplementedError

    def _keep(self, kept: Tensors | None, trained: Weights, divergence: Tensor) -> Tensors:
        """What this client keeps besides its target, the divergence and the round"""
        raise NotImplementedError

    def _sizes(self) -> Mapping[str, int]:
        """Of the vectors that `_keep` may return"""
        raise NotImplementedError

    # ---- a client --------------------------------------------------------------------------------------------------

    def client_step(self, activation: Activation) -> ClientResult:
        received, inputs = Weights.named(activation.broadcast, "online"), activation.inputs
        kept = None if activation.state is None else self._read(activation.state)
        is_fresh = kept is not None and self._is_fresh(kept, activation.round_number)
        start = self._begin(received, kept) if kept and is_fresh else Start(received, received, 0.0)
        total = torch.zeros((), device=self.device)
        with (
            self._client_training(activation, start.online) as (optimiser, generator),
            self._teacher.temporarily_loaded(),
        ):
            self._teacher.load(start.target)
            self._teacher.module.train()
            for batch in self._client_batches(len(inputs), generator):
                raw = inputs.index_select(0, batch)
                # All of a batch's views at once: what is drawn does not depend on the parts it is trained in.
                first_B, second_B = self._view(raw, generator), self._view(raw, generator)
                optimiser.zero_grad()
                for first, second in split_batch(self.micro_batch, first_B, second_B):
                    total += self._learn(torch.cat([first, second]), len(first) / len(batch))
                optimiser.step()
                self._teacher.move_towards(self._student, 1.0 - self._settings.momentum, buffers=False)
            trained, target = self._student.weights(), self._teacher.weights()
        loss = float(total) / optimiser.num_steps
        divergence = self._divergence(trained.params - start.online.params)
        delta = self._take_delta(activation, received, [loss])
        state = {
            "round": torch.tensor([float(activation.round_number)]),
            "divergence": divergence[None],
            "target.params": target.params[~self._predictor_marks],
            "target.buffers": target.buffers,
            **self._keep(kept, trained, divergence),
        }
        metrics = {"loss_byol": loss, "divergence": float(divergence), "own_share": start.own_share}
        return ClientResult(delta.tensors("delta"), to_arrays(state), optimiser.num_steps, metrics)

    def _learn(self, views_2B: Tensor, share: float) -> Tensor:
        """Adds the gradient of samples of which both views are given, and returns their part of the batch's loss."""
        targets_first, targets_second = self._compute_target(views_2B).chunk(2)
        first, second = self._compute(self._heads.predict, views_2B).chunk(2)
        loss = (byol_loss(first, targets_second) + byol_loss(second, targets_first)) * share
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _divergence(self, moved_P: Tensor) -> Tensor:
        """Mean norm over the weight tensors of the network, without its last layer, which is not trained here."""
        network = self._heads.network
        places, last = self._student.places_of(network), self._student.places_of(features_of(network)[1])
        tensors = [place for place in places if place.stop <= self._student.num_decayed and place not in last]
        norms = [torch.linalg.vector_norm(moved_P[place]) for place in tensors]
        return torch.stack(norms).mean() if norms else moved_P.new_zeros(())

    # ---- what a client keeps ---------------------------------------------------------------------------------------

    @cached_property
    def _predictor_marks(self) -> Tensor:
        """Marks the parameters of h; the others are those of f."""
        marks_P = torch.zeros(self._student.num_params, dtype=torch.bool, device=self.device)
        for place in self._student.places_of(self._heads.predictor):
            marks_P[place] = True
        return marks_P

    @property
    def _num_predictor(self) -> int:
        return int(self._predictor_marks.sum())

    def _with(self, params_P: Tensor, *, f: Tensor | None = None, h: Tensor | None = None) -> Tensor:
        """A copy with other parameters of f or of h"""
        params_P = params_P.clone()
        if f is not None:
            params_P[~self._predictor_marks] = f
        if h is not None:
            params_P[self._predictor_marks] = h
        return params_P

    def _kept_target(self, received: Weights, kept: Tensors) -> Weights:
        return Weights(self._with(received.params, f=kept["target.params"]), kept["target.buffers"])

    def _is_fresh(self, kept: Tensors, round_number: int) -> bool:
        max_age = self._settings.max_age
        return max_age is None or round_number - int(kept["round"]) <= max_age

    def _read(self, state: Arrays) -> Tensors:
        needed = {
            "round": 1,
            "divergence": 1,
            "target.params": self._student.num_params - self._num_predictor,
            "target.buffers": len(self._student.buffers()),
        }
        sizes = {**needed, **self._sizes()}
        found = {name: array.shape for name, array in state.items()}
        if needed.keys() - found.keys() or any(shape != (sizes.get(name),) for name, shape in found.items()):
            raise StateError(f"what the client kept has shapes {found}, and the network needs sizes {sizes}")
        return from_arrays(state, self.device)

    # ---- the server ------------------------------------------------------------------------------------------------

    def open_fold(self, state: State, bases: Bases, version: int, labelled: Samples) -> "ByolFold":  # noqa: ARG002
        return self._fold(ByolFold, state, bases, version)


class ByolFold(AveragingFold):
    """The mean of the clients' networks. A client's divergence is its own word: it is shown, and decides nothing."""

    def add(self, answer: Answer) -> Verdict:
        verdict, divergence = super().add(answer), answer.metrics.get("divergence")
        if divergence is None:
            return verdict
        return replace(verdict, values={"divergence": min(max(divergence, 0.0), MOST_DIVERGENCE)})
