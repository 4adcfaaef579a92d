"""Global incremental learning (eq. 24-26): fold updates one by one, in any order, with the same bits.

Float addition is not associative, so each contribution is first rounded to a multiple of FINE and cut into a
multiple of COARSE and a rest; sums of either, within bounds that are kept, are exact in float32. Memory does
not grow with the updates. P parameters, of which the first D take weight decay.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedil_model.errors import NumericError
from fedil_model.hyperparameters import FedILSettings
from fedil_model.parameters import Weights

FINE = 2.0**-32
COARSE = 2.0**-12
# Adding and then subtracting this rounds a float32 of moderate size to a multiple of the grid.
_TO_FINE = 1.5 * 2**23 * FINE
_TO_COARSE = 1.5 * 2**23 * COARSE
MAX_ENTRY = 2**22 * COARSE
"""Largest entry that _TO_COARSE rounds right."""
_COARSE_ROOM = 2**24 * COARSE
_FINE_ROOM = 2**24 * FINE
# Small enough that a block's intermediates stay in the cache.
_BLOCK = 1 << 16
TINY_NORM = 1e-12
FADED_REFERENCE = 1e-6
"""Below this share of ‖θ′‖ the server's step is noise, and no reason to turn anybody away."""
MAX_NORM_RATIO = 10.0
"""An update that would move θ′ by more than this multiple of its own length is no update."""


