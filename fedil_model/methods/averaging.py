"""Exact means of updates, and the fold of methods that average weights as FedAvg does.

Updates come in any order with the same bits, and none of them is kept. P parameters, Q buffer values.
"""

import math
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedil_model.methods.interface import ACCEPTED, INVALID, Answer, Bases, Folded, State, Verdict
from fedil_model.settings import Learning
from fedil_model.training.exact_sum import MAX_ENTRY, ExactSum, largest_entry
from fedil_model.training.flat_model import ALIGNMENT, Weights
from fedil_model.training.optimiser import learning_rate

MAX_NORM_RATIO = 10.0
"""An update that would move the model by more than this multiple of its own length is no update."""
WEIGHT_GRID = 2.0**-20
"""Weights are summed as well, so they too lie on a grid."""
MOST_SAMPLES = 2**20
"""A client counts for at most this many samples, where samples are weights."""
_BUSIEST = 4.0
"""Times the effort of the middle client"""


# ---- what every fold checks -----------------------------------------------------------------------------------------


def read_delta(answer: Answer, bases: Bases, device: torch.device) -> Weights | Verdict:
    """The update's "delta": trained weights − received weights. A Verdict says why there is none."""
    update = answer.update
    if set(update) != {"delta.params", "delta.buffers"}:
        return Verdict(INVALID, f"tensors {sorted(update)} instead of delta.params, delta.buffers")
    if any(tensor.dtype != torch.float32 or tensor.ndim != 1 for tensor in update.values()):
        return Verdict(INVALID, "delta is not a float32 vector")
    if answer.base_version not in bases:
        return Verdict(INVALID, f"version {answer.base_version}, where it started, is not kept")
    return Weights.named(update, "delta").to(device)


def read_statistics(delta: Weights, base: Weights, variances_Q: Tensor) -> Tensor | Verdict:
    """The running statistics that the client ended with, or why they and the update are none. Statistics are averaged
    as values (base + increment), not as increments: then a variance stays positive also where clients started from
    several versions. `variances_Q` marks the values that must not be negative."""
    pairs = {"parameters": (delta.params, base.params), "buffer values": (delta.buffers, base.buffers)}
    for name, (got, fits) in pairs.items():
        if got.shape != fits.shape or got.dtype != fits.dtype:
            words = f"{tuple(got.shape)} {name} of {got.dtype}, not {tuple(fits.shape)} of {fits.dtype}"
            return Verdict(INVALID, words)
    values_Q = base.buffers + delta.buffers
    if not math.isfinite(largest_entry(values_Q)):
        return Verdict(INVALID, "its norm is not finite")
    if bool((values_Q[variances_Q] < 0).any()):
        return Verdict(INVALID, "a running variance is negative")
    return values_Q


def check_delta(
    delta: Weights, base: Weights, variances_Q: Tensor, max_norm: float
) -> tuple[Tensor, float] | Verdict:
    """(running statistics that the client ended with, norm of its increment of the parameters), or why it is none"""
    values_Q = read_statistics(delta, base, variances_Q)
    if isinstance(values_Q, Verdict):
        return values_Q
    norm = norm_of(delta.params)
    if not math.isfinite(norm):
        return Verdict(INVALID, "its norm is not finite")
    excess = find_excess(norm, max_norm)
    return Verdict(INVALID, excess) if excess else (values_Q, norm)


def max_norm_of(base: Weights) -> float:
    """Of updates that start from these weights"""
    return MAX_NORM_RATIO * max(norm_of(base.params), 1.0)


def find_excess(norm: float, max_norm: float) -> str:
    return f"norm {norm:.3g} exceeds {max_norm:.3g}" if norm > max_norm else ""


def bound_entries(x: Tensor, norm: float) -> float:
    """No entry of x is larger. The norm is a bound that costs nothing; look closer only where it does not settle
    whether x can be summed."""
    return norm if norm <= MAX_ENTRY / 4 else largest_entry(x)


def norm_of(x: Tensor) -> float:
    """‖x‖, with the same bits wherever x lies in memory."""
    return float(torch.linalg.vector_norm(x if x.data_ptr() % ALIGNMENT == 0 else x.clone()))


# ---- sums -----------------------------------------------------------------------------------------------------------


class WeightedMean:
    """Exact weighted mean of parameter and buffer vectors."""

    def __init__(self, params_P: Tensor, magnitude_Q: Tensor) -> None:
        self._params = ExactSum(params_P.numel(), params_P.device)
        # Running statistics come in any size: each is summed in units of the power of two above it.
        self.units_Q = magnitude_Q.clamp(min=1.0).log2().ceil().exp2()
        self._buffers = ExactSum(magnitude_Q.numel(), magnitude_Q.device)

    def add(
        self,
        params_P: Tensor,
        largest: float,
        scale: float,
        buffers_Q: Tensor,
        weight: float,
        along: Callable[[int, int], Tensor] | None = None,
        by: float = 0.0,
    ) -> bool:
        """Adds scale·params + by·along, no entry of which exceeds `largest`, and weight·buffers, which are in units_Q.
        False if an entry is too large to be summed: then nothing was added."""
        largest_buffer = largest_entry(buffers_Q)
        if max(largest, largest_buffer) > MAX_ENTRY:
            return False
        self._params.add(params_P, largest, scale, along, by)
        self._buffers.add(buffers_Q, largest_buffer, weight)
        return True

    def mean(self, weight: float) -> Weights:
        return Weights(self._params.mean(weight), self._buffers.mean(weight) * self.units_Q)


