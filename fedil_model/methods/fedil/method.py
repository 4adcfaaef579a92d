"""FedIL (arXiv 2302.11823): Algorithm 1 at the server, Algorithm 2 at a client.

θ′ is "global", θ₀ is "server", θ* − θ′ is "delta". N samples of a client, C classes, B batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from fedil_model.data.datasets.interface import Samples, Views
from fedil_model.errors import NumericError, StateError
from fedil_model.methods.fedil.batch import ViewedBatch
from fedil_model.methods.fedil.fold import FedILFold
from fedil_model.methods.fedil.ledger import Ledger, Observation
from fedil_model.methods.fedil.losses import consistency_loss, credible_loss, pseudo_label_loss
from fedil_model.methods.interface import ClientResult, ServerStep, State
from fedil_model.networks import build_network
from fedil_model.networks.normalisation import refresh_statistics
from fedil_model.seeding import derive_seed
from fedil_model.settings import FedILSettings, Learning
from fedil_model.training.batches import shuffled_batches
from fedil_model.training.evaluate import predict_logits
from fedil_model.training.flat_model import FlatModel, Weights, all_finite
from fedil_model.training.optimiser import FlatSGD, decay_factor, learning_rate
from fedil_model.training.precision import autocast, seeded
from fedil_model.training.supervised import Supervised, train_supervised


class FedIL:
    micro_batch: int | None = None

    def __init__(
        self,
        learning: Learning,
        input_shape: tuple[int, ...],
        num_classes: int,
        views: Views,
        device: torch.device,
    ) -> None:
        self.device = device
        self.check_stop: Callable[[], None] = lambda: None
        self._learning = learning
        self._settings: FedILSettings = learning.method
        self._views = views
        self._input_shape, self._num_classes = input_shape, num_classes
        self._student = self._network()
        self._student.let_go()

    @cached_property
    def _teacher(self) -> FlatModel:
        """Only clients have one."""
        teacher = self._network()
        teacher.let_go()
        return teacher

    def _network(self) -> FlatModel:
        return FlatModel(self._build(), self.device)

    def _build(self) -> nn.Module:
        seed = self._seed("network")
        return build_network(self._learning.network, self._input_shape, self._num_classes, seed)

    def _seed(self, *names: int | str) -> int:
        return derive_seed(self._learning.seed, *names)

    # ---- server ----------------------------------------------------------------------------------------------

    def initial_state(self, labelled: Samples) -> State:
        state: dict[str, Tensor] = {}
        self._student.load(self._network().hand_over())
        epochs = self._learning.server.pretrain_epochs
        if epochs:
            settings = self._learning.server
            lr, strong_weight = settings.pretrain_lr or settings.lr, settings.pretrain_strong_weight
            self._train_supervised(labelled, epochs, lr, strong_weight, self._seed("pretrain"))
        self._refresh(labelled)
        weights = self._student.hand_over()
        state.update(weights.tensors("global"))
        if self._settings.server_momentum > 0.0:
            state["momentum"] = torch.zeros_like(weights.params)
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
        settings = self._learning.server
        lr = learning_rate(settings, round_number, self._learning.rounds)
        seed = self._seed("server", round_number)
        done = self._train_supervised(labelled, settings.epochs, lr, settings.strong_weight, seed)
        self._refresh(labelled)
        tensors = global_.tensors("global") | self._student.hand_over().tensors("server")
        # What decay alone did to θ₀, which the cosine must not take for agreement.
        tensors["server_decay"] = torch.tensor(
            decay_factor(settings, lr, done.num_steps), dtype=torch.float64
        )
        return ServerStep(tensors, {"loss_server": done.loss})

    def _train_supervised(
        self, labelled: Samples, epochs: int, lr: float, strong_weight: float, seed: int
    ) -> Supervised:
        with seeded(seed, self.device):
            return train_supervised(
                self._student,
                labelled,
                self._views,
                self._learning.server,
                epochs=epochs,
                lr=lr,
                strong_weight=strong_weight,
                generator=torch.Generator().manual_seed(seed),
                precision=self._learning.autocast,
                check_stop=self.check_stop,
            )

    def _refresh(self, labelled: Samples) -> None:
        if self._learning.network.norm == "sbn":
            refresh_statistics(
                self._student.module, (self._views.plain(part) for part in torch.split(labelled.inputs, 500))
            )

    def open_fold(self, state: State, bases: Mapping[int, Mapping[str, Tensor]], version: int) -> FedILFold:
        return FedILFold(self._learning, state, bases, version, self._student.num_decayed)

    def models(self, state: State, broadcast: Mapping[str, Tensor], labelled: Samples) -> dict[str, Weights]:
        averages = {
            name: Weights.named(state, name) for name in ("global", "ema") if f"{name}.params" in state
        }
        if self._learning.network.norm == "sbn":
            averages = {name: self._refreshed(weights, labelled) for name, weights in averages.items()}
        return averages | {"server": Weights.named(broadcast, "server")}

    def _refreshed(self, weights: Weights, labelled: Samples) -> Weights:
        """An average of weights has statistics of its own; those of its parts are not theirs."""
        self._student.borrow(weights.to(self.device))
        self._refresh(labelled)
        return Weights(weights.params, self._student.hand_over().buffers)

    # ---- client ----------------------------------------------------------------------------------------------

    def client_step(
        self,
        broadcast: Mapping[str, Tensor],
        inputs: Tensor,
        ledger: Mapping[str, np.ndarray] | None,
        round_number: int,
        client: int,
    ) -> ClientResult:
        if len(inputs) == 0:
            raise StateError(f"client {client} has no samples")
        global_, server = Weights.named(broadcast, "global"), Weights.named(broadcast, "server")
        before = Ledger.from_arrays(ledger, len(inputs)) if ledger else Ledger.empty(len(inputs))
        with self._teacher.for_now():
            targets = self._observe(global_, server, inputs)
            after = before.observe(
                targets.observation, self._settings.credibility, self._settings.demote_after
            )

            member = after if self._settings.promote_lag == 0 else before
            plan = _Plan.make(member, targets, self.device)
            self._student.load(server if self._settings.client_init == "server" else global_)
            seed = self._seed("client", round_number, client)
            with seeded(seed, self.device):
                lr = learning_rate(self._learning.client, round_number, self._learning.rounds)
                num_steps, losses = self._train(inputs, plan, lr, torch.Generator().manual_seed(seed))
        trained = self._student.hand_over()
        _check_finite(client, trained.params, losses)
        delta = Weights(trained.params.sub_(global_.params), trained.buffers.sub_(global_.buffers))
        metrics = losses | {
            "pseudo_labels": float((after.labels_N >= 0).sum()),
            "credible": float(after.credible_N.sum()),
            "sure_share": float(plan.sure_U.float().mean()) if len(plan.sure_U) else 0.0,
        }
        return ClientResult(delta.tensors("delta"), after.to_arrays(), num_steps, metrics)

    def _observe(self, global_: Weights, server: Weights, inputs: Tensor) -> "_Targets":
        """The frozen, received models on the plain view. The teacher stays loaded with θ₀ for ξb."""
        at_a_time = min(500, self.micro_batch or 500)
        self._teacher.borrow(global_)
        global_NC = predict_logits(self._teacher.module, inputs, self._views, at_a_time).softmax(1)
        self._teacher.borrow(server)
        server_NC = predict_logits(self._teacher.module, inputs, self._views, at_a_time).softmax(1)
        confidence_N, labels_N = global_NC.max(1)
        agreed_N = labels_N == server_NC.argmax(1)
        sure_N = (confidence_N >= self._settings.threshold) & agreed_N
        source_NC = {"global": global_NC, "server": server_NC}.get(
            self._settings.pseudo_source, (global_NC + server_NC) / 2
        )
        pseudo_confidence_N, pseudo_labels_N = source_NC.max(1)
        return _Targets(
            Observation(labels_N.cpu().numpy(), sure_N.cpu().numpy()),
            pseudo_labels_N,
            pseudo_confidence_N >= self._settings.threshold,
        )

    def _train(
        self, inputs: Tensor, plan: "_Plan", lr: float, generator: torch.Generator
    ) -> tuple[int, dict[str, float]]:
        settings = self._learning.client
        optimiser = FlatSGD(self._student, settings, lr)
        weights = self._loss_weights()
        totals = torch.zeros_like(weights)
        self._student.module.train()
        self._teacher.module.eval()
        for _ in range(settings.epochs):
            for batch_U in plan.batches(settings.batch_size, generator):
                batch = self._make_views(inputs, plan, batch_U, generator)
                optimiser.zero_grad()
                for part, shares in batch.parts(self.micro_batch):
                    losses = self._losses(part)
                    if shares is not None:
                        losses = losses * losses.new_tensor([shares.B, shares.B, shares.B, shares.L])
                    (losses @ weights).backward()  # type: ignore[no-untyped-call]
                    totals += losses.detach()
                optimiser.step()
        means = (totals / max(optimiser.num_steps, 1)).tolist()
        names = ("loss_pseudo", "loss_pseudo_weak", "loss_consistency", "loss_credible")
        return optimiser.num_steps, dict(zip(names, means, strict=True))

    def _loss_weights(self) -> Tensor:
        s = self._settings
        weights = [s.weight_pseudo, s.weight_pseudo_weak, s.weight_consistency, s.weight_credible]
        return torch.tensor(weights, device=self.device)

    def _make_views(
        self, inputs: Tensor, plan: "_Plan", batch_U: Tensor, generator: torch.Generator
    ) -> ViewedBatch:
        """All of a batch's views at once: what is drawn does not depend on the parts it is trained in."""
        raw = inputs.index_select(0, plan.unlabelled_U[batch_U])
        live = self._settings.pseudo_source == "live"
        # Labels known beforehand: a sample that is not sure adds nothing to ξa, so its strong view is not made.
        sure_B = torch.ones_like(batch_U, dtype=torch.bool) if live else plan.sure_U[batch_U]
        credible = plan.draw_credible(self._learning.client.batch_size, generator)
        weak_B = _view(self._views.weak, raw, generator)
        strong_S = _view(self._views.strong, raw.index_select(0, sure_B.nonzero()[:, 0]), generator)
        trusted_L = _view(self._views.weak, inputs.index_select(0, credible.indices), generator)
        return ViewedBatch(weak_B, plan.labels_U[batch_U], sure_B, strong_S, trusted_L, credible.labels)

    def _losses(self, batch: ViewedBatch) -> Tensor:
        """ξa, its twin on the weak view, ξb and ξc of one batch, from a single forward pass of all views."""
        weak, strong, trusted = batch.weak_B, batch.strong_S, batch.trusted_L
        parts = [part for part in (weak, strong, trusted) if len(part)]
        with autocast(self.device, self._learning.autocast):
            logits = self._student.module(torch.cat(parts)).float()
            with torch.no_grad():
                logits_server_BC = self._teacher.module(weak).float() if len(weak) else logits[:0]
        weak_BC, strong_SC, credible_LC = logits.split([len(weak), len(strong), len(trusted)])
        zero = logits.new_zeros(())
        pseudo, pseudo_weak = zero, zero
        if self._settings.pseudo_source == "live" and len(weak):
            confidence_B, labels_B = weak_BC.detach().softmax(1).max(1)
            pseudo = pseudo_label_loss(strong_SC, labels_B, confidence_B >= self._settings.threshold)
        elif len(strong):
            labels_B, share = batch.labels_B, len(strong) / len(weak)
            pseudo = credible_loss(strong_SC, labels_B[batch.sure_B]) * share
            pseudo_weak = pseudo_label_loss(weak_BC, labels_B, batch.sure_B)
        consistency = consistency_loss(logits_server_BC, weak_BC) if len(weak) else zero
        trust = credible_loss(credible_LC, batch.labels_L) if len(trusted) else zero
        return torch.stack([pseudo, pseudo_weak, consistency, trust])


