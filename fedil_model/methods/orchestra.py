"""Orchestra (arXiv 2205.11506): clients predict to which of the server's clusters another view of a sample belongs.

A client trains its projections of one view towards the clusters that its target network, a moving average, gives to
another view, and to tell by how many quarters an image was turned. It sends centroids of its last projections, in
clusters of equal size; the server does the same with the centroids of all clients, and broadcasts the result.
Adapted to 5 of 100 clients: 32 clusters instead of 128, for 5 clients with 16 centroids each. The first clusters are
those of the server's own samples, instead of a round without training. The server moves its target towards the average
by as much as a client's steps do, instead of averaging targets: updates have half the size. Clients count the same.

A client keeps nothing between its activations: its memory of projections is filled anew in each. With its update it
sends its centroids (local_clusters × output × 4 bytes) and no projection of a sample. The server keeps the centroids of
one round's clients. B batch, K clusters, L local ones, F size of a projection, M projections in memory.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from fedil_model.data.augment import Distortion
from fedil_model.data.augment.geometry import quarter_turns
from fedil_model.data.datasets.interface import Samples
from fedil_model.methods.averaging import AveragingFold
from fedil_model.methods.base import split_batch
from fedil_model.methods.declared import chart, client_share, loss_series
from fedil_model.methods.interface import (
    INVALID,
    Activation,
    Answer,
    Bases,
    ClientResult,
    Display,
    Folded,
    MethodContext,
    MethodSpec,
    Series,
    ServerStep,
    State,
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
from fedil_model.networks.heads import head_norm, mlp_head
from fedil_model.training.clustering import cluster_evenly, fit_centroids, unit
from fedil_model.training.evaluate import evaluating
from fedil_model.training.flat_model import Weights

FIRST_VIEW = Distortion(0.5, 0.4, 0.4, 0.2, 0.1, blur_probability=0.5)
SECOND_VIEW = Distortion(0.5, 0.4, 0.4, 0.2, 0.1, blur_probability=0.1, solarize_probability=0.2)
TURNS = 4


class OrchestraSettings(HeadSettings):
    clusters: int = Field(default=32, ge=2)
    """K: clusters of the server; at most half of the centroids that a round's clients send."""
    local_clusters: int = Field(default=16, ge=2)
    """L: centroids that a client sends."""
    memory: int = Field(default=128, ge=2)
    """M: the client's last projections, of which it makes centroids."""
    momentum: float = Field(default=0.996, ge=0.0, le=1.0)
    """Before each step target ← this·target + the rest·online."""
    temperature: float = Field(default=0.1, gt=0.0)
    """Divides the cosines of projections and centroids."""
    weight_rotation: float = Field(default=1.0, ge=0.0)
    """Weight of telling the turns of an image. Samples that are not square images are not turned."""
    server_steps: int = Field(default=500, ge=0)
    """Steps of SGD on the server's centroids, in each round."""


PROFILES: dict[str, dict[str, Any]] = {
    "orchestra": {"network": {"norm": "auto"}, "client": {"lr_schedule": "cosine", "clip_norm": 1.0}},
    "paper": {
        "network": {"norm": "bn"},
        "client": {
            "epochs": 10,
            "batch_size": 16,
            "lr": 0.003,
            "nesterov": False,
            "weight_decay": 1e-4,
            "clip_norm": 0.0,
        },
        "method": {"hidden": 512, "output": 512},
    },
}

DISPLAY = Display(
    models=FITTED_MODELS,
    charts=(
        UPDATES_CHART,
        client_losses_chart(
            loss_series(
                "cluster", "clusters", "Cross-entropy of one view's clusters against the target's of another."
            ),
            loss_series(
                "rotation", "turns", "Cross-entropy of telling turns; 0 for samples that are not turned."
            ),
        ),
        chart(
            "Clusters",
            "How well the server's clusters fit the clients' centroids, and how many of them clients use.",
            Series(
                "agreement",
                "agreement",
                "Mean cosine between balanced and nearest clusters of the clients' centroids.",
                unit="share",
            ),
            client_share(
                "used_share",
                "used",
                "Share of the server's clusters that a client's last projections fall into.",
                "used %",
            ),
        ),
    ),
)


