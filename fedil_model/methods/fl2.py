"""(FL)² (arXiv 2410.23227): SemiFL with thresholds of each client's own, training against sharp minima, and an average
in which clients that are less sure count more.

Adapted: static statistics are those of the server's labelled samples, since no message asks clients for theirs. How
sure a client is, which decides its weight, is the client's own word: the server holds it to between 1/C and 1.
N samples of the client, F of them chosen, B batch, C classes, P parameters.
"""

from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor
from torch.nn import functional

from fedil_model.data.datasets.interface import Samples
from fedil_model.methods import semifl
from fedil_model.methods.averaging import on_grid
from fedil_model.methods.base import split_batch
from fedil_model.methods.declared import (
    CONFIDENT_BY_CLIENT,
    chart,
    client_share,
    confident_chart,
    loss_series,
    losses_chart,
)
from fedil_model.methods.interface import (
    Activation,
    Answer,
    Bases,
    ClientResult,
    ClientValue,
    Display,
    MethodSpec,
    State,
    Verdict,
)
from fedil_model.methods.semifl import FineTunedAverage, FineTunedSettings, SemiFLFold
from fedil_model.settings import merge
from fedil_model.training.flat_model import Weights

_SMALLEST_SCALE = 0.01
"""Of a parameter in the ascent step: one that is 0 moves as well."""


class FL2Settings(FineTunedSettings):
    sure: float = Field(default=0.95, ge=0.0, le=1.0)
    """Samples of which the received model is at least this sure take part in the training against sharp minima."""
    radius: PositiveFloat = 0.1
    """ρ: how far the ascent step goes, relative to the parameters' sizes."""
    weight_sharpness: float = Field(default=1.0, ge=0.0)
    """Weight of the divergence after the ascent step; 0 leaves it out."""
    weighting: Literal["status", "uniform"] = "status"
    """"status": an update counts 1 − its client's mean confidence. That is the client's own word: for sites that you
    trust. "uniform": updates count the same."""


PROFILES: dict[str, dict[str, Any]] = {
    "paper": merge(
        semifl.PROFILES["paper"], {"client": {"batch_size": 32}, "server": {"pretrain_epochs": 50}}
    )
}

DISPLAY = Display(
    models=semifl.DISPLAY.models,
    charts=(
        semifl.UPDATES,
        losses_chart(
            semifl.LOSS_FIX,
            loss_series(
                "sharpness", "sharpness", "Divergence of predictions when an ascent step moves the model."
            ),
        ),
        confident_chart("sure %"),
        chart(
            "Thresholds",
            "Mean confidence of the received model in a client's samples, from which its thresholds are made.",
            client_share("confidence", "mean confidence", "Mean over clients."),
        ),
    ),
    client_values=(
        CONFIDENT_BY_CLIENT,
        ClientValue(
            "confidence",
            "mean confidence",
            "Mean confidence of the received model in the client's samples, as the client reports it.",
            low=0.0,
            high=1.0,
            buckets=CONFIDENT_BY_CLIENT.buckets,
        ),
    ),
    outcomes=semifl.DISPLAY.outcomes,
)


def spec() -> MethodSpec:
    return MethodSpec(
        title="(FL)²",
        reference="https://arxiv.org/abs/2410.23227",
        settings=FL2Settings,
        make=FL2,
        display=DISPLAY,
        profiles=PROFILES,
    )


def adaptive_thresholds(probabilities_NC: Tensor) -> tuple[Tensor, Tensor]:
    """(mean confidence, threshold of each class): classes that the model predicts less often have lower ones."""
    confidence = probabilities_NC.amax(1).mean()
    expected_C = probabilities_NC.mean(0)
    return confidence, confidence * expected_C / expected_C.max()


def ascent_step(params_P: Tensor, grads_P: Tensor, num_scaled: int, radius: float) -> Tensor:
    """Adaptive SAM's: ρ·s²g / ‖s·g‖, where s is the size of each of the first parameters, and 1 for the rest: norms and
    biases. As published for biases; the scales of norms, whose size would count, lie around 1."""
    scale_P = params_P.abs().add_(_SMALLEST_SCALE)
    scale_P[num_scaled:] = 1.0
    scaled_P = scale_P * grads_P
    return scaled_P.mul(scale_P).mul_(radius / (torch.linalg.vector_norm(scaled_P) + 1e-12))