def _check_finite(client: int, params: Tensor, losses: Mapping[str, float]) -> None:
    if not all_finite(params) or not np.isfinite(list(losses.values())).all():
        raise NumericError(
            f"training of client {client} diverged: begin anew with a lower client.lr or client.clip_norm"
        )


def _view(
    view: Callable[[Tensor, torch.Generator], Tensor], raw: Tensor, generator: torch.Generator
) -> Tensor:
    """User's views need not cope with empty batches."""
    return view(raw, generator) if len(raw) else raw


@dataclass(frozen=True)
class _Targets:
    observation: Observation
    labels_N: Tensor
    sure_N: Tensor


@dataclass(frozen=True)
class _Credible:
    indices: Tensor
    labels: Tensor


@dataclass(frozen=True)
class _Plan:
    """Which samples one activation trains on: U unlabelled ones, L credible ones."""

    unlabelled_U: Tensor
    labels_U: Tensor
    sure_U: Tensor
    credible: _Credible

    @staticmethod
    def make(ledger: Ledger, targets: _Targets, device: torch.device) -> "_Plan":
        unlabelled_U = torch.from_numpy(np.flatnonzero(~ledger.credible_N)).to(device)
        credible_L = np.flatnonzero(ledger.credible_N)
        labels_L = torch.from_numpy(ledger.labels_N[credible_L].astype(np.int64)).to(device)
        return _Plan(
            unlabelled_U,
            targets.labels_N[unlabelled_U],
            targets.sure_N[unlabelled_U],
            _Credible(torch.from_numpy(credible_L).to(device), labels_L),
        )

    def batches(self, batch_size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Positions in U, shuffled. With everything promoted: empty batches, as many as D^l has."""
        device = self.unlabelled_U.device
        if len(self.unlabelled_U):
            return shuffled_batches(len(self.unlabelled_U), batch_size, generator, device)
        steps = -(-len(self.credible.labels) // batch_size)
        return (torch.zeros(0, dtype=torch.int64, device=device),) * steps

    def draw_credible(self, batch_size: int, generator: torch.Generator) -> _Credible:
        num_credible = len(self.credible.labels)
        if num_credible <= batch_size:
            return self.credible
        chosen = torch.randint(num_credible, (batch_size,), generator=generator).to(
            self.credible.labels.device
        )
        return _Credible(self.credible.indices[chosen], self.credible.labels[chosen])
