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
from fedil_model.methods.interface import ACCEPTED, State, Verdict
from fedil_model.training.exact_sum import BLOCK
from fedil_model.training.flat_model import Weights

MOVEMENT = "movement"
"""Of the server's state: decaying sum of what clients added to where they started, on average"""
EXCESS_LOSSES = "excess_losses"
"""Of the server's state: those of the last valid updates, whatever became of them"""
NUM_KEPT = 40
_SPREADS = 4.0
"""Median absolute deviations from the median that are nothing unusual"""
_MOST = 1e3
"""A loss that is not finite counts as this."""


class LabelGate:
    """Judges each update alone, so the order in which they come does not matter."""

    def __init__(
        self, settings: FedILSettings, loss: Callable[[Weights], float], state: State, num_classes: int
    ) -> None:
        """`loss` of a model on the labelled samples"""
        self._settings, self._loss = settings, loss
        self._movement = state.get(MOVEMENT)
        self._usual = state.get(EXCESS_LOSSES, torch.zeros(0)).double()
        self._limit = self._find_limit(num_classes)
        self._losses: dict[int, float] = {}
        self._seen: list[float] = []

    def judge(self, trained: Weights, start: Weights, version: int) -> Verdict:
        """`trained` is θ*; clients of that version begin with `start`."""
        values: dict[str, float] = {}
        if self._settings.loss_margin > 0.0:
            if version not in self._losses:
                self._losses[version] = self._loss(start)
            before, after = self._losses[version], self._loss(trained)
            excess = values["excess_loss"] = after - before if math.isfinite(after) else _MOST
            self._seen.append(min(excess, _MOST))
            if excess > self._limit:
                words = (
                    f"adds {excess:.3f} to the loss on the labelled samples; the limit is {self._limit:.3f}"
                )
                return Verdict(REJECTED_LOSS, words, values)
        cosine = self._movement_cosine(trained, start)
        if cosine is not None:
            values["movement_cosine"] = cosine
            if cosine < 0.0:
                return Verdict(REJECTED_MOVEMENT, f"cosine {cosine:.4f} with earlier movement", values)
        return Verdict(ACCEPTED, values=values)

    def _find_limit(self, num_classes: int) -> float:
        """How much training usually adds depends on data and round: θ₀ has seen these labels, clients have not. So
        earlier updates say what is usual; their median stands while fewer than half of the clients are hostile."""
        if len(self._usual) == 0:
            return max(math.log(num_classes), self._settings.loss_margin)
        median = self._usual.median()
        spread = float((self._usual - median).abs().median())
        return float(median) + max(self._settings.loss_margin, _SPREADS * spread)

    def seen(self) -> Tensor:
        """What the next round knows of excess losses. The order in which updates came does not show."""
        return torch.cat([self._usual, torch.tensor(sorted(self._seen), dtype=torch.float64)])[-NUM_KEPT:]

    def _movement_cosine(self, trained: Weights, start: Weights) -> float | None:
        """None without earlier movement"""
        if self._movement is None:
            return None
        dot = square = known = 0.0
        movement_P = self._movement.to(trained.params.device)
        for then, end, begin in _blocks(movement_P, trained.params, start.params):
            moved = (end - begin).double()
            then = then.double()
            dot += float(moved @ then)
            square += float(moved @ moved)
            known += float(then @ then)
        return dot / math.sqrt(square * known) if square > 0.0 and known > 0.0 else None


def _blocks(*vectors: Tensor) -> "zip[tuple[Tensor, ...]]":
    return zip(*(torch.split(vector, BLOCK) for vector in vectors), strict=True)