class FL2(FineTunedAverage):
    _settings: FL2Settings

    def client_step(self, activation: Activation) -> ClientResult:
        """Without a chosen sample: no step, and an update without tensors."""
        received, inputs = Weights.named(activation.broadcast, "global"), activation.inputs
        losses = torch.zeros(2, device=self.device)
        with self._client_training(activation, received) as (optimiser, generator):
            probabilities_NC = self._predict(inputs, generator)
            mean, thresholds_C = adaptive_thresholds(probabilities_NC)
            confidence_N, labels_N = probabilities_NC.max(1)
            chosen_F = (confidence_N > thresholds_C[labels_N]).nonzero()[:, 0]
            if len(chosen_F) == 0:
                self._student.release()
                return ClientResult({}, {}, 0, {"sure_share": 0.0, "confidence": float(mean)})
            for batch in self._client_batches(len(chosen_F), generator):
                rows = chosen_F[batch]
                # All of a batch's views at once: what is drawn does not depend on the parts it is trained in.
                strong_B = self._views.strong(inputs.index_select(0, rows), generator)
                optimiser.zero_grad()
                losses += self._learn(strong_B, labels_N[rows], confidence_N[rows] >= self._settings.sure)
                optimiser.step()
        fix, sharpness = (losses / optimiser.num_steps).tolist()
        delta = self._take_delta(activation, received, [fix, sharpness])
        metrics = {
            "loss_fix": fix,
            "loss_sharpness": sharpness,
            "sure_share": len(chosen_F) / len(inputs),
            "confidence": float(mean),
        }
        return ClientResult(delta.tensors("delta"), {}, optimiser.num_steps, metrics)

    def _learn(self, strong_B: Tensor, labels_B: Tensor, sure_B: Tensor) -> Tensor:
        """Adds the gradient of one batch; returns its two losses. The gradient of the sure samples' loss alone says
        where the ascent step goes."""
        grads_P = self._student.grads
        of_sure_P = torch.zeros_like(grads_P)
        total, logits_parts = torch.zeros(2, device=self.device), []
        for strong, labels, sure in split_batch(self.micro_batch, strong_B, labels_B, sure_B):
            logits_BC = self._logits_of_any(strong)
            losses_B = functional.cross_entropy(logits_BC, labels, reduction="none") / len(labels_B)
            before_P = grads_P.clone()
            (losses_B * sure).sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
            of_sure_P += grads_P - before_P
            (losses_B * ~sure).sum().backward()  # type: ignore[no-untyped-call]
            total[0] += losses_B.detach().sum()
            logits_parts.append(logits_BC.detach())
        if self._settings.weight_sharpness > 0.0 and bool(sure_B.any()):
            total[1] = self._flatten(strong_B, torch.cat(logits_parts), sure_B, of_sure_P)
        return total

    def _flatten(self, strong_B: Tensor, logits_BC: Tensor, sure_B: Tensor, of_sure_P: Tensor) -> Tensor:
        """Adds the gradient, where an ascent step leads, of the divergence from the sure samples' predictions here.
        Returns the divergence. As published its mean is over the whole batch: a sample that is not sure counts as 0."""
        params_P, total = self._student.params, torch.zeros((), device=self.device)
        here_P = params_P.clone()
        num_weights, radius = self._student.num_decayed, self._settings.radius
        params_P.add_(ascent_step(here_P, of_sure_P, num_weights, radius))
        for strong, logits, sure in split_batch(self.micro_batch, strong_B, logits_BC, sure_B):
            moved = self._logits_of_any(strong).log_softmax(1)
            divergence_B = functional.kl_div(
                moved, logits.log_softmax(1), reduction="none", log_target=True
            ).sum(1)
            divergence = (divergence_B * sure).sum() / len(sure_B)
            (self._settings.weight_sharpness * divergence).backward()  # type: ignore[no-untyped-call]
            total += divergence.detach()
        params_P.copy_(here_P)
        return total

    def open_fold(self, state: State, bases: Bases, version: int, labelled: Samples) -> "FL2Fold":  # noqa: ARG002
        fold = self._fold(FL2Fold, state, bases, version, momentum=self._settings.server_momentum)
        fold.by_status = self._settings.weighting == "status"
        fold.lowest_confidence = 1.0 / self._context.num_classes
        return fold


class FL2Fold(SemiFLFold):
    by_status: bool
    lowest_confidence: float
    """No mean of largest probabilities is lower."""

    def add(self, answer: Answer) -> Verdict:
        verdict = super().add(answer)
        if not verdict.counts:
            return verdict
        return replace(verdict, values={**verdict.values, "confidence": self._confidence(answer)})

    def _confidence(self, answer: Answer) -> float:
        """A client that does not report it counts least."""
        return min(max(answer.metrics.get("confidence", 1.0), self.lowest_confidence), 1.0)

    def _weight_of(self, answer: Answer) -> float:
        weight = super()._weight_of(answer)
        return on_grid(weight * (1.0 - self._confidence(answer))) if self.by_status else weight
