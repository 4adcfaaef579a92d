"""RSCFed (arXiv 2203.13993): means of random groups of models, weighted by distance; clients learn from mean teachers.

Adapted: the published method has labels at one or two clients. Here the server trains on the labels from the model that
clients receive, as one more client, and belongs to every group; a group is the server and three of the round's clients.
Published teachers stay at their clients between activations. With few clients in a round they are stale, so that by
default a teacher starts from the received model. Sample counts of clients are bounded by four times their median.

Memory: the server keeps all updates of a round; with teacher = "kept" every client keeps one network in the store.
B batch, C classes, P parameters, Q buffer values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedil_model.data.datasets.interface import Samples
from fedil_model.methods.averaging import check_delta, max_norm_of, norm_of, read_delta, typical_effort
from fedil_model.methods.base import AveragingMethod, split_batch
from fedil_model.methods.declared import SHARED_OPTIMISERS, chart, loss_series, losses_chart, steps_chart
from fedil_model.methods.interface import (
    ACCEPTED,
    INVALID,
    Activation,
    Answer,
    Arrays,
    Bases,
    ClientResult,
    Display,
    Folded,
    MethodSpec,
    Model,
    RoundEnd,
    Series,
    ServerStep,
    State,
    StateView,
    Tensors,
    Verdict,
)
from fedil_model.settings import Learning, MethodSettings, merge
from fedil_model.training.evaluate import evaluating
from fedil_model.training.exact_sum import MAX_ENTRY, largest_entry
from fedil_model.training.flat_model import Sizes, Weights, from_arrays, to_arrays
from fedil_model.training.optimiser import learning_rate


class RSCFedSettings(MethodSettings):
    groups: PositiveInt = 3
    """Random groups of a round; the new model is the plain mean of their models."""
    clients_per_group: PositiveInt = 3
    """Clients in a group, beside the server."""
    labelled_factor: float = Field(default=6.0, gt=0.0)
    """A labelled sample counts for so many unlabelled ones in a group's first mean, and once more in its second."""
    distance_factor: float = Field(default=100.0, ge=0.0)
    """β: in a group's second mean a model counts exp(−β·d/n), where d is its distance from the first mean and n its
    number of samples."""
    weight_consistency: float = Field(default=0.02, ge=0.0)
    """Weight of the squared distance between a client's prediction and its teacher's."""
    teacher: Literal["received", "kept"] = "kept"
    """Where a client's teacher starts: from the received model ("received"), or where its last activation ended
    ("kept")."""
    teacher_decay: float = Field(default=0.999, ge=0.0, lt=1.0)
    """Decay of the teacher's moving average; in step s it is at most 1 − 1/s, so that the first step makes a copy."""


_OPTIMISER: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 64,
    "clip_norm": 5.0,
    "lr_schedule": "constant",
    "nesterov": False,
}
PROFILES: dict[str, dict[str, Any]] = {
    "rscfed": merge(
        SHARED_OPTIMISERS,
        {
            "network": {"norm": "gn"},
            "server": {"pretrain_epochs": 30},
            # The labelled factor stays as published. With 1 the server's model counted 0.11 to 0.16 in the groups on
            # digits (seed 0), and what the clients lost in a round its training did not bring back.
            "method": {"teacher": "received", "weight_consistency": 1.0},
        },
    ),
    "paper": {
        "network": {"norm": "bn"},
        "client": {**_OPTIMISER, "lr": 0.021},
        "server": {**_OPTIMISER, "lr": 0.03, "pretrain_epochs": 30},
    },
}

DISPLAY = Display(
    models=(
        Model(
            "global", "global model", "the consensus: the mean of the groups' models, which clients receive"
        ),
        Model(
            "server", "server model", "the model that the server trained on the labelled samples in the round"
        ),
    ),
    charts=(
        steps_chart(),
        losses_chart(
            loss_series(
                "consistency", "teacher", "Squared distance of predictions from the teacher's sharpened ones."
            )
        ),
        chart(
            "Groups",
            "Weight of the server's model in the groups; the rest is the clients'.",
            Series(
                "server_weight",
                "server",
                "Mean weight of the server's model in the groups.",
                unit="share",
                column="server %",
            ),
        ),
    ),
)


def spec() -> MethodSpec:
    return MethodSpec(
        title="RSCFed",
        reference="https://arxiv.org/abs/2203.13993",
        settings=RSCFedSettings,
        make=RSCFed,
        display=DISPLAY,
        profiles=PROFILES,
        view_state=view_state,
        buffered=False,
        keeps_updates=True,
    )


