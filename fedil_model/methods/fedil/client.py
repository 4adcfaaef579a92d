"""Algorithm 2: what one activation of a client does. N samples of the client, C classes, B batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedil_model.methods.base import MethodBase
from fedil_model.methods.fedil.batch import ViewedBatch
from fedil_model.methods.fedil.ledger import NEVER, NO_LABEL, Ledger, Observation, encode_labels
from fedil_model.methods.fedil.losses import consistency_loss, pseudo_label_loss
from fedil_model.methods.fedil.settings import FedILSettings
from fedil_model.methods.fedil.shares import estimate_shares, shares_of, with_shares
from fedil_model.methods.interface import Activation, ClientResult, MethodContext
from fedil_model.networks.normalisation import freeze_statistics
from fedil_model.training.batches import shuffled_batches
from fedil_model.training.evaluate import PREDICTED_AT_A_TIME, predict_logits
from fedil_model.training.flat_model import Weights
from fedil_model.training.optimiser import FlatSGD

LABEL_SHARES = "label_shares"
"""Of a broadcast: shares of the classes among the server's labels"""
LOSSES = ("loss_pseudo", "loss_pseudo_weak", "loss_consistency", "loss_credible")


class ClientTraining(MethodBase):
    """The client's part of FedIL"""

    def __init__(self, context: MethodContext) -> None:
        super().__init__(context)
        assert isinstance(context.learning.method, FedILSettings)
        self._settings = context.learning.method.for_network(len(self._variances()) > 0)

    def client_step(self, activation: Activation) -> ClientResult:
        inputs, broadcast, kept = activation.inputs, activation.broadcast, activation.state
        global_, server = Weights.named(broadcast, "global"), Weights.named(broadcast, "server")
        before = Ledger.from_arrays(kept, len(inputs)) if kept else Ledger.empty(len(inputs))
        start = server if self._settings.client_init == "server" else global_
        with (
            self._client_training(activation, start) as (optimiser, generator),
            self._teacher.temporarily_loaded(),
        ):
            targets = self._observe(global_, server, inputs, broadcast.get(LABEL_SHARES))
            credibility = self._settings.credibility if self._settings.pseudo_label_set else NEVER
            after = before.observe(targets.observation, credibility, self._settings.demote_after)
            plan = self._plan(after if self._settings.promote_lag == 0 else before, targets)
            losses = self._train(inputs, plan, optimiser, generator)
        delta = self._take_delta(activation, global_, list(losses.values()), server)
        metrics = losses | {
            "pseudo_labels": float((after.labels_N >= 0).sum()),
            "credible": float(after.credible_N.sum()),
            "sure_share": plan.sure_share,
        }
        state = after.to_arrays()
        if self._settings.pseudo_source != "live":
            state["taught"] = encode_labels(plan.taught(len(inputs)))
        return ClientResult(delta.tensors("delta"), state, optimiser.num_steps, metrics)

    def _plan(self, ledger: Ledger, targets: "_Targets") -> "_Plan":
        if self._settings.batches == "mixed":
            return _Plan.mixed(ledger, targets, self.device)
        least = min(self._learning.client.batch_size, len(ledger))
        credible = self._settings.weight_credible > 0.0
        return _Plan.sure_only(ledger, targets, self.device, least=least, credible=credible)

    def _observe(
        self, global_: Weights, server: Weights, inputs: Tensor, labelled_C: Tensor | None
    ) -> "_Targets":
        """The frozen, received models on the plain view. The teacher stays loaded with θ₀ for ξb."""
        global_NC, server_NC = self._predict(global_, inputs), self._predict(server, inputs)
        shares_C = None
        if labelled_C is not None:
            # From θ₀ alone: the shares that θ′ expects are those of the clients of the last rounds.
            labelled_C, temperature = labelled_C.to(self.device), self._settings.prior_temperature
            shares_C = estimate_shares(server_NC, labelled_C, temperature)
            if shares_C is not None:
                global_NC = with_shares(global_NC, shares_C, labelled_C, temperature)
                server_NC = with_shares(server_NC, shares_C, labelled_C, temperature)
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
            pseudo_confidence_N,
            pseudo_confidence_N >= self._settings.threshold,
            is_skewed=shares_C is not None,
        )

    def _predict(self, weights: Weights, inputs: Tensor) -> Tensor:
        """Probabilities. The weights stay loaded in the teacher."""
        at_a_time = min(PREDICTED_AT_A_TIME, self.micro_batch or PREDICTED_AT_A_TIME)
        self._teacher.load_view(weights)
        logits_NC = predict_logits(
            self._teacher.module, inputs, self._views, at_a_time, self._learning.autocast
        )
        return logits_NC.softmax(1)

    def _train(
        self, inputs: Tensor, plan: "_Plan", optimiser: FlatSGD, generator: torch.Generator
    ) -> dict[str, float]:
        settings, s = self._learning.client, self._settings
        weights = torch.tensor(
            [s.weight_pseudo, s.weight_pseudo_weak, s.weight_consistency, s.weight_credible],
            device=self.device,
        )
        prior_C = s.logit_adjustment * plan.log_shares(self._context.num_classes)
        totals = torch.zeros_like(weights)
        if self._settings.frozen_statistics and plan.is_skewed:
            freeze_statistics(self._student.module)
        self._teacher.module.eval()
        for _ in range(settings.epochs):
            for batch_U in plan.batches(settings.batch_size, generator):
                batch = self._make_views(inputs, plan, batch_U, generator)
                optimiser.zero_grad()
                for part, share_B, share_L in batch.parts(self.micro_batch):
                    losses = self._losses(part, prior_C)
                    losses = losses * losses.new_tensor([share_B, share_B, share_B, share_L])
                    if losses.requires_grad:  # else no sample is sure, and nothing else is trained on
                        (losses @ weights).backward()  # type: ignore[no-untyped-call]
                    totals += losses.detach()
                optimiser.step()
        means = (totals / max(optimiser.num_steps, 1)).tolist()
        return dict(zip(LOSSES, means, strict=True))

    def _make_views(
        self, inputs: Tensor, plan: "_Plan", batch_U: Tensor, generator: torch.Generator
    ) -> ViewedBatch:
        """All of a batch's views at once: what is drawn does not depend on the parts it is trained in."""
        s, raw = self._settings, inputs.index_select(0, plan.unlabelled_U[batch_U])
        live = s.pseudo_source == "live"
        # Labels known beforehand: a sample that is not sure adds nothing to ξa, so its strong view is not made.
        sure_B = torch.ones_like(batch_U, dtype=torch.bool) if live else plan.sure_U[batch_U]
        credible = plan.draw_credible(self._learning.client.batch_size, generator)
        needs_weak = live or max(s.weight_pseudo_weak, s.weight_consistency) > 0.0
        weak_B = _make_view(self._views.weak, raw if needs_weak else raw[:0], generator)
        strong_S = _make_view(self._views.strong, raw.index_select(0, sure_B.nonzero()[:, 0]), generator)
        trusted_L = _make_view(self._views.weak, inputs.index_select(0, credible.indices), generator)
        return ViewedBatch(weak_B, plan.labels_U[batch_U], sure_B, strong_S, trusted_L, credible.labels)

    def _losses(self, batch: ViewedBatch, prior_C: Tensor) -> Tensor:
        """ξa, its twin on the weak view, ξb and ξc of one batch, from a single forward pass of all views."""
        weak, strong, trusted = batch.weak_B, batch.strong_S, batch.trusted_L
        parts = [part for part in (weak, strong, trusted) if len(part)]
        if not parts:
            return torch.zeros(len(LOSSES), device=self.device)
        logits = self._logits(torch.cat(parts))
        weak_BC, strong_SC, credible_LC = torch.split(logits, [len(weak), len(strong), len(trusted)])
        pseudo, pseudo_weak, consistency, trust = logits.new_zeros(4)
        if self._settings.pseudo_source == "live" and len(weak):
            confidence_B, labels_B = weak_BC.detach().softmax(1).max(1)
            pseudo = pseudo_label_loss(strong_SC, labels_B, confidence_B >= self._settings.threshold)
        elif len(strong):
            labels_B, share = batch.labels_B, len(strong) / len(batch.labels_B)
            pseudo = cross_entropy(strong_SC + prior_C, labels_B[batch.sure_B]) * share
            if len(weak):
                pseudo_weak = pseudo_label_loss(weak_BC + prior_C, labels_B, batch.sure_B)
        if len(weak) and self._settings.weight_consistency > 0.0:
            with torch.no_grad():
                logits_server_BC = self._logits(weak, self._teacher)
            consistency = consistency_loss(logits_server_BC, weak_BC)
        if len(trusted):
            trust = cross_entropy(credible_LC + prior_C, batch.labels_L)
        return torch.stack([pseudo, pseudo_weak, consistency, trust])


