"""Buffered mode: a fixed number of clients at work, an aggregation whenever enough have answered. What is decided is in
state.py.

A task is written to the journal before it is sent, and an answer is held until a checkpoint has it: a restarted server
knows which clients were asked, and counts their answers once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from broker_config.protocol.errors import FedILError
from fedil_model.methods.interface import INVALID, Fold, Tensors
from server_worker.buffered.state import OpenBuffer, Rules
from server_worker.round.answers import AnswerDesk
from server_worker.round.context import ServerContext
from server_worker.round.dispatch import TaskDispatcher
from server_worker.round.loop import POLL_SECONDS, QUIET_SECONDS
from server_worker.round.stopwatch import Stopwatch
from server_worker.run.progress import Progress
from server_worker.run.recipe import Recipe
from server_worker.watch.events import REFUSED


class BufferedMode:
    def __init__(
        self, run: str, recipe: Recipe, desk: AnswerDesk, dispatcher: TaskDispatcher, context: ServerContext
    ) -> None:
        self._desk, self._dispatcher, self._context = desk, dispatcher, context
        self._rules, self._federation = Rules(run, recipe.seed, recipe.federation), recipe.federation
        self._open: OpenBuffer | None = None
        """None until this process's first aggregation"""

    def first_progress(self, progress: Progress) -> Progress:
        fields = OpenBuffer(1, self._rules, progress.activations).to_fields()
        # An earlier run in this folder may have left its own journal.
        self._context.checkpoints.save_journal(fields)
        return replace(progress, buffer=fields)

    def open(self, progress: Progress) -> OpenBuffer:
        """After a restart: as of the last task that was sent, or else of the checkpoint."""
        if self._open is not None:
            return self._open
        fields, journal = progress.buffer, self._context.checkpoints.journal()
        if journal is not None and journal["version"] == progress.round + 1:
            fields = journal
        assert fields is not None
        return OpenBuffer.from_fields(fields, self._rules, progress.activations, self._context.now())

    def versions(self, buffer: OpenBuffer) -> tuple[int, ...]:
        return buffer.bases()

    def ask(self, buffer: OpenBuffer, restarted: bool) -> OpenBuffer:
        if restarted:
            self._send(buffer, buffer.awaited)
        return buffer

    def collect(
        self, buffer: OpenBuffer, fold: Fold, rewrite_models: Callable[[], None], stopwatch: Stopwatch
    ) -> OpenBuffer:
        """Take answers, and keep enough clients at work, until there is enough to aggregate."""
        now = self._context.now
        heard = looked = now()
        while not buffer.may_aggregate(candidates := self._dispatcher.candidates()):
            self._context.check_stop()
            self._check_hope(buffer, now() - heard)
            buffer = self._desk.give_up(buffer, buffer.overdue(now()))
            buffer = self._desk.give_up_on_absent_sites(buffer)
            buffer = self._fill(buffer, candidates)
            before, buffer = buffer, self._desk.receive(buffer, fold, POLL_SECONDS, stopwatch)
            if buffer is not before:
                heard = looked = now()
            elif now() - looked >= QUIET_SECONDS:
                self._send(buffer, self._desk.lost(buffer, rewrite_models))
                buffer = self._desk.give_up_on_dead_tasks(buffer)
                looked = now()
        return buffer

    def next_progress(self, closed: OpenBuffer, after: Progress, bases: Mapping[int, Tensors]) -> Progress:
        self._open = closed.aggregated()
        kept = {version: bases[version] for version in self._open.bases() if version in bases}
        return replace(after, buffer=self._open.to_fields(), bases=kept)

    def _fill(self, buffer: OpenBuffer, candidates: Sequence[int]) -> OpenBuffer:
        chosen = buffer.replacements(candidates)
        if not chosen:
            return buffer
        buffer = buffer.ask(chosen, self._context.now())
        self._context.checkpoints.save_journal(buffer.to_fields())
        self._send(buffer, chosen)
        return buffer

    def _send(self, buffer: OpenBuffer, clients: Sequence[int]) -> None:
        for client in clients:
            flight = buffer.flights[client]
            self._dispatcher.ask(flight.base_version, {client: flight.activation})

    def _check_hope(self, buffer: OpenBuffer, silent_seconds: float) -> None:
        outcomes = buffer.outcomes()
        refusals = [outcome.detail for outcome in outcomes if outcome.outcome == REFUSED]
        any_invalid = any(outcome.outcome == INVALID for outcome in outcomes)
        if refusals and not any_invalid and self._desk.is_hopeless(buffer, self._federation.in_flight):
            raise FedILError(f"round {buffer.number}: every client refused; the first says {refusals[0]}")
        if silent_seconds >= self._federation.deadline_seconds:
            raise FedILError(
                f"round {buffer.number}: no client has answered for {self._federation.deadline_seconds:g} s: start "
                f"workers or raise federation.deadline_seconds, then resume{self._desk.example_of_failure(buffer)}"
            )
