"""Server-only training: the floor that a federated run has to beat, from the same labels and nothing else.

It has a budget of epochs and a cosine over its steps. It has strong views and the server's learning rate, unless weak
views alone or another rate do better on labels held out from the labelled samples by more than one standard error; then
it trains on all of them. N samples, C classes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch.nn import functional as F

from fedil_model.data.datasets.interface import Samples, Views
from fedil_model.errors import NumericError
from fedil_model.networks.normalisation import refresh_statistics
from fedil_model.seeding import derive_seed
from fedil_model.settings import Learning, ServerSettings
from fedil_model.training.evaluate import predict_logits
from fedil_model.training.flat_model import FlatModel
from fedil_model.training.supervised import train_supervised

HOLD_OUTS = 2
_HELD_OUT_PART = 5
"""One in so many labels of a class is held out, but at least one of two."""
_TRIAL_PART = 4
"""A trial gets one in so many epochs of the budget."""


@dataclass(frozen=True)
class Choice:
    """What a floor is trained with, and how that did on held-out labels."""

    lr: float
    strong_weight: float
    held_out_accuracy: float
    """Mean over hold-outs; 0 where training diverged"""
    held_out_loss: float


class Floor:
    """Trains `model` from the weights that it holds when this is made."""

    def __init__(
        self,
        model: FlatModel,
        labelled: Samples,
        views: Views,
        learning: Learning,
        *,
        epochs: int,
        check_stop: Callable[[], None] = lambda: None,
        on_epoch: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
    ) -> None:
        """`on_epoch`: called with the epochs that are done, of trials too, and how many there are in all"""
        self._model, self._labelled, self._views, self._learning = model, labelled, views, learning
        self._epochs, self._check_stop, self._on_epoch = epochs, check_stop, on_epoch
        self._epochs_done = 0
        self._initial = model.weights()

    def train(self) -> list[Choice]:
        """Leaves the trained floor in the model. Returns what was tried, the choice first."""
        server = self._learning.server
        candidates = list(product(_rates(server), _strong_weights(server)))
        self._epochs_in_all = self._epochs + len(candidates) * HOLD_OUTS * self._trial_epochs
        tried = self._rank([self._try(pair) for pair in candidates])
        for number, choice in enumerate(tried):
            try:
                self._fit(self._labelled, choice.lr, choice.strong_weight, self._epochs, "baseline")
            except NumericError:
                # A rate that is fine for a part of the budget may not be so for all of it.
                if choice is tried[-1]:
                    raise
            else:
                return tried[number:]
        raise AssertionError("there is always a candidate")

    def _rank(self, tried: list[Choice]) -> list[Choice]:
        """From best to worst, but strong views and the server's own rate first unless the best is clearly better."""
        ranked = sorted(tried, key=_from_best_to_worst)
        server = self._learning.server
        wanted = (server.pretrain_lr or server.lr, _strong_weights(server)[-1])
        own = next(one for one in ranked if (one.lr, one.strong_weight) == wanted)
        share = own.held_out_accuracy
        held_out = sum(
            len(hold_out(self._labelled, self._learning.seed, n)[1].labels) for n in range(HOLD_OUTS)
        )
        error = math.sqrt(share * (1.0 - share) / max(held_out, 1))
        if ranked[0].held_out_accuracy - share > error + 1e-9:
            return ranked
        return [own, *(one for one in ranked if one is not own)]

    def _try(self, candidate: tuple[float, float]) -> Choice:
        """A learning rate and a weight of the strong view"""
        scores = [self._score(*candidate, number) for number in range(HOLD_OUTS)]
        accuracy, loss = np.mean(scores, axis=0).tolist()
        return Choice(*candidate, accuracy, loss)

    def _score(self, lr: float, strong_weight: float, number: int) -> tuple[float, float]:
        """Accuracy and loss on one hold-out. All candidates see the same samples in the same order."""
        kept, held_out = hold_out(self._labelled, self._learning.seed, number)
        if len(held_out.labels) == 0:
            return 0.0, 0.0
        try:
            self._fit(kept, lr, strong_weight, self._trial_epochs, "hold-out", number)
        except NumericError:
            return 0.0, float("inf")
        precision = self._learning.autocast
        logits_NC = predict_logits(self._model.module, held_out.inputs, self._views, precision=precision)
        right = (logits_NC.argmax(1) == held_out.labels).double().mean()
        return float(right), float(F.cross_entropy(logits_NC, held_out.labels))

    def _fit(self, samples: Samples, lr: float, strong_weight: float, epochs: int, *names: int | str) -> None:
        self._model.load(self._initial)
        train_supervised(
            self._model,
            samples,
            self._views,
            self._learning,
            seed=derive_seed(self._learning.seed, *names),
            epochs=epochs,
            lr=lr,
            strong_weight=strong_weight,
            decay=True,
            check_stop=self._check_stop,
            on_epoch=self._count,
        )
        # Static batch norm leaves no statistics behind; a network without it is not touched.
        refresh_statistics(self._model.module, samples.inputs, self._views.plain)

    @property
    def _trial_epochs(self) -> int:
        return max(self._epochs // _TRIAL_PART, 1)

    def _count(self, *_: int) -> None:
        self._epochs_done += 1
        self._on_epoch(min(self._epochs_done, self._epochs_in_all), self._epochs_in_all)


def hold_out(labelled: Samples, seed: int, number: int) -> tuple[Samples, Samples]:
    """(rest, held-out fifth), by class. Hold-outs 0 and 1 share no sample; a class with one sample has none."""
    labels_N = labelled.labels.cpu().numpy()
    rng, held_N = np.random.default_rng(derive_seed(seed, "hold-out")), np.zeros(len(labels_N), bool)
    for label in np.unique(labels_N):
        rows = rng.permutation(np.flatnonzero(labels_N == label))
        size = max(len(rows) // _HELD_OUT_PART, 1) if len(rows) > 1 else 0
        held_N[rows[number * size : (number + 1) * size]] = True
    chosen_N = torch.from_numpy(held_N).to(labelled.labels.device)
    rest, held_out = (Samples(labelled.inputs[rows], labelled.labels[rows]) for rows in (~chosen_N, chosen_N))
    return rest, held_out


def _rates(server: ServerSettings) -> list[float]:
    """The run's own, and twice the larger: a cosine allows more than a constant rate."""
    own = {server.lr, server.pretrain_lr or server.lr}
    return sorted(own | {2.0 * max(own)})


def _strong_weights(server: ServerSettings) -> list[float]:
    return [0.0, max(server.strong_weight, server.pretrain_strong_weight) or 1.0]


def _from_best_to_worst(choice: Choice) -> tuple[float, float]:
    # Rounded: the last bits of a mean must not decide between equal accuracies.
    return -round(choice.held_out_accuracy, 9), choice.held_out_loss
