"""Global incremental learning (eq. 24-26): judge and fold updates one by one; none of them is kept.

P parameters, of which the first D take weight decay; v_D and v_R are the first D entries of v and the rest.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fedil_model.methods.averaging import (
    MAX_NORM_RATIO,
    WeightedMean,
    bound_entries,
    find_excess,
    on_grid,
)
from fedil_model.methods.fedil.display import PROJECTED, REJECTED
from fedil_model.methods.fedil.settings import FedILSettings
from fedil_model.methods.interface import ACCEPTED, INVALID, Verdict
from fedil_model.training.exact_sum import BLOCK, MAX_ENTRY
from fedil_model.training.flat_model import ALIGNMENT, Weights

TINY_NORM = 1e-12
FADED_REFERENCE = 1e-6
"""Below this share of ‖θ′‖ the server's step is noise, and no reason to reject an update."""
RESOLUTION = 1e-3
"""Movement below this share of the decay that was taken out of it is rounding."""
MIN_COSINE = 1e-3
"""Of a soft cosine: weights of 0 could make eq. 25 0/0."""
KEPT_BYTES = 256 << 20
"""Of a model: a larger one's g₀ is computed anew for every update, which takes less time than the update's way here."""
_ROW_OF_X = 2
"""Of a gauge's scratch; the first two are for g₀ and θ′."""


@dataclass(frozen=True)
class Measured:
    """An update against g₀; d is the client's movement without weight decay, g₀ the server's."""

    gauge: "Gauge"
    norm: float
    """‖θ* − θ′‖"""
    moved: float
    """‖d‖; 0 where it cannot be told from rounding"""
    dot: float
    """⟨d, g₀⟩"""


