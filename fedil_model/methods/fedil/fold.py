"""FedIL's aggregation (eq. 24-26), of one round or of updates that started from several versions.

θ′ is "global", θ₀ is "server", θ* − θ′ is "delta".
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from fedil_model.methods.averaging import add_momentum, effort_behind, read_delta, read_statistics
from fedil_model.methods.fedil.aggregation import Gauge, IncrementalFold
from fedil_model.methods.fedil.gate import MOVEMENT, LabelGate
from fedil_model.methods.fedil.settings import FedILSettings
from fedil_model.methods.interface import ACCEPTED, INVALID, Answer, Folded, State, Tensors, Verdict
from fedil_model.settings import Learning
from fedil_model.training.exact_sum import blocks
from fedil_model.training.flat_model import Weights
from fedil_model.training.optimiser import decay_factor, learning_rate


class FedILFold:
    """Eq. 24-26 for one version, and what is done when no update is accepted."""

    def __init__(
        self,
        learning: Learning,
        settings: FedILSettings,
        state: State,
        bases: Mapping[int, Tensors],
        version: int,
        num_decayed: int,
        variances_Q: Tensor,
        gate: LabelGate | None,
    ) -> None:
        """`variances_Q` as in read_statistics"""
        self._learning, self._settings = learning, settings
        self._state, self._gate = dict(state), gate
        self._bases, self._version, self._num_decayed = bases, version, num_decayed
        self._global, server = (Weights.named(bases[version], name) for name in ("global", "server"))
        self._variances_Q = variances_Q.to(self._global.buffers.device)
        decay = float(bases[version]["server_decay"])
        self._fold = IncrementalFold(self._global, server, self._settings, num_decayed, decay)
        self._gauges = {version: self._fold.gauge}
        self._efforts: list[float] = []

    def add(self, answer: Answer) -> Verdict:
        delta = read_delta(answer, self._bases, self._global.params.device)
        if isinstance(delta, Verdict):
            return delta
        if answer.num_steps < 1:
            return Verdict(INVALID, "num_steps is 0: FedIL's clients always train")
        now = answer.base_version == self._version
        base = self._global if now else self._sides(answer.base_version)[0]
        values_Q = read_statistics(delta, base, self._variances_Q)
        if isinstance(values_Q, Verdict):
            return values_Q
        delta = Weights(delta.params, values_Q)
        # What the client did depends on the version that it received: its θ′, its θ₀ and its learning rate.
        lr = learning_rate(self._learning.client, answer.base_version, self._learning.rounds)
        decay = decay_factor(self._learning.client, lr, answer.num_steps)
        gate = partial(self._try, delta, answer.base_version)
        verdict = self._fold.add(delta, decay, self._gauge(answer.base_version), answer.weight, gate)
        if verdict.counts:
            self._efforts.append(lr * answer.num_steps)
        return verdict

    def _try(self, delta: Weights, version: int) -> Verdict:
        if self._gate is None:
            return Verdict(ACCEPTED)
        global_, server = self._sides(version)
        start = server if self._settings.client_init == "server" else global_
        return self._gate.judge(Weights(global_.params + delta.params, delta.buffers), start, version)

    def _gauge(self, version: int) -> Gauge:
        """Made when the first update needs it: it has to read that version's models, and may keep g₀."""
        if version not in self._gauges:
            global_, server = self._sides(version)
            decay = float(self._bases[version]["server_decay"])
            self._gauges[version] = Gauge(global_.params, server.params, self._num_decayed, decay)
        return self._gauges[version]

    def close(self) -> Folded:
        faded = any(gauge.faded for gauge in self._gauges.values())
        notes: tuple[str, ...] = (
            ("the server's step has faded: no update that started from it was filtered",) if faded else ()
        )
        delta = self._fold.mean()
        self._fold.drop_sums()
        if delta is not None:
            self._correct_stale_updates(delta)
            self._remember_movement(delta)
        if self._gate is not None:
            self._state.update(self._gate.seen())
        empty = 0 if delta is not None else int(self._state["empty_rounds"]) + 1
        self._state["empty_rounds"] = torch.tensor(empty, dtype=torch.int64)
        if delta is None:
            notes += ("no update was accepted",)
            if 0 < self._settings.empty_rounds_before_fallback <= empty:
                notes += ("θ′ takes the server's own step",)
                global_, server = self._sides(self._version)
                delta = Weights(server.params - global_.params, server.buffers)
        norm = 0.0
        if delta is not None:  # else θ′ stays as it is, bit for bit, with momentum too
            step_P = add_momentum(self._state, delta.params, self._settings.server_momentum)
            norm = float(torch.linalg.vector_norm(step_P))
            self._apply(Weights(self._global.params + step_P, delta.buffers))
        metrics = {"reference_norm": self._fold.gauge.step_norm}
        effort = effort_behind(self._state, self._efforts, self._settings.server_momentum)
        return Folded(self._state, norm, effort, metrics, notes)

    def _correct_stale_updates(self, delta: Weights) -> None:
        """Updates that started from earlier versions repeat movement that θ′ has made since; added as they are, θ′
        swings ever wider.

        Clients that start from θ₀ bring the server's step of their version along: this version's takes its place.
        Clients that start from θ′ go most of the way to where θ₀ points, from anywhere. Their θ* counts as a value
        (FedAsync) rather than as an increment, the more so the older it is."""
        for version in sorted(self._gauges.keys() - {self._version}):
            gauge = self._gauges[version]
            (global_, server), (global_then, server_then) = self._sides(self._version), self._sides(version)
            if self._settings.client_init == "server":
                share = self._fold.share_of_step(gauge)
                sides = (delta, server, global_, server_then, global_then)
                for total, *step in blocks(*(side.params for side in sides)):
                    total += share * ((step[0] - step[1]) - (step[2] - step[3]))
            else:
                staleness = self._version - version
                share = self._fold.share(gauge) * staleness / (1 + staleness)
                for total, now, then in blocks(delta.params, global_.params, global_then.params):
                    total += share * (then - now)

    def _remember_movement(self, delta: Weights) -> None:
        """What clients added to where they started, on average, and most of what is remembered"""
        if MOVEMENT not in self._state:
            return
        global_, server = self._sides(self._version)
        share = 0.0  # of the server's step, where clients start with it
        if self._settings.client_init == "server":
            share = sum(self._fold.share_of_step(gauge) for gauge in self._gauges.values())
        moved_P = delta.params - share * (server.params - global_.params)
        self._state[MOVEMENT] = moved_P.add_(self._state[MOVEMENT].to(moved_P.device), alpha=0.9)

    def _sides(self, version: int) -> tuple[Weights, Weights]:
        """θ′ and θ₀"""
        base, device = self._bases[version], self._global.params.device
        return Weights.named(base, "global").to(device), Weights.named(base, "server").to(device)

    def _apply(self, moved: Weights) -> None:
        self._state.update(moved.tensors("global"))
        if "ema.params" in self._state:
            keep = self._settings.ema_decay
            old = Weights.named(self._state, "ema").to(moved.params.device)
            average = Weights(
                torch.lerp(moved.params, old.params, keep), torch.lerp(moved.buffers, old.buffers, keep)
            )
            self._state.update(average.tensors("ema"))
