"""Training on labelled data: the server's step of every method here, and the server-only floor."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedil_model.data.datasets.interface import Samples, Views
from fedil_model.errors import NumericError
from fedil_model.settings import Learning
from fedil_model.training.batches import shuffled_batches
from fedil_model.training.flat_model import FlatModel, all_finite
from fedil_model.training.optimiser import FlatSGD, cosine
from fedil_model.training.precision import autocast, seeded


@dataclass(frozen=True)
class Supervised:
    num_steps: int
    loss: float
    """Mean over the last epoch"""


def train_supervised(
    model: FlatModel,
    samples: Samples,
    views: Views,
    learning: Learning,
    *,
    seed: int,
    epochs: int,
    lr: float,
    strong_weight: float,
    decay: bool = False,
    ceiling: float = 1.0,
    check_stop: Callable[[], None] = lambda: None,
    on_epoch: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
) -> Supervised:
    """Eq. 22, with the loss that it means: cross-entropy of the weak view against the true label. With `decay` the rate
    goes to 0 along a cosine over these steps. A sample counts only while the probability of its label is at most
    `ceiling`. `check_stop` is called with every batch, and may raise; `on_epoch` with the epochs that are done, and how
    many there are."""
    settings, generator = learning.server, torch.Generator().manual_seed(seed)
    counting_C = class_weights(settings.class_weights, samples.labels)
    optimiser = FlatSGD(model, settings, lr)
    model.module.train()
    epoch_loss = torch.zeros((), device=model.device)
    with seeded(seed, model.device):
        for epoch in range(epochs):
            epoch_loss = torch.zeros((), device=model.device)
            batches = shuffled_batches(len(samples.labels), settings.batch_size, generator, model.device)
            for number, batch in enumerate(batches):
                check_stop()
                if decay:
                    optimiser.lr = lr * cosine((epoch + number / len(batches)) / epochs)
                raw, labels_B = samples.inputs[batch], samples.labels[batch]
                inputs, weights = [views.weak(raw, generator)], [1.0]
                if strong_weight > 0.0:
                    inputs.append(views.strong(raw, generator))
                    weights.append(strong_weight)
                with autocast(model.device, learning.autocast):
                    parts = torch.split(model.module(torch.cat(inputs)).float(), len(batch))
                losses = [
                    w * labelled_loss(part, labels_B, ceiling, counting_C)
                    for w, part in zip(weights, parts, strict=True)
                ]
                loss = torch.stack(losses).sum()
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                epoch_loss += loss.detach() * (len(batch) / len(samples.labels))
            on_epoch(epoch + 1, epochs)
    result = Supervised(optimiser.num_steps, float(epoch_loss))
    if not all_finite(model.params):
        raise NumericError(
            "training on the labelled data diverged: begin anew with a lower server.lr or server.clip_norm"
        )
    return result


def class_weights(setting: Literal["balanced"] | list[float] | None, labels_N: Tensor) -> Tensor | None:
    """ "balanced": classes that have labels count alike, and a sample counts 1 on average, as scikit-learn has it."""
    if setting is None:
        return None
    if setting != "balanced":
        return torch.tensor(setting, dtype=torch.float32, device=labels_N.device)
    held_C = torch.bincount(labels_N)
    return len(labels_N) / ((held_C > 0).sum() * held_C.clamp(min=1))


def labelled_loss(
    logits_BC: Tensor, labels_B: Tensor, ceiling: float, weights_C: Tensor | None = None
) -> Tensor:
    """Cross-entropy. The mean is over the samples that are not above the ceiling, as UDA's authors compute it, and
    weighted by class where there are weights."""
    if ceiling >= 1.0 and weights_C is None:
        return F.cross_entropy(logits_BC, labels_B)
    losses_B = F.cross_entropy(logits_BC, labels_B, reduction="none")
    counts_B = (losses_B.detach() >= -math.log(ceiling)).float()
    if weights_C is None:
        return (losses_B * counts_B).sum() / counts_B.sum().clamp(min=1)
    counts_B *= weights_C[labels_B]
    return (losses_B * counts_B).sum() / counts_B.sum().clamp(min=float(weights_C.min()))
