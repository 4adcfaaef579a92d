"""SemiFL (arXiv 2106.01432): pseudo-labels from the received model, and training on labels after every average.

"global" is the fine-tuned model, which clients receive and which ships; "aggregate" is the average before that.
Adapted: static statistics are those of the server's labelled samples, since no message asks clients for theirs, and an
activation begins with a fresh optimiser. With profile `paper` nothing is trained before round 1.
N samples of the client, F of them confident, B batch, C classes.
"""

from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from fedil_model.data.datasets.interface import Samples
from fedil_model.methods.averaging import AveragingFold, norm_of
from fedil_model.methods.base import AveragingMethod, split_batch
from fedil_model.methods.declared import (
    CLIENT_NORM,
    CONFIDENT_BY_CLIENT,
    SHARED_OPTIMISERS,
    chart,
    confident_chart,
    loss_series,
    losses_chart,
)
from fedil_model.methods.interface import (
    Activation,
    Answer,
    Bases,
    ClientResult,
    Display,
    MethodSpec,
    Model,
    Outcome,
    RoundEnd,
    ServerStep,
    State,
    Tensors,
    Verdict,
)
from fedil_model.settings import MethodSettings, merge
from fedil_model.training.evaluate import evaluating
from fedil_model.training.flat_model import Weights

NOTHING_CONFIDENT = "nothing_confident"
_AT_A_TIME = 500
"""Samples, while pseudo-labels are made"""


class FineTunedSettings(MethodSettings):
    server_momentum: float = Field(default=0.5, ge=0.0, lt=1.0)
    """Momentum on the mean update: 0.5 adds half of the round before."""


class SemiFLSettings(FineTunedSettings):
    threshold: float = Field(default=0.95, ge=0.0, le=1.0)
    """τ: a sample is trained on if the received model is at least this sure of its weak view."""
    mixup: float = Field(default=0.75, gt=0.0)
    """a: λ of a batch is drawn from Beta(a, a)."""
    weight_mix: float = Field(default=1.0, ge=0.0)
    """Weight of the mixed samples' loss; 0 leaves FixMatch's."""


_PAPER: dict[str, Any] = merge(SHARED_OPTIMISERS, {"network": {"norm": "sbn"}})
PROFILES: dict[str, dict[str, Any]] = {
    # In tens of rounds, instead of the published hundreds, clients would wait for a sure model in most of them.
    "semifl": merge(_PAPER, {"server": {"pretrain_epochs": 50}}),
    "paper": _PAPER,
}

UPDATES = chart("Updates", "How far clients move the model that they receive.", CLIENT_NORM, log=True)
LOSS_FIX = loss_series("fix", "strong views", "Cross-entropy of strong views against pseudo-labels.")
DISPLAY = Display(
    models=(
        Model("global", "global model", "the clients' average, fine-tuned on the labelled samples"),
        Model(
            "aggregate",
            "average model",
            "the average of the clients' models, before training on the labelled samples",
        ),
    ),
    charts=(
        UPDATES,
        losses_chart(
            LOSS_FIX,
            loss_series(
                "mix", "mixed samples", "Cross-entropy of mixed samples against both of their labels."
            ),
        ),
        confident_chart("sure %"),
    ),
    client_values=(CONFIDENT_BY_CLIENT,),
    outcomes=(
        Outcome(
            NOTHING_CONFIDENT, "nothing confident", "The client has no confident sample, and did not train."
        ),
    ),
)


def spec() -> MethodSpec:
    return MethodSpec(
        title="SemiFL",
        reference="https://arxiv.org/abs/2106.01432",
        settings=SemiFLSettings,
        make=SemiFL,
        display=DISPLAY,
        profiles=PROFILES,
    )


def mix_loss(logits_BC: Tensor, labels_B: Tensor, other_labels_B: Tensor, share: float) -> Tensor:
    """Of samples of which `share` has one label and the rest the other."""
    return share * functional.cross_entropy(logits_BC, labels_B) + (1.0 - share) * functional.cross_entropy(
        logits_BC, other_labels_B
    )