def spec() -> MethodSpec:
    return MethodSpec(
        title="Orchestra",
        reference="https://arxiv.org/abs/2205.11506",
        settings=OrchestraSettings,
        make=Orchestra,
        display=DISPLAY,
        profiles=PROFILES,
    )


def cluster_loss(online_BF: Tensor, target_BF: Tensor, centroids_KF: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of the online projections' clusters against the target's, which carry no gradient."""
    wanted_BK = (unit(target_BF.detach()) @ centroids_KF.T / temperature).softmax(1)
    return functional.cross_entropy(unit(online_BF) @ centroids_KF.T / temperature, wanted_BK)


class Orchestra(SelfSupervised):
    _settings: OrchestraSettings

    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        self._first_view = distorted_view(context.views, FIRST_VIEW)
        self._second_view = distorted_view(context.views, SECOND_VIEW)
        shape = context.input_shape
        self._turns = TURNS if len(shape) == 3 and shape[1] == shape[2] else 0

    def _make_heads(self, num_features: int) -> tuple[nn.Module, nn.Module]:
        """The predictor tells turns."""
        hidden, output = self._settings.hidden, self._settings.output
        projector = mlp_head(num_features, hidden, output).append(head_norm(output, affine=False))
        return projector, nn.Linear(output, TURNS)

    # ---- the server ------------------------------------------------------------------------------------------------

    def initial_state(self, labelled: Samples) -> State:
        """Clusters of the labelled samples' projections; their labels are not used."""
        online = self._pretrain(labelled)
        generator = torch.Generator().manual_seed(self._seed("clusters"))
        with self._student.temporarily_loaded(), evaluating(self._student.module):
            self._student.load(online)
            projections = [
                self._compute(self._heads.project, self._views.plain(part))
                for (part,) in split_batch(500, labelled.inputs)
            ]
        centroids_KF = cluster_evenly(unit(torch.cat(projections)), self._settings.clusters, generator)
        return online.tensors("online") | {"target": online.params, "centroids": centroids_KF}

    def server_step(self, state: State, labelled: Samples, round_number: int) -> ServerStep:
        step = super().server_step(state, labelled, round_number)
        return replace(
            step, broadcast={**step.broadcast, **{name: state[name] for name in ("target", "centroids")}}
        )

    def open_fold(self, state: State, bases: Bases, version: int, labelled: Samples) -> "OrchestraFold":  # noqa: ARG002
        settings = self._settings
        cluster = partial(
            fit_centroids,
            temperature=settings.temperature,
            steps=settings.server_steps,
            check_stop=self.check_stop,
        )
        average = self._fold(AveragingFold, state, bases, version)
        return OrchestraFold(average, cluster, (settings.local_clusters, settings.output), settings.momentum)

    # ---- a client --------------------------------------------------------------------------------------------------

    def client_step(self, activation: Activation) -> ClientResult:
        received, inputs = Weights.named(activation.broadcast, "online"), activation.inputs
        centroids_KF = activation.broadcast["centroids"]
        memory_MF = torch.zeros(0, self._settings.output, device=self.device)
        losses = torch.zeros(2, device=self.device)
        with (
            self._client_training(activation, received) as (optimiser, generator),
            self._teacher.temporarily_loaded(),
        ):
            self._teacher.load(Weights(activation.broadcast["target"], received.buffers))
            self._teacher.module.train()
            for batch in self._client_batches(len(inputs), generator):
                self._teacher.move_towards(self._student, 1.0 - self._settings.momentum, buffers=False)
                optimiser.zero_grad()
                found, projections_BF = self._learn(inputs.index_select(0, batch), centroids_KF, generator)
                optimiser.step()
                losses += found
                memory_MF = torch.cat([memory_MF, projections_BF])[-self._settings.memory :]
            local_LF = cluster_evenly(memory_MF, self._settings.local_clusters, generator)
        cluster, rotation = (losses / optimiser.num_steps).tolist()
        delta = self._take_delta(activation, received, [cluster, rotation])
        used = int((memory_MF @ centroids_KF.T).argmax(1).bincount().count_nonzero())
        metrics = {
            "loss_cluster": cluster,
            "loss_rotation": rotation,
            "used_share": used / len(centroids_KF),
        }
        update = {**delta.tensors("delta"), "centroids": local_LF}
        return ClientResult(update, {}, optimiser.num_steps, metrics)

    def _learn(self, raw: Tensor, centroids_KF: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Adds the gradient of one batch. Returns its two losses, and the target's projections."""
        first_B, second_B = self._first_view(raw, generator), self._second_view(raw, generator)
        turned_B, turns_B = self._turn(self._first_view(raw, generator), generator)
        total, projections = torch.zeros(2, device=self.device), list[Tensor]()
        for first, second, turned, turns in split_batch(
            self.micro_batch, first_B, second_B, turned_B, turns_B
        ):
            # Batch norm needs two samples at least.
            first = first if len(first) > 1 else torch.cat([first, second])
            target_BF = self._compute_target(first)[: len(second)]
            online_BF = self._project(second)
            cluster = cluster_loss(online_BF, target_BF, centroids_KF, self._settings.temperature)
            rotation = cluster.new_zeros(())
            if self._turns:
                # In a pass of their own, as published: batch norm does not mix upright and turned views.
                rotation = functional.cross_entropy(self._heads.predictor(self._project(turned)), turns)
            losses = torch.stack([cluster, rotation]) * (len(second) / len(raw))
            (losses[0] + self._settings.weight_rotation * losses[1]).backward()  # type: ignore[no-untyped-call]
            total += losses.detach()
            projections.append(unit(target_BF))
        return total, torch.cat(projections)

    def _project(self, views_B: Tensor) -> Tensor:
        """A single view counts twice: batch norm needs two samples at least."""
        both = views_B if len(views_B) > 1 else torch.cat([views_B, views_B])
        return self._compute(self._heads.project, both)[: len(views_B)]

    def _turn(self, views_B: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Each by a random number of quarters, and the numbers; as they are where they cannot be turned."""
        turns_B = torch.randint(max(self._turns, 1), (len(views_B),), generator=generator).to(views_B.device)
        return quarter_turns(views_B, turns_B) if self._turns else views_B, turns_B


@dataclass
class OrchestraFold:
    """The mean of the clients' networks, and clusters of their centroids."""

    average: AveragingFold
    cluster: Callable[[Tensor, Tensor], tuple[Tensor, float]]
    shape_LF: tuple[int, int]
    momentum: float
    steps: list[int] = field(default_factory=list)
    points: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """(Client, version that it started from) → its centroids"""

    def add(self, answer: Answer) -> Verdict:
        update = dict(answer.update)
        points_LF = update.pop("centroids", None)
        misfit = self._find_misfit(points_LF)
        if points_LF is None or misfit:
            return Verdict(INVALID, misfit)
        verdict = self.average.add(replace(answer, update=update))
        if verdict.counts:
            self.points[answer.client, answer.base_version] = points_LF.clone()
            self.steps.append(answer.num_steps)
        return verdict

    def _find_misfit(self, points_LF: Tensor | None) -> str:
        if points_LF is None:
            return "no centroids"
        if tuple(points_LF.shape) != self.shape_LF or points_LF.dtype != torch.float32:
            return f"centroids of {points_LF.dtype} and shape {tuple(points_LF.shape)}, not {self.shape_LF}"
        furthest = float((torch.linalg.vector_norm(points_LF, dim=1) - 1.0).abs().max())
        return "" if furthest < 1e-3 else f"lengths of centroids differ from 1 by up to {furthest:.3g}"

    def close(self) -> Folded:
        folded = self.average.close()
        if not self.points:
            return folded
        before_KF = folded.state["centroids"]
        # In an order that does not depend on when they came
        points_NF = torch.cat([self.points[key].to(before_KF.device) for key in sorted(self.points)])
        centroids_KF, agreement = self.cluster(points_NF, before_KF)
        # The middle client's: what a single client claims does not decide.
        kept_share = self.momentum ** statistics.median_low(self.steps)
        online_P = folded.state["online.params"]
        target_P = folded.state["target"].to(online_P.device).lerp(online_P, 1.0 - kept_share)
        return replace(
            folded,
            state={**folded.state, "target": target_P, "centroids": centroids_KF},
            metrics={**folded.metrics, "agreement": agreement},
        )