class ExactSum:
    """A sum of float32 vectors that does not depend on their order."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._coarse = torch.zeros(size, device=device)
        self._rest = torch.zeros(size, device=device)
        self._coarse_bound = self._rest_bound = 0.0
        self._scratch = (_scratch(size, device), _scratch(size, device), _scratch(size, device))

    def add(self, x: Tensor, norm: float, scale: float = 1.0, along: Tensor | None = None, by: float = 0.0) -> None:
        """Adds scale·x + by·along, no entry of which may exceed `norm`."""
        self._make_room(norm)
        for block in _blocks(x.numel()):
            coarse, rest, scaled = (s[: block.stop - block.start] for s in self._scratch)
            part = x[block]
            if scale != 1.0 or along is not None:
                part = torch.mul(part, scale, out=scaled)
            if along is not None:
                part.add_(along[block], alpha=by)
            torch.add(part, _TO_COARSE, out=coarse).sub_(_TO_COARSE)
            torch.sub(part, coarse, out=rest).add_(_TO_FINE).sub_(_TO_FINE)
            self._coarse[block].add_(coarse)
            self._rest[block].add_(rest)

    def _make_room(self, norm: float) -> None:
        """Keeps both sums where float32 is exact; the bounds are cheap guesses, renewed when they run out."""
        if norm > MAX_ENTRY:
            raise NumericError(f"an update of norm {norm:.3g} cannot be summed exactly")
        if self._rest_bound + COARSE > _FINE_ROOM:
            carry = (self._rest + _TO_COARSE).sub_(_TO_COARSE)
            self._coarse.add_(carry)
            self._rest.sub_(carry)
            self._coarse_bound += self._rest_bound + COARSE
            self._rest_bound = COARSE
        if self._coarse_bound + norm + COARSE > _COARSE_ROOM:
            self._coarse_bound = float(self._coarse.abs().max())
        if self._coarse_bound + norm + COARSE > _COARSE_ROOM:
            raise NumericError("the sum of updates is too large to be exact: fewer clients a round, please")
        self._coarse_bound += norm + COARSE
        self._rest_bound += COARSE

    def mean(self, weight: float) -> Tensor:
        return ((self._coarse.double() + self._rest) / weight).float()


@dataclass(frozen=True)
class Verdict:
    outcome: str
    """accepted, projected, rejected_cosine or invalid"""
    cosine: float | None = None
    detail: str = ""

    @property
    def counts(self) -> bool:
        return self.outcome in ("accepted", "projected")


class IncrementalFold:
    """One round's Δθ. `started` is where clients started from: θ′ in the paper, θ₀ if they start there."""

    def __init__(
        self, global_: Weights, server: Weights, settings: FedILSettings, num_decayed: int, server_decay: float
    ) -> None:
        self._settings = settings
        self._num_decayed = num_decayed
        self._started = (server if settings.client_init == "server" else global_).params
        step = server.params - global_.params
        self.reference_norm = float(torch.linalg.vector_norm(step))
        self._step = step
        self._from_start = settings.cosine_reference == "start" and settings.client_init == "server"
        self._start_norm = float(torch.linalg.vector_norm(self._started))
        # Weight decay moves server and clients alike; taken out, so that it cannot pass for agreement.
        self._reference = step.clone()
        self._reference[:num_decayed].add_(global_.params[:num_decayed], alpha=1.0 - server_decay)
        self._direction_norm = float(torch.linalg.vector_norm(self._reference))
        model_norm = float(torch.linalg.vector_norm(global_.params))
        self.faded = self._direction_norm <= max(TINY_NORM, FADED_REFERENCE * model_norm)
        self._max_norm = min(MAX_NORM_RATIO * max(model_norm, self.reference_norm, 1.0), MAX_ENTRY / 4)
        self._params = ExactSum(step.numel(), step.device)
        self._buffers = ExactSum(global_.buffers.numel(), step.device)
        self._scratch = (_scratch(step.numel(), step.device), _scratch(step.numel(), step.device))
        self._weight = 0.0
        self.num_accepted = 0

    def add(self, delta: Weights, client_decay: float) -> Verdict:
        """`delta` is θ* − θ′; `client_decay` what decay alone left of the client's starting weights."""
        if delta.params.numel() != self._reference.numel():
            return Verdict("invalid", detail=f"{delta.params.numel()} parameters, not {self._reference.numel()}")
        dot, norm, moved = self._measure(delta.params, client_decay)
        if not math.isfinite(norm) or not bool(torch.isfinite(delta.buffers).all()):
            return Verdict("invalid", detail="not finite")
        if norm > self._max_norm:
            return Verdict("invalid", detail=f"norm {norm:.3g} exceeds {self._max_norm:.3g}")
        if moved <= TINY_NORM:
            return Verdict("rejected_cosine", detail="the client did not move")
        cosine = None if self.faded else dot / (moved * self._direction_norm)
        verdict = self._judge(cosine)
        if verdict.counts:
            self._take(delta, verdict, dot, norm)
        return verdict

    def _measure(self, delta: Tensor, client_decay: float) -> tuple[float, float, float]:
        """⟨d, g₀⟩, a bound of ‖delta‖, and ‖d‖, where d is the client's movement without weight decay.

        Products and sums instead of torch.dot: its last bits depend on how the received buffer is aligned."""
        dots, squares = [], []
        for block in _blocks(delta.numel()):
            moved, product = (s[: block.stop - block.start] for s in self._scratch)
            d = self._without_decay(delta, block, client_decay, moved)
            dots.append(torch.mul(d, self._reference[block], out=product).sum())
            squares.append(torch.mul(d, d, out=product).sum())
        dot, square = (float(torch.stack(parts).double().sum()) for parts in (dots, squares))
        moved_norm = math.sqrt(square) if math.isfinite(square) else math.inf
        removed = abs(1.0 - client_decay) * self._start_norm + (self.reference_norm if self._from_start else 0.0)
        return dot, moved_norm + removed, moved_norm

    def _without_decay(self, delta: Tensor, block: slice, client_decay: float, out: Tensor) -> Tensor:
        d = delta[block]
        if self._from_start:
            d = torch.sub(d, self._step[block], out=out)
        decayed = min(block.stop, self._num_decayed) - block.start
        if decayed <= 0 or client_decay == 1.0:
            return d
        start = self._started[block.start : block.start + decayed]
        if decayed < len(d):
            out[decayed:].copy_(d[decayed:])
        torch.add(d[:decayed], start, alpha=1.0 - client_decay, out=out[:decayed])
        return out

    def _judge(self, cosine: float | None) -> Verdict:
        if cosine is None or not self._settings.cosine_filter or cosine >= 0.0:
            return Verdict("accepted", cosine)
        if self._settings.on_reject == "project":
            return Verdict("projected", cosine)
        return Verdict("rejected_cosine", cosine, f"cosine {cosine:.4f} is negative")

    def _take(self, delta: Weights, verdict: Verdict, dot: float, norm: float) -> None:
        scale = weight = 1.0
        if self._settings.soft_cosine and verdict.cosine is not None:
            weight = max(abs(verdict.cosine), 1e-3)
        if self._settings.normalise == "reference" and self.reference_norm > TINY_NORM:
            scale = self.reference_norm / norm
        # The weights are summed too, so they have to lie on the grid as well.
        weight = round(weight * 2**20) / 2**20
        along, by = None, 0.0
        if verdict.outcome == "projected":
            along, by = self._reference, -weight * scale * dot / self._direction_norm**2
        self._params.add(delta.params, 2.0 * weight * scale * norm, weight * scale, along, by)
        if delta.buffers.numel():
            self._buffers.add(delta.buffers, weight * float(delta.buffers.abs().max()), weight)
        self._weight += weight
        self.num_accepted += 1

    def mean(self) -> Weights | None:
        """Δθ; None if nobody was accepted (eq. 25 would be 0/0: θ′ stays as it is)."""
        if self.num_accepted == 0:
            return None
        return Weights(self._params.mean(self._weight), self._buffers.mean(self._weight))


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK, size)) for start in range(0, size, _BLOCK))


def _scratch(size: int, device: torch.device) -> Tensor:
    return torch.empty(min(size, _BLOCK), device=device)
