"""FedAvg, or FedProx, with FixMatch at the clients: the simplest combination for labels at the server.

The server trains on its labelled samples and broadcasts the result; clients train it on pseudo-labels; the server
averages, and does not train after the average. "global" is the average in the state, and in a broadcast what the
server made of it. B batch, C classes.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedil_model.data.datasets.interface import Samples
from fedil_model.methods.averaging import AveragingFold, norm_of
from fedil_model.methods.base import MethodBase, split_batch
from fedil_model.methods.declared import (
    CLIENT_NORM,
    CONFIDENT_BY_CLIENT,
    SERVER_NORM,
    SHARED_OPTIMISERS,
    confident_chart,
    loss_series,
    losses_chart,
)
from fedil_model.methods.interface import (
    Activation,
    Chart,
    ClientResult,
    Display,
    MethodContext,
    MethodSpec,
    Model,
    RoundEnd,
    ServerStep,
    State,
    Tensors,
)
from fedil_model.settings import MethodSettings, merge
from fedil_model.training.flat_model import Weights


class FixMatchSettings(MethodSettings):
    threshold: float = Field(default=0.95, ge=0.0, le=1.0)
    """τ: a sample trains on the label of its weak view if the model being trained is at least this sure of it."""
    proximal: float = Field(default=0.0, ge=0.0)
    """FedProx's μ: adds μ/2·‖θ − θ received‖² to the clients' loss; 0 is FedAvg."""
    weighting: Literal["uniform", "samples"] = "uniform"
    """Updates count the same, or by their clients' numbers of samples. Where the clients' data are elsewhere those are
    the clients' own word: "samples" then is for sites that you trust."""
    server_momentum: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Momentum on the mean update."""


PROFILES: dict[str, dict[str, Any]] = {
    "paper": merge(SHARED_OPTIMISERS, {"network": {"norm": "gn"}}),
    "fedprox": merge(SHARED_OPTIMISERS, {"network": {"norm": "gn"}, "method": {"proximal": 0.01}}),
}

DISPLAY = Display(
    models=(
        Model("global", "average", "the average of the clients' models after the round"),
        Model(
            "server", "server's", "the last average trained on the labelled samples, which clients receive"
        ),
    ),
    charts=(
        Chart(
            "Steps",
            "How far training moves the model, at the server and at the clients.",
            (SERVER_NORM, CLIENT_NORM),
            log=True,
        ),
        losses_chart(
            loss_series("pseudo", "pseudo-labels", "Cross-entropy of strong views against pseudo-labels.")
        ),
        confident_chart("sure %"),
    ),
    client_values=(CONFIDENT_BY_CLIENT,),
)


def spec() -> MethodSpec:
    return MethodSpec(
        title="FedAvg + FixMatch",
        reference="https://arxiv.org/abs/2001.07685",
        settings=FixMatchSettings,
        make=FedAvgFixMatch,
        display=DISPLAY,
        profiles=PROFILES,
    )


def fixmatch_loss(
    logits_weak_BC: Tensor, logits_strong_BC: Tensor, threshold: float
) -> tuple[Tensor, Tensor]:
    """(loss, number of confident samples). The mean is over the whole batch: a sample that is not confident counts as
    zero. Labels carry no gradient."""
    confidence_B, labels_B = logits_weak_BC.detach().softmax(1).max(1)
    sure_B = confidence_B >= threshold
    losses_B = functional.cross_entropy(logits_strong_BC, labels_B, reduction="none")
    return (losses_B * sure_B).mean(), sure_B.sum()


class FedAvgFixMatch(MethodBase):
    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        assert isinstance(context.learning.method, FixMatchSettings)
        self._settings = context.learning.method

    def initial_state(self, labelled: Samples) -> State:
        weights = self._pretrain(labelled)
        if self._settings.server_momentum == 0.0:
            return weights.tensors("global")
        return weights.tensors("global") | {"momentum": torch.zeros_like(weights.params)}

    def server_step(self, state: State, labelled: Samples, round_number: int) -> ServerStep:
        before = Weights.named(state, "global").to(self.device)
        self._student.load(before)
        trained, done = self._train_on_labels(labelled, round_number)
        metrics = {"loss_server": done.loss, "server_norm": norm_of(trained.params - before.params)}
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
        loss, num_sure = fixmatch_loss(logits_weak_BC, logits_strong_BC, self._settings.threshold)
        loss = loss * share
        loss.backward()  # type: ignore[no-untyped-call]
        return torch.stack([loss.detach(), num_sure])

    def _add_proximal_gradient(self, received: Weights) -> None:
        if self._settings.proximal > 0.0:
            self._student.grads.add_(self._student.params - received.params, alpha=self._settings.proximal)

    def open_fold(
        self,
        state: State,
        bases: Mapping[int, Tensors],
        version: int,
        labelled: Samples,  # noqa: ARG002
    ) -> AveragingFold:
        return AveragingFold(
            self._learning,
            state,
            bases,
            version,
            variances_Q=self._variances(),
            momentum=self._settings.server_momentum,
            by_samples=self._settings.weighting == "samples",
        )

    def end_round(
        self,
        state: State,
        broadcast: Tensors,
        labelled: Samples,
        round_number: int,  # noqa: ARG002
    ) -> RoundEnd:
        average = self._refreshed(Weights.named(state, "global"), labelled)
        return RoundEnd(state, {"global": average, "server": Weights.named(broadcast, "global")})
