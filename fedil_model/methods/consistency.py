"""FedAvg, or FedProx, with FixMatch or UDA at the clients: the simplest combinations for labels at the server.

The server trains on its labelled samples and broadcasts the result; clients train it so that it predicts for strong
views what it predicts for weak ones; the server averages, and does not train after the average. "global" is the average
in the state, and in a broadcast what the server made of it. The four methods differ in their profiles.

Adapted: both losses were published for one machine with a labelled and an unlabelled batch in every step. Here the
labelled steps are the server's. UDA's training-signal annealing therefore counts rounds. B batch, C classes.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedil_model.data.datasets.interface import Samples
from fedil_model.methods.averaging import AveragingFold
from fedil_model.methods.base import AveragingMethod, split_batch
from fedil_model.methods.declared import (
    CONFIDENT_BY_CLIENT,
    SHARED_OPTIMISERS,
    confident_chart,
    loss_series,
    losses_chart,
    steps_chart,
)
from fedil_model.methods.interface import (
    Activation,
    Bases,
    ClientResult,
    Display,
    MethodSpec,
    Model,
    RoundEnd,
    ServerStep,
    State,
    Tensors,
)
from fedil_model.settings import MethodSettings, merge
from fedil_model.training.flat_model import Weights


class ConsistencySettings(MethodSettings):
    loss: Literal["fixmatch", "uda"] = "fixmatch"
    """Loss of strong views: against the label of the weak view ("fixmatch"), or against its sharpened probabilities
    ("uda")."""
    threshold: float = Field(default=0.95, ge=0.0, le=1.0)
    """τ: a sample trains on the prediction for its weak view if the model being trained is at least this sure of it."""
    temperature: float = Field(default=0.4, gt=0.0)
    """UDA's T: the logits of weak views are divided by it; below 1 it sharpens."""
    annealing: Literal["off", "log", "linear", "exp"] = "off"
    """UDA's training-signal annealing, at the server: a labelled sample counts only while the probability of its label
    is at most a ceiling, which grows from about 1/C to 1 over the rounds: soon, evenly or late. With "exp" the ceiling
    of ten classes is below the clients' threshold of 0.8 in 94 % of the rounds."""
    proximal: float = Field(default=0.0, ge=0.0)
    """FedProx's μ: adds μ/2·‖θ − θ received‖² to the clients' loss; 0 is FedAvg."""
    weighting: Literal["uniform", "samples"] = "uniform"
    """Updates count the same ("uniform"), or by their clients' numbers of samples ("samples"). Where the clients' data
    are elsewhere those are the clients' own word: "samples" then is for sites that you trust."""
    server_momentum: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Momentum on the mean update: 0.5 adds half of the round before."""


_USUAL: dict[str, Any] = merge(SHARED_OPTIMISERS, {"network": {"norm": "gn"}})
_FEDPROX = {"proximal": 0.01}
_FIXMATCH: dict[str, dict[str, Any]] = {"paper": {}}
_UDA: dict[str, dict[str, Any]] = {
    # The authors' scripts for images have no annealing on one GPU, and "linear" on TPUs with 500 labels or more.
    # FedMatch's tables have "exp".
    "uda": {"loss": "uda", "threshold": 0.8},
    "paper": {"loss": "uda", "threshold": 0.8, "annealing": "linear"},
}

DISPLAY = Display(
    models=(
        Model("global", "global model", "the average of the clients' models after the round"),
        Model(
            "server",
            "server model",
            "the last average trained on the labelled samples, which clients receive",
        ),
    ),
    charts=(
        steps_chart(),
        losses_chart(
            loss_series("pseudo", "strong views", "Loss of strong views against predictions for weak ones.")
        ),
        confident_chart("sure %"),
    ),
    client_values=(CONFIDENT_BY_CLIENT,),
)


def _spec(title: str, reference: str, profiles: Mapping[str, dict[str, Any]], **method: Any) -> MethodSpec:
    """`profiles` of the method's own settings, each with `method` on top"""
    return MethodSpec(
        title=title,
        reference=f"https://arxiv.org/abs/{reference}",
        settings=ConsistencySettings,
        make=Consistency,
        display=DISPLAY,
        profiles={name: merge(_USUAL, {"method": {**own, **method}}) for name, own in profiles.items()},
    )


def fedavg_fixmatch() -> MethodSpec:
    return _spec("FedAvg + FixMatch", "2001.07685", _FIXMATCH)


def fedprox_fixmatch() -> MethodSpec:
    return _spec("FedProx + FixMatch", "2001.07685", _FIXMATCH, **_FEDPROX)


def fedavg_uda() -> MethodSpec:
    return _spec("FedAvg + UDA", "1904.12848", _UDA)


def fedprox_uda() -> MethodSpec:
    return _spec("FedProx + UDA", "1904.12848", _UDA, **_FEDPROX)


def fixmatch_loss(
    logits_weak_BC: Tensor, logits_strong_BC: Tensor, threshold: float
) -> tuple[Tensor, Tensor]:
    """(loss, number of confident samples). The mean is over the whole batch: a sample that is not confident counts as
    zero. Labels carry no gradient."""
    confidence_B, labels_B = logits_weak_BC.detach().softmax(1).max(1)
    sure_B = confidence_B >= threshold
    losses_B = functional.cross_entropy(logits_strong_BC, labels_B, reduction="none")
    return (losses_B * sure_B).mean(), sure_B.sum()