class FineTunedAverage(AveragingMethod):
    """The server's part: the average of a round is trained on the labelled samples, which gives the model that clients
    receive. Clients predict their samples with it once, before they train."""

    def initial_state(self, labelled: Samples) -> State:
        state = super().initial_state(labelled)
        return {**state, "momentum": torch.zeros_like(state["global.params"])}

    def server_step(self, state: State, labelled: Samples, round_number: int) -> ServerStep:  # noqa: ARG002
        """The model is as `end_round` left it, with its static statistics."""
        return ServerStep(state, Weights.named(state, "global").tensors("global"))

    def _predict(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        """Probabilities of every sample: one pass of the received model over weak views."""
        with evaluating(self._student.module):
            parts = [
                self._logits(part)
                for raw in torch.split(inputs, _AT_A_TIME)
                for (part,) in split_batch(self.micro_batch, self._views.weak(raw, generator))
            ]
        return torch.cat(parts).softmax(1)

    def end_round(self, state: State, broadcast: Tensors, labelled: Samples, round_number: int) -> RoundEnd:
        average = Weights.named(state, "global").to(self.device)
        aggregate = self._refreshed(average, labelled)
        self._student.load(average)
        tuned, done = self._train_on_labels(labelled, round_number)
        before = Weights.named(broadcast, "global").to(self.device)
        return RoundEnd(
            {**state, **tuned.tensors("global")},
            {"global": tuned, "aggregate": aggregate},
            metrics={"loss_server": done.loss},
            delta_norm=norm_of(tuned.params - before.params),
        )


class SemiFL(FineTunedAverage):
    _settings: SemiFLSettings

    def client_step(self, activation: Activation) -> ClientResult:
        """Without a confident sample: no step, and an update without tensors."""
        received, inputs = Weights.named(activation.broadcast, "global"), activation.inputs
        losses = torch.zeros(2, device=self.device)
        with self._client_training(activation, received) as (optimiser, generator):
            confidence_N, labels_N = self._predict(inputs, generator).max(1)
            sure_F = (confidence_N >= self._settings.threshold).nonzero()[:, 0]
            if len(sure_F) == 0:
                self._student.release()
                return ClientResult({}, {}, 0, {"sure_share": 0.0})
            shares = np.random.default_rng(self._seed("mix", activation.round_number, activation.client))
            for batch in self._client_batches(len(sure_F), generator):
                share = float(shares.beta(self._settings.mixup, self._settings.mixup))
                optimiser.zero_grad()
                losses += self._learn(inputs, labels_N, sure_F[batch], share, generator)
                optimiser.step()
        fix, mix = (losses / optimiser.num_steps).tolist()
        delta = self._take_delta(activation, received, [fix, mix])
        metrics = {"loss_fix": fix, "loss_mix": mix, "sure_share": len(sure_F) / len(inputs)}
        return ClientResult(delta.tensors("delta"), {}, optimiser.num_steps, metrics)

    def _learn(
        self, inputs: Tensor, labels_N: Tensor, sure_B: Tensor, share: float, generator: torch.Generator
    ) -> Tensor:
        """Adds the gradient of one batch of confident samples, each mixed with any sample of the client. Returns the
        loss of strong views and that of mixed ones."""
        any_B = torch.randint(len(inputs), (len(sure_B),), generator=generator).to(inputs.device)
        raw = inputs.index_select(0, sure_B)
        # All of a batch's views at once: what is drawn does not depend on the parts it is trained in.
        strong_B, weak_B = self._views.strong(raw, generator), self._views.weak(raw, generator)
        other_B = self._views.weak(inputs.index_select(0, any_B), generator)
        mixed_B = share * weak_B + (1.0 - share) * other_B
        total = torch.zeros(2, device=self.device)
        columns = (strong_B, mixed_B, labels_N[sure_B], labels_N[any_B])
        for strong, mixed, labels, other_labels in split_batch(self.micro_batch, *columns):
            # In two passes, as published: batch norm has statistics of strong views and others of mixed samples.
            fix = functional.cross_entropy(self._logits_of_any(strong), labels)
            mix = mix_loss(self._logits_of_any(mixed), labels, other_labels, share)
            losses = torch.stack([fix, mix]) * (len(labels) / len(sure_B))
            (losses[0] + self._settings.weight_mix * losses[1]).backward()  # type: ignore[no-untyped-call]
            total += losses.detach()
        return total

    def open_fold(self, state: State, bases: Bases, version: int, labelled: Samples) -> "SemiFLFold":  # noqa: ARG002
        return self._fold(SemiFLFold, state, bases, version, momentum=self._settings.server_momentum)


class SemiFLFold(AveragingFold):
    def add(self, answer: Answer) -> Verdict:
        """A client that did not train has no part in the mean."""
        if answer.num_steps == 0:
            return Verdict(
                NOTHING_CONFIDENT, "no sample is confident enough to train on", {"sure_share": 0.0}
            )
        return super().add(answer)