def _make_view(
    view: Callable[[Tensor, torch.Generator], Tensor], raw: Tensor, generator: torch.Generator
) -> Tensor:
    """A user's views need not accept empty batches."""
    return view(raw, generator) if len(raw) else raw


@dataclass(frozen=True)
class _Targets:
    observation: Observation
    labels_N: Tensor
    confidence_N: Tensor
    sure_N: Tensor
    is_skewed: bool = False
    """The client's class shares are clearly not those of the labels."""


@dataclass(frozen=True)
class _Credible:
    indices: Tensor
    labels: Tensor


@dataclass(frozen=True)
class _Plan:
    """Which samples one activation trains on: U with pseudo-labels, where they are sure, and L credible ones."""

    unlabelled_U: Tensor
    labels_U: Tensor
    sure_U: Tensor
    credible: _Credible
    samples_per_epoch: int
    sure_share: float
    is_skewed: bool

    @staticmethod
    def mixed(ledger: Ledger, targets: _Targets, device: torch.device) -> "_Plan":
        """U: all samples that are not credible. Those that are not sure have no ξa."""
        unlabelled_U = torch.from_numpy(np.flatnonzero(~ledger.credible_N)).to(device)
        credible_L = np.flatnonzero(ledger.credible_N)
        labels_L = torch.from_numpy(ledger.labels_N[credible_L].astype(np.int64)).to(device)
        sure_U = targets.sure_N[unlabelled_U]
        return _Plan(
            unlabelled_U,
            targets.labels_N[unlabelled_U],
            sure_U,
            _Credible(torch.from_numpy(credible_L).to(device), labels_L),
            len(unlabelled_U),
            float(sure_U.float().mean()) if len(sure_U) else 0.0,
            targets.is_skewed,
        )

    @staticmethod
    def sure_only(
        ledger: Ledger, targets: _Targets, device: torch.device, *, least: int, credible: bool
    ) -> "_Plan":
        """U: the sure samples, at least the `least` most confident ones, and the credible ones with the labels that
        they keep. They repeat until an epoch has as many samples as the client."""
        chosen_N = targets.sure_N.clone()
        chosen_N[targets.confidence_N.topk(least).indices] = True
        labels_N = targets.labels_N
        if credible:
            credible_N = torch.from_numpy(ledger.credible_N).to(device)
            kept_N = torch.from_numpy(ledger.labels_N.astype(np.int64)).to(device)
            chosen_N, labels_N = chosen_N | credible_N, torch.where(credible_N, kept_N, labels_N)
        chosen_U = chosen_N.nonzero()[:, 0]
        none = chosen_U[:0]
        return _Plan(
            chosen_U,
            labels_N[chosen_U],
            torch.ones_like(chosen_U, dtype=torch.bool),
            _Credible(none, none),
            len(ledger),
            float(targets.sure_N.float().mean()),
            targets.is_skewed,
        )

    def log_shares(self, num_classes: int) -> Tensor:
        """Of the classes among the labels that are trained on"""
        return shares_of(torch.cat([self.labels_U[self.sure_U], self.credible.labels]), num_classes).log()

    def taught(self, num_samples: int) -> np.ndarray:
        """The label that ξa trains each sample on; NO_LABEL for the others."""
        labels_N = np.full(num_samples, NO_LABEL, np.int16)
        taught_U = self.unlabelled_U[self.sure_U].cpu().numpy()
        labels_N[taught_U] = self.labels_U[self.sure_U].cpu().numpy()
        return labels_N

    def batches(self, batch_size: int, generator: torch.Generator) -> Sequence[Tensor]:
        """Positions in U of one epoch, shuffled. With everything promoted: empty batches, as many as D^l has."""
        device, size = self.unlabelled_U.device, len(self.unlabelled_U)
        if size == 0:
            steps = -(-len(self.credible.labels) // batch_size)
            return (torch.zeros(0, dtype=torch.int64, device=device),) * steps
        if self.samples_per_epoch == size:
            return shuffled_batches(size, batch_size, generator, device)
        repeats = -(-self.samples_per_epoch // size)
        orders = [torch.randperm(size, generator=generator) for _ in range(repeats)]
        positions = torch.cat(orders)[: self.samples_per_epoch]
        batches = torch.split(positions.to(device), batch_size)
        # Statistics of a handful of samples spoil batch norm.
        return batches[:-1] if len(batches) > 1 and 2 * len(batches[-1]) < batch_size else batches

    def draw_credible(self, batch_size: int, generator: torch.Generator) -> _Credible:
        num_credible = len(self.credible.labels)
        if num_credible <= batch_size:
            return self.credible
        chosen = torch.randint(num_credible, (batch_size,), generator=generator).to(
            self.credible.labels.device
        )
        return _Credible(self.credible.indices[chosen], self.credible.labels[chosen])