def uda_loss(
    logits_weak_BC: Tensor, logits_strong_BC: Tensor, threshold: float, temperature: float
) -> tuple[Tensor, Tensor]:
    """The same with KL(sharpened prediction for the weak view ‖ prediction for the strong view): its gradient is that
    of the cross-entropy. Samples are confident by the prediction before it is sharpened."""
    weak_BC = logits_weak_BC.detach()
    sure_B = weak_BC.softmax(1).amax(1) >= threshold
    log_targets_BC = (weak_BC / temperature).log_softmax(1)
    losses_B = functional.kl_div(
        logits_strong_BC.log_softmax(1), log_targets_BC, reduction="none", log_target=True
    ).sum(1)
    return (losses_B * sure_B).mean(), sure_B.sum()


def annealing_ceiling(schedule: str, round_number: int, rounds: int, num_classes: int) -> float:
    """a·(1 − 1/C) + 1/C, where a in round t of T is exp(5·(t/T − 1)), t/T or 1 − exp(−5·t/T)"""
    if schedule == "off":
        return 1.0
    done = min(round_number / rounds, 1.0)
    shares = {"exp": math.exp(5.0 * (done - 1.0)), "linear": done, "log": 1.0 - math.exp(-5.0 * done)}
    return shares[schedule] * (1.0 - 1.0 / num_classes) + 1.0 / num_classes


class Consistency(AveragingMethod):
    _settings: ConsistencySettings

    def initial_state(self, labelled: Samples) -> State:
        weights = self._pretrain(labelled)
        if self._settings.server_momentum == 0.0:
            return weights.tensors("global")
        return weights.tensors("global") | {"momentum": torch.zeros_like(weights.params)}

    def server_step(self, state: State, labelled: Samples, round_number: int) -> ServerStep:
        rounds, num_classes = self._learning.rounds, self._context.num_classes
        ceiling = annealing_ceiling(self._settings.annealing, round_number, rounds, num_classes)
        _, trained, metrics = self._step_on_labels(state, labelled, round_number, ceiling=ceiling)
        return ServerStep(state, trained.tensors("global"), metrics)

    def client_step(self, activation: Activation) -> ClientResult:
        received, inputs = Weights.named(activation.broadcast, "global"), activation.inputs
        total = torch.zeros(2, device=self.device)
        with self._client_training(activation, received) as (optimiser, generator):
            for batch in self._client_batches(len(inputs), generator):
                raw = inputs.index_select(0, batch)
                # All of a batch's views at once: what is drawn does not depend on the parts it is trained in.
                weak_B, strong_B = self._views.weak(raw, generator), self._views.strong(raw, generator)
                optimiser.zero_grad()
                for weak, strong in split_batch(self.micro_batch, weak_B, strong_B):
                    total += self._learn(weak, strong, len(weak) / len(batch))
                self._add_proximal_gradient(received)
                optimiser.step()
        loss, num_sure = (float(value) for value in total)
        delta = self._take_delta(activation, received, [loss])
        metrics = {
            "loss_pseudo": loss / optimiser.num_steps,
            "sure_share": num_sure / (len(inputs) * self._learning.client.epochs),
        }
        return ClientResult(delta.tensors("delta"), {}, optimiser.num_steps, metrics)

    def _learn(self, weak: Tensor, strong: Tensor, share: float) -> Tensor:
        """Adds the gradient of a part of a batch; returns its loss and its number of confident samples."""
        # In one pass, as published: batch norm then has two samples at least.
        logits_weak_BC, logits_strong_BC = self._logits(torch.cat([weak, strong])).chunk(2)
        loss, num_sure = self._loss(logits_weak_BC, logits_strong_BC)
        loss = loss * share
        loss.backward()  # type: ignore[no-untyped-call]
        return torch.stack([loss.detach(), num_sure])

    def _loss(self, logits_weak_BC: Tensor, logits_strong_BC: Tensor) -> tuple[Tensor, Tensor]:
        settings = self._settings
        if settings.loss == "fixmatch":
            return fixmatch_loss(logits_weak_BC, logits_strong_BC, settings.threshold)
        return uda_loss(logits_weak_BC, logits_strong_BC, settings.threshold, settings.temperature)

    def _add_proximal_gradient(self, received: Weights) -> None:
        if self._settings.proximal > 0.0:
            self._student.grads.add_(self._student.params - received.params, alpha=self._settings.proximal)

    def open_fold(self, state: State, bases: Bases, version: int, labelled: Samples) -> AveragingFold:  # noqa: ARG002
        momentum, by_samples = self._settings.server_momentum, self._settings.weighting == "samples"
        return self._fold(AveragingFold, state, bases, version, momentum=momentum, by_samples=by_samples)

    def end_round(self, state: State, broadcast: Tensors, labelled: Samples, round_number: int) -> RoundEnd:  # noqa: ARG002
        average = self._refreshed(Weights.named(state, "global"), labelled)
        return RoundEnd(state, {"global": average, "server": Weights.named(broadcast, "global")})
