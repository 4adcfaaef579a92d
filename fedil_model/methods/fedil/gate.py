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
from fedil_model.training.exact_sum import blocks
from fedil_model.training.flat_model import Weights

MOVEMENT = "movement"
"""Of the server's state: decaying sum of what clients added to where they started, on average"""
EXCESS_LOSSES, MOVEMENT_COSINES = "excess_losses", "movement_cosines"
"""Of the server's state: those of the last valid updates, whatever became of them"""
NUM_KEPT = 40
_SPREADS = 4.0
"""Median absolute deviations from the median that are nothing unusual"""
_UPPER_SPREADS = 2.5
"""Of movement cosines, below their median"""
_MOST = 1e3
"""A loss that is not finite counts as this."""


class LabelGate:
    """Judges each update alone, so the order in which they come does not matter."""

    def __init__(
        self,
        settings: FedILSettings,
        loss: Callable[[Weights], float],
        state: State,
        num_classes: int,
        seed: int,
    ) -> None:
        """`loss` of a model on the labelled samples"""
        self._settings, self._loss, self._seed = settings, loss, seed
        self._movement = state.get(MOVEMENT)
        self._usual = {
            name: state[name].double() for name in (EXCESS_LOSSES, MOVEMENT_COSINES) if name in state
        }
        self._limit = self._find_limit(num_classes)
        self._least_cosine = self._find_least_cosine()
        self._losses: dict[int, float] = {}
        self._seen: dict[str, list[float]] = {name: [] for name in self._usual}

    def judge(self, trained: Weights, start: Weights, version: int) -> Verdict:
        """`trained` is θ*; clients of that version begin with `start`."""
        values: dict[str, float] = {}
        if self._settings.loss_margin > 0.0:
            if version not in self._losses:
                self._losses[version] = self._loss(start)
            before, after = self._losses[version], self._loss(trained)
            excess = values["excess_loss"] = after - before if math.isfinite(after) else _MOST
            self._seen[EXCESS_LOSSES].append(min(excess, _MOST))
            if excess > self._limit:
                words = (
                    f"adds {excess:.3f} to the loss on the labelled samples; the limit is {self._limit:.3f}"
                )
                return Verdict(REJECTED_LOSS, words, values)
        cosine = self._movement_cosine(trained, start)
        if cosine is not None:
            values["movement_cosine"] = cosine
            self._seen[MOVEMENT_COSINES].append(cosine)
            if cosine < self._least_cosine:
                words = f"cosine {cosine:.4f} with earlier movement; the limit is {self._least_cosine:.4f}"
                return Verdict(REJECTED_MOVEMENT, words, values)
        return Verdict(ACCEPTED, values=values)

    def _find_limit(self, num_classes: int) -> float:
        """How much training usually adds depends on data and round: θ₀ has seen these labels, clients have not. So
        earlier updates say what is usual; their median stands while fewer than half of the clients are hostile."""
        usual = self._usual.get(EXCESS_LOSSES, torch.zeros(0))
        if len(usual) == 0:
            return max(math.log(num_classes), self._settings.loss_margin)
        median = usual.median()
        spread = float((usual - median).abs().median())
        return float(median) + max(self._settings.loss_margin, _SPREADS * spread)

    def _find_least_cosine(self) -> float:
        """0, or less where that is usual: once little is left to learn, honest movement is mostly noise, and with a
        limit of 0 one bad direction could keep every later update out. Hostile updates are the lowest, so the spread is
        that of the upper half."""
        usual = self._usual.get(MOVEMENT_COSINES, torch.zeros(0))
        if len(usual) == 0:
            return 0.0
        median = usual.median()
        spread = float((usual[usual >= median] - median).median())
        return min(0.0, float(median) - _UPPER_SPREADS * spread)

    def seen(self) -> dict[str, Tensor]:
        """What the next round knows of the last updates. Neither the order in which they came nor their size decides
        which are kept of a large round."""
        return {
            name: torch.cat([usual, self._shuffled(self._seen[name])])[-NUM_KEPT:]
            for name, usual in self._usual.items()
        }

    def _shuffled(self, values: list[float]) -> Tensor:
        generator = torch.Generator().manual_seed(self._seed)
        order = torch.randperm(len(values), generator=generator)
        return torch.tensor(sorted(values), dtype=torch.float64)[order]

    def _movement_cosine(self, trained: Weights, start: Weights) -> float | None:
        """None without earlier movement"""
        if self._movement is None:
            return None
        dot = square = known = 0.0
        movement_P = self._movement.to(trained.params.device)
        for then, end, begin in blocks(movement_P, trained.params, start.params):
            moved = (end - begin).double()
            then = then.double()
            dot += float(moved @ then)
            square += float(moved @ moved)
            known += float(then @ then)
        return dot / math.sqrt(square * known) if square > 0.0 and known > 0.0 else None
