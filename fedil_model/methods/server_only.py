"""Training at the server alone: `server_only` on the split's labels, a floor; `supervised` on all of them, a ceiling.

Both train round by round with the server's optimiser and schedule, as the server of any other method does, and ask no
clients. server.strong_weight adds strong views. A round is server.epochs passes over a random part of the samples that
is drawn anew for it. The part is everything for `server_only`, and a fifth for `supervised`: with five epochs its round
has as many steps as one pass over all samples.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import Field

from fedil_model.data.datasets.interface import Samples
from fedil_model.methods.averaging import norm_of
from fedil_model.methods.base import AveragingMethod
from fedil_model.methods.declared import LOSS_SERVER, SERVER_NORM, SHARED_OPTIMISERS, chart
from fedil_model.methods.interface import (
    INVALID,
    Activation,
    Answer,
    Bases,
    ClientResult,
    Display,
    Folded,
    MethodSpec,
    Model,
    RoundEnd,
    ServerStep,
    State,
    Tensors,
    Verdict,
)
from fedil_model.settings import MethodSettings, merge
from fedil_model.training.flat_model import Weights
from fedil_model.training.optimiser import learning_rate

ASKS_NO_CLIENTS = "this method asks no clients"


class ServerOnlySettings(MethodSettings):
    part: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the labelled samples that a round trains on, drawn anew in every round."""


_WEAK: dict[str, Any] = {
    "network": {"norm": "auto"},
    "server": {"epochs": 5, "lr_schedule": "cosine", "pretrain_epochs": 60, "pretrain_schedule": "cosine"},
}
_STRONG: dict[str, Any] = merge(_WEAK, {"server": {"strong_weight": 1.0, "pretrain_strong_weight": 1.0}})
"""Normalisation, epochs and views of FedIL's server: a floor with less would flatter whatever is compared with it"""
_PAPER: dict[str, Any] = merge(SHARED_OPTIMISERS, {"network": {"norm": "bn"}, "server": {"lr": 0.1}})
"""SemiFL's recipe for both: its partially and its fully supervised rows"""
_FIFTH: dict[str, Any] = {"method": {"part": 0.2}}

DISPLAY = Display(
    models=(Model("global", "server model", "the model trained on the server's labelled samples"),),
    charts=(
        chart("Steps", "How far a round moves the model.", SERVER_NORM, log=True),
        chart("Losses", "Mean over the last epoch of a round.", LOSS_SERVER),
    ),
)


def server_only() -> MethodSpec:
    return MethodSpec(
        title="Server only",
        reference="",
        settings=ServerOnlySettings,
        make=ServerOnly,
        display=DISPLAY,
        profiles={"strong": _STRONG, "weak": _WEAK, "paper": _PAPER},
        buffered=False,
        asks_clients=False,
    )


def supervised() -> MethodSpec:
    paper = merge(_PAPER, {"server": {"batch_size": 250}})
    profiles = {"strong": _STRONG, "weak": _WEAK, "paper": paper}
    return replace(
        server_only(),
        title="Supervised, all labels",
        profiles={name: merge(profile, _FIFTH) for name, profile in profiles.items()},
        labels="all",
    )


class ServerOnly(AveragingMethod):
    _settings: ServerOnlySettings

    def server_step(self, state: State, labelled: Samples, round_number: int) -> ServerStep:
        drawn = self._draw(labelled, round_number)
        _, trained, metrics = self._step_on_labels(state, drawn, round_number)
        return ServerStep(state, trained.tensors("global"), metrics)

    def _draw(self, labelled: Samples, round_number: int) -> Samples:
        if self._settings.part == 1.0:
            return labelled
        generator = torch.Generator().manual_seed(self._seed("part", round_number))
        drawn = torch.randperm(len(labelled.labels), generator=generator)[: self._num_drawn(labelled)]
        rows = drawn.to(labelled.labels.device)
        return Samples(labelled.inputs[rows], labelled.labels[rows])

    def _num_drawn(self, labelled: Samples) -> int:
        return max(round(self._settings.part * len(labelled.labels)), 1)

    def client_step(self, activation: Activation) -> ClientResult:
        raise NotImplementedError(f"client {activation.client}: {ASKS_NO_CLIENTS}")

    def open_fold(self, state: State, bases: Bases, version: int, labelled: Samples) -> "EmptyFold":
        settings, part = self._learning.server, self._num_drawn(labelled)
        steps = settings.epochs * -(-part // settings.batch_size)
        lr = learning_rate(settings, version, self._learning.rounds)
        return EmptyFold(state, bases[version], lr * steps)

    def end_round(self, state: State, broadcast: Tensors, labelled: Samples, round_number: int) -> RoundEnd:  # noqa: ARG002
        return RoundEnd(state, {"global": Weights.named(state, "global")})


@dataclass
class EmptyFold:
    """Of a round without clients: the new model is what the server's step made."""

    state: State
    trained: Tensors
    effort: float

    def add(self, answer: Answer) -> Verdict:  # noqa: ARG002
        return Verdict(INVALID, ASKS_NO_CLIENTS)

    def close(self) -> Folded:
        before, after = Weights.named(self.state, "global"), Weights.named(self.trained, "global")
        norm = norm_of(after.params - before.params.to(after.params.device))
        return Folded({**self.state, **self.trained}, norm, self.effort)
