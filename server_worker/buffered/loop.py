"""Buffered mode: always some clients at work, an aggregation whenever enough have answered, nobody waits for the
slowest. What is decided is in `buffer.py`.

A task is written down before it is sent, and an answer is held until a checkpoint has it: a server that dies
knows on its return whom it has asked, and counts what they answered once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType

from torch import Tensor

from broker_config.protocol.errors import FedILError
from fedil_model.methods.interface import Fold
from server_worker.buffered.state import OpenBuffer, Rules
from server_worker.round.collecting import DEAD_TASK_SECONDS, POLL_SECONDS, Collecting
from server_worker.round.dispatch import Broadcast
from server_worker.round.reporting import Stopwatch
from server_worker.run.progress import Progress


class BufferedLoop(Collecting):
    _open: OpenBuffer | None = None
    """None until this life's first aggregation"""
    _models: Mapping[int, Broadcast] = MappingProxyType({})
    """Versions that this life has put into the log"""

    @cached_property
    def _rules(self) -> Rules:
        federation = self._recipe.federation
        return Rules(
            run=self._run,
            seed=self._recipe.seed,
            in_flight=federation.in_flight,
            size=federation.buffer_size,
            max_staleness=federation.max_staleness,
            deadline_seconds=federation.deadline_seconds,
        )

    def begin(self, progress: Progress) -> Progress:
        fields = OpenBuffer(self._rules, 1, progress.activations).to_fields()
        # An earlier run in this folder may have left its own.
        self._around.checkpoints.save_asked(fields)
        return replace(progress, selection=(), buffer=fields)

    def play(self, progress: Progress) -> Progress:
        number, stamps = progress.round + 1, Stopwatch(self._around.clock)
        step = self._server_step(progress, stamps)
        self._reporter.enter(number, "broadcast")
        bases = {**progress.bases, number: step.broadcast}
        fold = self._method.open_fold(progress.state, bases, number)
        buffer = self._open
        if buffer is None:
            buffer = self._restore(progress)
            for arrival in self.inbox.leftovers():
                buffer = self._take(arrival, buffer, fold)
            self._broadcast(buffer, bases)
            self._send(buffer, buffer.awaited, progress)
        else:
            self._broadcast(buffer, bases)
        stamps.lap("broadcast")
        self._reporter.enter(number, "wait")
        closed = self._collect(buffer, progress, bases, fold, stamps)
        after = self._aggregate(progress, step, fold, closed, stamps)
        self._open = closed.aggregated()
        kept = {version: bases[version] for version in self._open.bases() if version in bases}
        return replace(after, buffer=self._open.to_fields(), bases=kept)

    # ---- asking ----------------------------------------------------------------------------------------------

    def _restore(self, progress: Progress) -> OpenBuffer:
        """What was written down when the last task was sent, or else with the checkpoint."""
        fields, asked = progress.buffer, self._around.checkpoints.asked()
        if asked is not None and asked["version"] == progress.round + 1:
            fields = asked
        assert fields is not None
        return OpenBuffer.from_fields(fields, self._rules, progress.activations, self._around.now())

    def _broadcast(self, buffer: OpenBuffer, bases: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Oldest first: the log lets go of what was written first."""
        kept = self._rules.max_staleness + 1
        self._models = {
            version: self._models.get(version) or self._asking.broadcast(version, bases[version], kept)
            for version in buffer.bases()
        }

    def _broadcast_anew(self, buffer: OpenBuffer, bases: Mapping[int, Mapping[str, Tensor]]) -> None:
        self._models = {}
        self._broadcast(buffer, bases)

    def _fill(self, buffer: OpenBuffer, candidates: Sequence[int], progress: Progress) -> OpenBuffer:
        chosen = buffer.replacements(candidates)
        if not chosen:
            return buffer
        buffer = buffer.ask(chosen, self._around.now())
        self._around.checkpoints.save_asked(buffer.to_fields())
        self._send(buffer, chosen, progress)
        return buffer

    def _send(self, buffer: OpenBuffer, clients: Sequence[int], progress: Progress) -> None:
        for client in clients:
            flight = buffer.flights[client]
            model = self._models[flight.base_version]
            self._asking.ask(model, {client: flight.activation}, progress.answered)

    # ---- what arrives ----------------------------------------------------------------------------------------

    def _collect(
        self,
        buffer: OpenBuffer,
        progress: Progress,
        bases: Mapping[int, Mapping[str, Tensor]],
        fold: Fold,
        stamps: Stopwatch,
    ) -> OpenBuffer:
        now = self._around.now
        heard = looked = now()
        while not buffer.may_aggregate(candidates := self._asking.candidates()):
            self._around.check_stop()
            self._check_hope(buffer, candidates, now() - heard)
            buffer = self._fill(self._give_up(buffer), candidates, progress)
            buffer, counted = self._receive(POLL_SECONDS, buffer, progress, fold, stamps)
            if counted:
                heard = looked = now()
            elif now() - looked >= DEAD_TASK_SECONDS:
                self._send(buffer, self._lost(buffer, partial(self._broadcast_anew, buffer, bases)), progress)
                buffer = self._give_up_on_dead_tasks(buffer)
                looked = now()
        stamps.lap("wait")
        return buffer

    def _check_hope(self, buffer: OpenBuffer, candidates: Sequence[int], silent_seconds: float) -> None:
        refusals = [o.detail for o in buffer.outcomes() if o.outcome == "refused"]
        nonsense = any(o.outcome == "invalid" for o in buffer.outcomes())
        if refusals and not nonsense and self._is_hopeless(buffer, candidates, self._rules.in_flight):
            raise FedILError(f"round {buffer.version}: every client refused; the first says {refusals[0]}")
        if silent_seconds >= self._rules.deadline_seconds:
            raise FedILError(
                f"round {buffer.version}: no client has answered for {self._rules.deadline_seconds:g} s: start "
                f"workers or raise federation.deadline_seconds, then resume{self._what_is_wrong(buffer)}"
            )

    def _give_up(self, buffer: OpenBuffer) -> OpenBuffer:
        """On clients whose time is over, and on those of sites without a worker."""
        for outcome in buffer.overdue(self._around.now()):
            buffer = self._record(buffer, outcome)
        return self._give_up_on_absent_sites(buffer, self._around.sites.present())
