"""FedMatch (arXiv 2006.12097), labels at the server: θ = σ + ψ, where the server trains σ and clients train ψ.

Gradients of θ are gradients of the part that is trained, so both parts are vectors beside one network. What the paper's
network does not have is decided here: norms and biases are split as well, but their ψ begins at 0 and neither
regulariser applies to it; running statistics travel with ψ. The paper's rule that lowers learning rates by the loss on
validation data is left out: the server's labelled samples all train.

Memory: the server keeps the last ψ of `pool` clients, in its state and so in every checkpoint.
N samples of the client, S selected ones of a batch B, C classes, H helpers, P parameters.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from fedil_model.data.datasets.interface import Samples
from fedil_model.methods.averaging import AveragingFold, norm_of
from fedil_model.methods.base import AveragingMethod, split_batch
from fedil_model.methods.fedmatch import FedMatchSettings
from fedil_model.methods.fedmatch.fold import FedMatchFold, add_parts, embeddings_in, index_type, parts
from fedil_model.methods.interface import (
    Activation,
    Bases,
    ClientResult,
    RoundEnd,
    ServerStep,
    State,
    Tensors,
)
from fedil_model.training.evaluate import PREDICTED_AT_A_TIME, evaluating, predict_logits
from fedil_model.training.flat_model import Weights, all_finite


class FedMatch(AveragingMethod):
    _settings: FedMatchSettings
    _averaged = "psi"

    # ---- the server ------------------------------------------------------------------------------------------------

    def initial_state(self, labelled: Samples) -> State:
        """σ + ψ are the initial weights."""
        theta = self._pretrain(labelled)
        sigma_P = theta.params.clone()
        sigma_P[: self._student.num_decayed] /= 1.0 + self._settings.psi_factor
        return parts(sigma_P, Weights(theta.params - sigma_P, theta.buffers))

    def server_step(self, state: State, labelled: Samples, round_number: int) -> ServerStep:
        sigma_P, psi = state["sigma.params"].to(self.device), Weights.named(state, "psi").to(self.device)
        self._student.load(add_parts(sigma_P, psi))
        # λs·CE with these settings is CE with others: the same steps without a factor in the loss.
        server, factor = self._learning.server, self._settings.weight_server
        scaled = {
            "lr": server.lr * factor,
            "weight_decay": server.weight_decay / factor,
            "clip_norm": server.clip_norm / factor,
        }
        learning = self._learning.model_copy(update={"server": server.model_copy(update=scaled)})
        trained, done = self._train_on_labels(labelled, round_number, learning)
        moved_P = trained.params - psi.params
        metrics = {"loss_server": done.loss, "server_norm": norm_of(moved_P - sigma_P)}
        return ServerStep(state, parts(moved_P, Weights(psi.params, trained.buffers)), metrics)

    def extras_for(self, state: State, round_number: int, client: int) -> Sequence[str]:
        """The helpers of a client: those whose predictions for one image of noise are nearest to its own."""
        embeddings = embeddings_in(state)
        if round_number % self._settings.helper_interval or client not in embeddings:
            return ()
        own_C = embeddings.pop(client)
        nearest = sorted(embeddings, key=lambda other: (float((embeddings[other] - own_C).norm()), other))
        return [f"helper.{other}" for other in nearest[: self._settings.helpers]]

    def extra(self, state: State, name: str) -> Tensors:
        return Weights.named(state, name).tensors("psi")

    def open_fold(self, state: State, bases: Bases, version: int, labelled: Samples) -> "FedMatchFold":  # noqa: ARG002
        average = self._fold(AveragingFold, state, bases, version)
        return FedMatchFold(average, bases, version, self._settings.pool, self._embed)

    def _embed(self, weights: Weights) -> Tensor:
        """Its prediction for the image of noise, on the CPU like those that a checkpoint brings back."""
        with self._student.temporarily_loaded(), evaluating(self._student.module):
            self._student.load(weights.to(self.device))
            return self._logits(self._noise)[0].softmax(0).cpu()

    @cached_property
    def _noise(self) -> Tensor:
        """The paper's image, of mean 125 and deviation 125 between 0 and 255, on the scale of normalised inputs."""
        generator = torch.Generator().manual_seed(self._seed("noise"))
        image = torch.empty(1, *self._context.input_shape)
        return torch.nn.init.trunc_normal_(image, 0.0, 2.0, -2.0, 2.0, generator=generator).to(self.device)

    def end_round(self, state: State, broadcast: Tensors, labelled: Samples, round_number: int) -> RoundEnd:  # noqa: ARG002
        psi = Weights.named(state, "psi")
        large_P = torch.where(psi.params.abs() > self._settings.min_change, psi.params, 0.0)
        shipped = add_parts(state["sigma.params"], Weights(large_P, psi.buffers))
        sent = add_parts(broadcast["sigma.params"], Weights.named(broadcast, "psi"))
        return RoundEnd(state, {"global": self._refreshed(shipped, labelled), "server": sent})

    # ---- a client --------------------------------------------------------------------------------------------------

    def client_step(self, activation: Activation) -> ClientResult:
        sigma_P, psi = activation.broadcast["sigma.params"], Weights.named(activation.broadcast, "psi")
        start, inputs = add_parts(sigma_P, psi), activation.inputs
        helpers_HNC = self._ask_helpers(activation, sigma_P)
        totals = torch.zeros(3, device=self.device)
        with self._client_training(activation, start) as (optimiser, generator):
            for batch in self._client_batches(len(inputs), generator):
                raw = inputs.index_select(0, batch)
                plain_B, strong_B = self._views.plain(raw), self._views.strong(raw, generator)
                optimiser.zero_grad()
                totals += self._learn(plain_B, strong_B, helpers_HNC[:, batch])
                self._add_regularisers(sigma_P)
                optimiser.step()
        pseudo, helpers, num_sure = totals.tolist()
        delta = self._take_delta(activation, start, [pseudo, helpers])
        changed = (delta.params.abs() > self._settings.min_change).nonzero()[:, 0]
        update = {
            "psi.indices": changed.to(index_type(len(delta.params))),
            "psi.values": delta.params[changed],
            "psi.buffers": delta.buffers,
        }
        metrics = {
            "loss_pseudo": pseudo / optimiser.num_steps,
            "loss_helpers": helpers / optimiser.num_steps,
            "sure_share": num_sure / (len(inputs) * self._learning.client.epochs),
            "sent_share": len(changed) / len(delta.params),
        }
        return ClientResult(update, {}, optimiser.num_steps, metrics)

    def _ask_helpers(self, activation: Activation, sigma_P: Tensor) -> Tensor:
        """Log-probabilities of every sample. A helper that gives no numbers is left out: another client made it."""
        inputs, found = activation.inputs, []
        for name in sorted(activation.extras):
            psi = Weights.named(activation.extras[name], "psi")
            with self._teacher.temporarily_loaded():
                self._teacher.load(add_parts(sigma_P, psi))
                at_a_time = min(PREDICTED_AT_A_TIME, self.micro_batch or PREDICTED_AT_A_TIME)
                logits_NC = predict_logits(
                    self._teacher.module, inputs, self._views, at_a_time, self._learning.autocast
                )
            found.append(logits_NC.log_softmax(1))
        found = [each for each in found if all_finite(each)]
        num_classes = self._context.num_classes
        return torch.stack(found) if found else torch.zeros(0, len(inputs), num_classes, device=inputs.device)

    def _learn(self, plain_B: Tensor, strong_B: Tensor, helpers_HBC: Tensor) -> Tensor:
        """Adds the gradient of one batch. Returns its two losses, means over the selected samples, and their number."""
        with evaluating(self._student.module):
            logits_BC = torch.cat([self._logits(part) for (part,) in split_batch(self.micro_batch, plain_B)])
        confidence_B, labels_B = logits_BC.softmax(1).max(1)
        sure_S = (confidence_B >= self._settings.threshold).nonzero()[:, 0]
        total = torch.zeros(3, device=self.device)
        if len(sure_S) == 0:
            return total
        labels_B = vote(labels_B, helpers_HBC.argmax(2), self._context.num_classes)
        # Helpers come second, so that a part is a slice of samples.
        columns = (
            plain_B[sure_S],
            strong_B[sure_S],
            labels_B[sure_S],
            helpers_HBC[:, sure_S].transpose(0, 1),
        )
        for plain, strong, labels, helpers_SHC in split_batch(self.micro_batch, *columns):
            # In one pass: batch norm then has two samples at least.
            logits_plain_SC, logits_strong_SC = self._logits(torch.cat([plain, strong])).chunk(2)
            pseudo = functional.cross_entropy(logits_strong_SC, labels)
            helpers = helper_loss(logits_plain_SC, helpers_SHC)
            losses = torch.stack([pseudo, helpers]) * (len(labels) / len(sure_S))
            weighted = self._settings.weight_pseudo * losses[0] + self._settings.weight_helpers * losses[1]
            weighted.backward()  # type: ignore[no-untyped-call]
            total[:2] += losses.detach()
        total[2] = len(sure_S)
        return total

    def _add_regularisers(self, sigma_P: Tensor) -> None:
        """The gradient of λ1·‖ψ‖₁ + λ2·‖σ − ψ‖²."""
        weights = slice(self._student.num_decayed)
        sigma, grads = sigma_P[weights], self._student.grads[weights]
        psi = self._student.params[weights] - sigma
        grads.add_(psi.sign(), alpha=self._settings.weight_sparsity)
        grads.add_(psi - sigma, alpha=2.0 * self._settings.weight_distance)


def vote(labels_B: Tensor, helpers_HB: Tensor, num_classes: int) -> Tensor:
    """The label that most of the client and its helpers give; of several the first."""
    votes_HBC = functional.one_hot(torch.cat([labels_B[None], helpers_HB]), num_classes)
    return votes_HBC.sum(0).argmax(1)


def helper_loss(logits_SC: Tensor, helpers_SHC: Tensor) -> Tensor:
    """Mean over samples and helpers of KL(helper ‖ client); `helpers_SHC` are log-probabilities."""
    num_samples, num_helpers, _ = helpers_SHC.shape
    if num_helpers == 0:
        return logits_SC.new_zeros(())
    log_SHC = logits_SC.log_softmax(1)[:, None].expand_as(helpers_SHC)
    total = functional.kl_div(log_SHC, helpers_SHC, reduction="sum", log_target=True)
    return total / (num_samples * num_helpers)
