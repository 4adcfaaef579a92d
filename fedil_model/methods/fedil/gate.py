"""Tries a client's model on the server's labels, and compares its movement with that of the rounds before.

The cosine with g₀ (eq. 24) says little where clients start from θ₀: θ* − θ′ contains the server's own step, so only an
update that undoes all of it has a negative cosine. Labels that were permuted show in the loss; a movement that was
negated hardly does, but it opposes what earlier clients did.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedil_model.methods.fedil.display import REJECTED_LOSS, REJECTED_MOVEMENT
from fedil_model.methods.fedil.settings import FedILSettings
from fedil_model.methods.interface import ACCEPTED, Verdict
from fedil_model.training.exact_sum import BLOCK
from fedil_model.training.flat_model import Weights

MOVEMENT = "movement"
"""Of the server's state: decaying sum of what clients added to where they started, on average"""


class LabelGate:
    """Judges each update alone, so the order in which they come does not matter."""

    def __init__(
        self, settings: FedILSettings, loss: Callable[[Weights], float], movement: Tensor | None
    ) -> None:
        """`loss` of a model on the labelled samples"""
        self._settings, self._loss, self._movement = settings, loss, movement
        self._losses: dict[int, float] = {}

    def judge(self, trained: Weights, start: Weights, version: int) -> Verdict:
        """`trained` is θ*; clients of that version begin with `start`."""
        values: dict[str, float] = {}
        if self._settings.loss_margin > 0.0:
            if version not in self._losses:
                self._losses[version] = self._loss(start)
            before, after = self._losses[version], self._loss(trained)
            values["excess_loss"] = after - before if math.isfinite(after) else math.inf
            if values["excess_loss"] > self._settings.loss_margin:
                words = f"loss {after:.3f} on the labelled samples, where it started {before:.3f}"
                return Verdict(REJECTED_LOSS, words, values)
        cosine = self._movement_cosine(trained, start)
        if cosine is not None:
            values["movement_cosine"] = cosine
            if cosine < 0.0:
                return Verdict(REJECTED_MOVEMENT, f"cosine {cosine:.4f} with earlier movement", values)
        return Verdict(ACCEPTED, values=values)

    def _movement_cosine(self, trained: Weights, start: Weights) -> float | None:
        """None without earlier movement"""
        if self._movement is None:
            return None
        dot = square = known = 0.0
        for then, end, begin in _blocks(self._movement, trained.params, start.params):
            moved = (end - begin).double()
            then = then.double()
            dot += float(moved @ then)
            square += float(moved @ moved)
            known += float(then @ then)
        return dot / math.sqrt(square * known) if square > 0.0 and known > 0.0 else None


def _blocks(*vectors: Tensor) -> "zip[tuple[Tensor, ...]]":
    return zip(*(torch.split(vector, BLOCK) for vector in vectors), strict=True)