def on_grid(weight: float) -> float:
    return max(round(weight / WEIGHT_GRID), 1) * WEIGHT_GRID


def add_momentum(state: dict[str, Tensor], step_P: Tensor, momentum: float) -> Tensor:
    """The step with what momentum keeps of earlier ones; `state` keeps the velocity, if it has one."""
    if "momentum" not in state:
        return step_P
    state["momentum"] = state["momentum"].to(step_P.device) * momentum + step_P
    return state["momentum"]


def typical_effort(efforts: Sequence[float]) -> float:
    """A mean does not move further than the busiest of its clients; but what a single client claims must not decide
    what the increments look like."""
    return min(max(efforts), _BUSIEST * statistics.median(efforts)) if efforts else 0.0


def effort_behind(state: dict[str, Tensor], efforts: Sequence[float], momentum: float) -> float:
    """Of a step with what momentum keeps of earlier ones: those may have had a higher learning rate."""
    effort = typical_effort(efforts)
    if "momentum" not in state or not efforts:
        return effort
    effort += momentum * float(state.get("momentum_effort", 0.0))
    state["momentum_effort"] = torch.tensor(effort, dtype=torch.float64)
    return effort


# ---- the fold -------------------------------------------------------------------------------------------------------


class AveragingFold:
    """θ ← θ + weighted mean of the clients' increments, where θ is what this version broadcast."""

    def __init__(
        self,
        learning: Learning,
        state: State,
        bases: Bases,
        version: int,
        *,
        variances_Q: Tensor,
        name: str = "global",
        momentum: float = 0.0,
        by_samples: bool = False,
    ) -> None:
        """`name` of the averaged weights in `state` and `bases`; `variances_Q` as in read_statistics"""
        self.state = dict(state)
        self._learning, self._bases, self._name = learning, bases, name
        self._momentum, self._by_samples = momentum, by_samples
        self._base = Weights.named(bases[version], name)
        self._variances_Q = variances_Q.to(self._base.buffers.device)
        self._sum = WeightedMean(self._base.params, self._base.buffers.abs())
        self._weight = 0.0
        self._max_norms: dict[int, float] = {}
        self._efforts: list[float] = []
        self._norms: list[float] = []

    def add(self, answer: Answer) -> Verdict:
        delta = read_delta(answer, self._bases, self._base.params.device)
        return delta if isinstance(delta, Verdict) else self.add_delta(delta, answer)

    def add_delta(self, delta: Weights, answer: Answer) -> Verdict:
        """`delta` of a version that is kept."""
        base = Weights.named(self._bases[answer.base_version], self._name).to(delta.params.device)
        checked = check_delta(delta, base, self._variances_Q, self._max_norm(answer.base_version, base))
        if isinstance(checked, Verdict):
            return checked
        values_Q, norm = checked
        weight = self._weight_of(answer)
        largest = weight * bound_entries(delta.params, norm)
        if not self._sum.add(delta.params, largest, weight, values_Q / self._sum.units_Q, weight):
            return Verdict(INVALID, f"a value moves by more than {MAX_ENTRY:.0f}")
        self._weight += weight
        self._norms.append(norm)
        lr = learning_rate(self._learning.client, answer.base_version, self._learning.rounds)
        self._efforts.append(lr * answer.num_steps)
        return Verdict(ACCEPTED, values=_sure_share(answer), counts=True)

    def _max_norm(self, version: int, base: Weights) -> float:
        if version not in self._max_norms:
            self._max_norms[version] = max_norm_of(base)
        return self._max_norms[version]

    def _weight_of(self, answer: Answer) -> float:
        share = min(answer.num_samples, MOST_SAMPLES) / MOST_SAMPLES if self._by_samples else 1.0
        return on_grid(answer.weight * share)

    def close(self) -> Folded:
        """Without an accepted update the new model is the one that was broadcast."""
        moved = self._move() if self._norms else self._base
        before_P = self.state[f"{self._name}.params"].to(moved.params.device)
        self.state.update(moved.tensors(self._name))
        return Folded(
            self.state,
            delta_norm=norm_of(moved.params - before_P),
            effort=effort_behind(self.state, self._efforts, self._momentum),
            metrics={"client_norm": math.fsum(self._norms) / len(self._norms)} if self._norms else {},
            notes=() if self._norms else ("no update was accepted",),
        )

    def _move(self) -> Weights:
        mean = self._sum.mean(self._weight)
        del self._sum  # as much memory as two models
        step_P = add_momentum(self.state, mean.params, self._momentum)
        return Weights(self._base.params + step_P, mean.buffers)


def _sure_share(answer: Answer) -> dict[str, float]:
    """A client's own word, so no more than a share."""
    share = answer.metrics.get("sure_share")
    return {} if share is None else {"sure_share": min(max(share, 0.0), 1.0)}