class Gauge:
    """Measures updates that started from one model version, without weight decay, which moves server and clients
    alike and must not pass for agreement.

    With s and c what decay alone leaves of the weights that server and client start from, the server has
    θ₀_D = s·θ′_D + g₀_D and θ₀_R = θ′_R + g₀_R. So d differs from θ* − θ′ by a combination of g₀_D, θ′_D and
    g₀_R, whose products with the update are enough: no entry needs to be corrected.
    """

    def __init__(self, global_: Tensor, server: Tensor, num_decayed: int, server_decay: float) -> None:
        self.global_, self._server = global_, server
        self._num_decayed, self._server_decay = num_decayed, server_decay
        cuts = [*range(0, num_decayed, BLOCK), *range(num_decayed, len(global_), BLOCK), len(global_)]
        self._spans = list(pairwise(cuts))
        self._num_decayed_spans = -(-num_decayed // BLOCK)
        self._scratch = global_.new_empty(3, BLOCK)
        self._products = global_.new_empty(len(self._spans), 3)
        self._outs = [(row[:2], row[2]) for row in self._products]
        self._kept: Tensor | None = None
        if global_.nbytes <= KEPT_BYTES:
            self._kept = torch.cat([self._rows(*span).clone() for span in self._spans], dim=1)
        (dd, dt, rr), _ = self._multiply(self.reference)
        (_, tt, _), square = self._multiply(lambda start, stop: global_[start:stop])
        self._gram = np.array([[dd, dt, 0.0], [dt, tt, 0.0], [0.0, 0.0, rr]])
        self.reference_norm = math.sqrt(dd + rr)
        model_norm = math.sqrt(square)
        self.step_norm = math.sqrt(self._multiply(partial(self._step, row=_ROW_OF_X))[1])
        """‖θ₀ − θ′‖"""
        self.faded = self.reference_norm <= max(TINY_NORM, FADED_REFERENCE * model_norm)
        """The server's step is too small to be a direction: every update is accepted."""
        self.max_norm = MAX_NORM_RATIO * max(model_norm, self.step_norm, 1.0)

    def reference(self, start: int, stop: int) -> Tensor:
        """g₀'s entries from `start` to `stop`, at most BLOCK; good until the next call."""
        return self._rows(start, stop)[0]

    def _rows(self, start: int, stop: int) -> Tensor:
        """g₀ above θ′: BLAS is faster with both at a time."""
        if self._kept is not None:
            return self._kept[:, start:stop]
        reference, global_ = self._step(start, stop, row=0), self.global_[start:stop]
        decayed = self._num_decayed - start
        if decayed > 0:
            reference[:decayed].add_(global_[:decayed], alpha=1.0 - self._server_decay)
        rows = self._scratch[:2, : stop - start]
        rows[1].copy_(global_)
        return rows

    def _step(self, start: int, stop: int, row: int) -> Tensor:
        """θ₀ − θ′"""
        part = self._scratch[row, : stop - start]
        return torch.sub(self._server[start:stop], self.global_[start:stop], out=part)

    def measure(self, delta: Tensor, client_decay: float, settings: FedILSettings) -> Measured | None:
        """None if it holds NaN or infinity."""
        products, square = self._multiply(lambda start, stop: delta[start:stop])
        if not np.isfinite([*products, square, client_decay]).all():
            return None
        decay = self._decay(client_decay, settings)
        removed = float(decay @ self._gram @ decay)
        moved = max(square + 2.0 * float(decay @ products) + removed, 0.0)
        if moved <= RESOLUTION**2 * removed:
            moved = 0.0
        dot = float(_REFERENCE @ (products + self._gram @ decay))
        return Measured(self, math.sqrt(square), math.sqrt(moved), dot)

    def _decay(self, c: float, settings: FedILSettings) -> np.ndarray:
        """d − (θ* − θ′), as factors of g₀_D, θ′_D and g₀_R."""
        if settings.client_init == "global":
            return np.array([0.0, 1.0 - c, 0.0])
        from_global = np.array([1.0 - c, 1.0 - c * self._server_decay, 0.0])
        return from_global - _REFERENCE if settings.cosine_reference == "start" else from_global

    def _multiply(self, x: Callable[[int, int], Tensor]) -> tuple[np.ndarray, float]:
        """⟨x, ·⟩ with g₀_D, θ′_D and g₀_R, and ⟨x, x⟩, block by block."""
        for (start, stop), (out, square) in zip(self._spans, self._outs, strict=True):
            part = x(start, stop)
            # The last bits that BLAS returns depend on the alignment of what it is given.
            if part.data_ptr() % ALIGNMENT:
                part = self._scratch[_ROW_OF_X, : len(part)].copy_(part)
            torch.mv(self._rows(start, stop), part, out=out)
            torch.dot(part, part, out=square)
        products = self._products.double().cpu().numpy()
        decayed = products[: self._num_decayed_spans].sum(0)
        rest = products[self._num_decayed_spans :].sum(0)
        return np.array([decayed[0], decayed[1], rest[0]]), float(decayed[2] + rest[2])


# g₀ in terms of g₀_D, θ′_D and g₀_R.
_REFERENCE = np.array([1.0, 0.0, 1.0])


class IncrementalFold:
    """The Δθ of one model version. Updates may have started from it or from earlier ones: each is judged by the
    gauge of its own, and all go into one sum."""

    def __init__(
        self,
        global_: Weights,
        server: Weights,
        settings: FedILSettings,
        num_decayed: int,
        server_decay: float,
    ) -> None:
        self._settings = settings
        self.gauge = Gauge(global_.params, server.params, num_decayed, server_decay)
        magnitude = torch.maximum(global_.buffers.abs(), server.buffers.abs())
        self._sum = WeightedMean(global_.params, magnitude)
        self._weights: dict[Gauge, float] = {}
        self._scaled: dict[Gauge, list[float]] = {}
        self.num_accepted = 0

    def add(
        self,
        delta: Weights,
        client_decay: float,
        gauge: Gauge | None = None,
        weight: float = 1.0,
        gate: Callable[[], Verdict] = lambda: Verdict(ACCEPTED),
    ) -> Verdict:
        """`delta` is θ* − θ′ and θ*'s running statistics, `gauge` that of its version (this one if None);
        `client_decay` is what decay alone left of its starting weights, 0 < `weight` ≤ 1 its say in the mean. `gate` is
        asked about valid updates only."""
        gauge = gauge or self.gauge
        measured = gauge.measure(delta.params, client_decay, self._settings)
        buffers = delta.buffers / self._sum.units_Q
        if measured is None:
            return Verdict(INVALID, "its norm is not finite")
        excess = find_excess(measured.norm, gauge.max_norm)
        if excess:
            return Verdict(INVALID, excess)
        if min(measured.norm, measured.moved) <= TINY_NORM:
            return Verdict(REJECTED, "the client did not move")
        tried = gate()
        if tried.outcome != ACCEPTED:
            return tried
        verdict = self._judge(measured)
        verdict = replace(verdict, values={**verdict.values, **tried.values})
        return self._take(delta.params, buffers, verdict, measured, weight) if verdict.counts else verdict

    def _judge(self, measured: Measured) -> Verdict:
        if measured.gauge.faded:
            return Verdict(ACCEPTED, "the server's own step is too small to compare with", counts=True)
        cosine = max(-1.0, min(1.0, measured.dot / (measured.moved * measured.gauge.reference_norm)))
        if not self._settings.cosine_filter or cosine >= 0.0:
            return Verdict(ACCEPTED, values={"cosine": cosine}, counts=True)
        if self._settings.on_reject == "project":
            return Verdict(PROJECTED, values={"cosine": cosine}, counts=True)
        return Verdict(REJECTED, f"cosine {cosine:.4f} is negative", {"cosine": cosine})

    def _take(
        self, params: Tensor, buffers: Tensor, verdict: Verdict, measured: Measured, weight: float
    ) -> Verdict:
        gauge, scale, by = measured.gauge, 1.0, 0.0
        if self._settings.soft_cosine and "cosine" in verdict.values:
            weight *= max(verdict.values["cosine"], MIN_COSINE)
        weight = on_grid(weight)
        if self._settings.normalise == "reference" and gauge.step_norm > TINY_NORM and not gauge.faded:
            scale = gauge.step_norm / measured.norm
        if verdict.outcome == PROJECTED:
            by = -weight * scale * measured.dot / gauge.reference_norm**2
        largest = weight * scale * bound_entries(params, measured.norm) + abs(by) * gauge.reference_norm
        along = gauge.reference if by else None
        if not self._sum.add(params, largest, weight * scale, buffers, weight, along, by):
            return Verdict(INVALID, f"a value moves by more than {MAX_ENTRY:.0f}", verdict.values)
        self._weights[gauge] = self._weights.get(gauge, 0.0) + weight
        if verdict.outcome != PROJECTED:
            self._scaled.setdefault(gauge, []).append(weight * scale)
        self.num_accepted += 1
        return verdict

    def mean(self) -> Weights | None:
        """Δθ and the mean of running statistics; None without an accepted update (eq. 25 would be 0/0: θ′ stays as it
        is)."""
        return self._sum.mean(self._total) if self.num_accepted else None

    def drop_sums(self) -> None:
        """They take as much memory as two models. Nothing can be added any more, and there is no mean."""
        del self._sum

    def share(self, gauge: Gauge) -> float:
        """How much of the mean started from that version, from 0 to 1."""
        return self._weights.get(gauge, 0.0) / self._total if self._weights else 0.0

    def share_of_step(self, gauge: Gauge) -> float:
        """How much of that version's θ₀ − θ′ is in the mean, where clients start from θ₀: updates bring it as scaled,
        and without their part along g₀ they bring none. fsum: the same bits in any order."""
        return math.fsum(self._scaled.get(gauge, ())) / self._total if self._weights else 0.0

    @property
    def _total(self) -> float:
        return sum(self._weights.values())