def view_state(arrays: Arrays) -> StateView:
    return StateView({"teacher_steps": int(arrays["steps"][0]) if "steps" in arrays else 0})


def consistency_loss(logits_student_BC: Tensor, logits_teacher_BC: Tensor) -> Tensor:
    """Squared distance of the prediction from the teacher's, which is sharpened to p²/Σp²; mean over the batch."""
    targets_BC = (2.0 * logits_teacher_BC.detach()).softmax(1)
    return (logits_student_BC.softmax(1) - targets_BC).square().sum(1).mean()


def teacher_share(step: int, decay: float) -> float:
    """By which a teacher moves towards its student after step 0, 1, …"""
    return 1.0 - min(1.0 - 1.0 / (step + 1), decay)


class RSCFed(AveragingMethod):
    _settings: RSCFedSettings

    def server_step(self, state: State, labelled: Samples, round_number: int) -> ServerStep:
        """Clients receive the model that the server starts from; what it makes of it joins their updates."""
        before, trained, metrics = self._step_on_labels(state, labelled, round_number)
        return ServerStep({**state, **trained.tensors("server")}, before.tensors("global"), metrics)

    def client_step(self, activation: Activation) -> ClientResult:
        received, inputs = Weights.named(activation.broadcast, "global"), activation.inputs
        total = torch.zeros((), device=self.device)
        with (
            self._client_training(activation, received) as (optimiser, generator),
            self._teacher.temporarily_loaded(),
        ):
            done = self._load_teacher(activation.state, received)
            for batch in self._client_batches(len(inputs), generator):
                raw = inputs.index_select(0, batch)
                # All of a batch's views at once: what is drawn does not depend on the parts it is trained in.
                views = (self._views.weak(raw, generator), self._views.weak(raw, generator))
                optimiser.zero_grad()
                for taught, seen in split_batch(self.micro_batch, *views):
                    total += self._learn(taught, seen, len(taught) / len(batch))
                optimiser.step()
                share = teacher_share(done + optimiser.num_steps - 1, self._settings.teacher_decay)
                self._teacher.move_towards(self._student, share)
            state = self._teacher_state(done + optimiser.num_steps)
        loss = float(total) / optimiser.num_steps
        delta = self._take_delta(activation, received, [loss])
        return ClientResult(delta.tensors("delta"), state, optimiser.num_steps, {"loss_consistency": loss})

    def _load_teacher(self, state: Arrays | None, received: Weights) -> int:
        """Returns the number of steps that it has followed its student for."""
        if self._settings.teacher == "received" or not state:
            self._teacher.load(received)
            return 0
        self._teacher.load(Weights.named(from_arrays(state), "teacher").to(self.device))
        return int(state["steps"][0])

    def _teacher_state(self, num_steps: int) -> Arrays:
        if self._settings.teacher == "received":
            return {}
        return {**to_arrays(self._teacher.weights().tensors("teacher")), "steps": np.array([num_steps])}

    def _learn(self, taught: Tensor, seen: Tensor, share: float) -> Tensor:
        """Adds the gradient of a part of a batch; returns its loss."""
        with evaluating(self._teacher.module):
            logits_teacher_BC = self._logits(taught, self._teacher)
        loss = consistency_loss(self._logits_of_any(seen), logits_teacher_BC) * share
        (self._settings.weight_consistency * loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def open_fold(self, state: State, bases: Bases, version: int, labelled: Samples) -> "ConsensusFold":
        return ConsensusFold(
            self._learning,
            self._settings,
            state,
            Weights.named(bases[version], "global"),
            version,
            len(labelled.labels),
            self._student.sizes,
            self._variances(),
            self._seed("groups", version),
        )

    def end_round(self, state: State, broadcast: Tensors, labelled: Samples, round_number: int) -> RoundEnd:  # noqa: ARG002
        consensus = self._refreshed(Weights.named(state, "global"), labelled)
        models = {"global": consensus, "server": Weights.named(state, "server")}
        return RoundEnd(consensus.tensors("global"), models)


# ---- the fold -------------------------------------------------------------------------------------------------------


def weigh_group(
    models: Sequence[Weights],
    counts: Sequence[float],
    sizes: Sizes,
    labelled_factor: float,
    distance_factor: float,
) -> list[float]:
    """Weights of a group's models in its second mean; they add up to 1. The first model is the server's, trained on
    labelled samples. A distance is the sum over tensors of ‖model − first mean‖."""
    factors = [labelled_factor, *(1.0 for _ in models[1:])]
    first = [factor * count for factor, count in zip(factors, counts, strict=True)]
    mean = weighted_mean(models, [one / sum(first) for one in first])
    distances = [_distance(model, mean, sizes) for model in models]
    # As logarithms: far models would all count exp(−1000) = 0.
    logs = [
        math.log(factor * one) - distance_factor * distance / count
        for factor, one, distance, count in zip(factors, first, distances, counts, strict=True)
    ]
    found: list[float] = torch.tensor(logs, dtype=torch.float64).softmax(0).tolist()
    return found


def weighted_mean(models: Sequence[Weights], weights: Sequence[float]) -> Weights:
    params, buffers = torch.zeros_like(models[0].params), torch.zeros_like(models[0].buffers)
    for model, weight in zip(models, weights, strict=True):
        params.add_(model.params, alpha=weight)
        buffers.add_(model.buffers, alpha=weight)
    return Weights(params, buffers)


def _distance(model: Weights, mean: Weights, sizes: Sizes) -> float:
    vectors = (model.params - mean.params, model.buffers - mean.buffers)
    parts = (part for each in zip(vectors, sizes, strict=True) for part in torch.split(*each))
    return math.fsum(float(torch.linalg.vector_norm(part)) for part in parts)


@dataclass(frozen=True)
class _Kept:
    """One client's update."""

    model: Weights
    num_samples: int
    num_steps: int
    norm: float


@dataclass
class ConsensusFold:
    """Keeps the updates of the round until it closes: which of them make a group depends on all of them."""

    learning: Learning
    settings: RSCFedSettings
    state: State
    base: Weights
    version: int
    num_labelled: int
    sizes: Sizes
    variances_Q: Tensor
    seed: int
    kept: dict[int, _Kept] = field(default_factory=dict)
    """By client"""

    def __post_init__(self) -> None:
        self._max_norm = max_norm_of(self.base)
        self._magnitude_Q = self.base.buffers.abs().clamp(min=1.0)

    def add(self, answer: Answer) -> Verdict:
        delta = read_delta(answer, {self.version: {}}, self.base.params.device)
        if isinstance(delta, Verdict):
            return delta
        variances_Q = self.variances_Q.to(self.base.params.device)
        checked = check_delta(delta, self.base, variances_Q, self._max_norm)
        if isinstance(checked, Verdict):
            return checked
        values_Q, norm = checked
        if largest_entry(values_Q / self._magnitude_Q) > MAX_ENTRY:
            return Verdict(INVALID, f"a value moves by more than {MAX_ENTRY:.0f}")
        model = Weights(self.base.params + delta.params, values_Q)
        self.kept[answer.client] = _Kept(model, answer.num_samples, answer.num_steps, norm)
        return Verdict(ACCEPTED, counts=True)

    def close(self) -> Folded:
        """Without an accepted update the new model is the server's."""
        server = Weights.named(self.state, "server").to(self.base.params.device)
        kept = [self.kept[client] for client in sorted(self.kept)]
        most = typical_effort([one.num_samples for one in kept])
        groups, server_weights = [], []
        for members in self._draw_groups(kept):
            models = [server, *(one.model for one in members)]
            counts = [self.num_labelled, *(min(one.num_samples, most) for one in members)]
            factors = self.settings.labelled_factor, self.settings.distance_factor
            weights = weigh_group(models, counts, self.sizes, *factors)
            groups.append(weighted_mean(models, weights))
            server_weights.append(weights[0])
        consensus = weighted_mean(groups, [1.0 / len(groups)] * len(groups))
        lr = learning_rate(self.learning.client, self.version, self.learning.rounds)
        metrics = {"server_weight": math.fsum(server_weights) / len(groups)}
        if kept:
            metrics["client_norm"] = math.fsum(one.norm for one in kept) / len(kept)
        return Folded(
            {**self.state, **consensus.tensors("global")},
            delta_norm=norm_of(consensus.params - self.base.params),
            effort=typical_effort([lr * one.num_steps for one in kept]),
            metrics=metrics,
            notes=() if kept else ("no update was accepted",),
        )

    def _draw_groups(self, kept: "Sequence[_Kept]") -> "list[list[_Kept]]":
        """Clients may be in several groups; the server is in all of them."""
        rng = np.random.default_rng(self.seed)
        size = min(self.settings.clients_per_group, len(kept))
        drawn = [rng.permutation(len(kept))[:size] for _ in range(self.settings.groups)]
        return [[kept[number] for number in sorted(numbers)] for numbers in drawn]
