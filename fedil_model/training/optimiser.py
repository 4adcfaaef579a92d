"""SGD on a FlatModel's vectors, and what weight decay alone would have done to them."""

import math

import numpy as np
import torch
from torch import Tensor

from fedil_model.settings import OptimiserSettings
from fedil_model.training.flat_model import FlatModel


def learning_rate(settings: OptimiserSettings, round_number: int, rounds: int) -> float:
    """Rounds count from 1; the cosine goes from lr to lr × lr_floor over the run."""
    if settings.lr_schedule == "constant":
        return settings.lr
    done = min(max(round_number - 1, 0) / max(rounds, 1), 1.0)
    return settings.lr * (settings.lr_floor + (1.0 - settings.lr_floor) * cosine(done))


def cosine(done: float) -> float:
    """From 1 to 0 as `done` goes from 0 to 1."""
    return (1.0 + math.cos(math.pi * done)) / 2.0


class FlatSGD:
    """The update rule of torch.optim.SGD, as a handful of operations on whole vectors."""

    def __init__(self, model: FlatModel, settings: OptimiserSettings, lr: float) -> None:
        self._model = model
        self._settings = settings
        self.lr = lr
        self._grads = model.grads
        self._velocity: Tensor | None = None
        self.num_steps = 0

    def zero_grad(self) -> None:
        self._grads.zero_()

    def step(self) -> None:
        s, params, grads = self._settings, self._model.params, self._grads
        with torch.no_grad():
            if s.clip_norm > 0.0:
                # A tensor, not a number: no wait for the device in every step.
                grads.mul_((s.clip_norm / (torch.linalg.vector_norm(grads) + 1e-6)).clamp(max=1.0))
            if s.weight_decay > 0.0:
                decayed = self._model.num_decayed
                grads[:decayed].add_(params[:decayed], alpha=s.weight_decay)
            step = grads
            if s.momentum > 0.0:
                self._velocity = grads.clone() if self._velocity is None else self._velocity
                if self.num_steps > 0:
                    self._velocity.mul_(s.momentum).add_(grads)
                step = grads.add_(self._velocity, alpha=s.momentum) if s.nesterov else self._velocity
            params.add_(step, alpha=-self.lr)
        self.num_steps += 1


def decay_factor(settings: OptimiserSettings, lr: float, num_steps: int) -> float:
    """What multiplies a decayed starting weight after `num_steps` steps in which every gradient is zero.
    The number may come from a stranger, so it costs the same whatever it is.

    SGD is linear in (weight, velocity, gradients), so a trained weight is exactly this factor × its start +
    what the gradients contributed; subtracting the first part makes an update free of decay.
    """
    # In terms of this weight and this velocity, with the pull of decay as the only gradient:
    pull = np.array([settings.weight_decay, 0.0])
    velocity = pull + np.array([0.0, settings.momentum])
    step = pull + settings.momentum * velocity if settings.nesterov else velocity
    transition = np.array([np.array([1.0, 0.0]) - lr * step, velocity])
    return float(np.linalg.matrix_power(transition, num_steps)[0, 0])
