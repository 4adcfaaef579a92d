"""Buffered mode: a fixed number of clients at work, an aggregation whenever enough have answered. What is decided is in
state.py.

A task is written to the journal before it is sent, and an answer is held until a checkpoint has it: a restarted server
knows which clients were asked, and counts their answers once.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from broker_config.protocol.errors import FedILError
from fedil_model.methods.interface import INVALID, Bases, Fold
from server_worker.buffered.state import OpenBuffer
from server_worker.round.loop import POLL_SECONDS, QUIET_SECONDS, Mode
from server_worker.round.stopwatch import Stopwatch
from server_worker.run.progress import Progress
from server_worker.watch.events import NOT_LEARNED, REFUSED


class BufferedMode(Mode[OpenBuffer]):
    _open: OpenBuffer | None = None
    """None until this process's first aggregation"""

    def first_progress(self, progress: Progress) -> Progress:
        fields = OpenBuffer(1, self.run, self.recipe, progress.activations).to_fields()
        # An earlier run in this folder may have left its own journal.
        self.context.checkpoints.save_journal(fields)
        return replace(progress, buffer=fields)

    def open(self, progress: Progress) -> OpenBuffer:
        """After a restart: as of the last task that was sent, or else of the checkpoint."""
        if self._open is not None:
            return self._open
        fields, journal = progress.buffer, self.context.checkpoints.journal()
        if journal is not None and journal["version"] == progress.round + 1:
            fields = journal
        assert fields is not None
        activations, now = progress.activations, self.context.now()
        return OpenBuffer.from_fields(fields, self.run, self.recipe, activations, now)

    def ask(self, opened: OpenBuffer, restarted: bool) -> OpenBuffer:
        if restarted:
            self._send(opened, opened.awaited)
        return opened

    def collect(
        self, opened: OpenBuffer, fold: Fold, rewrite_models: Callable[[], None], stopwatch: Stopwatch
    ) -> OpenBuffer:
        """Take answers, and keep enough clients at work, until there is enough to aggregate."""
        buffer, now = opened, self.context.now
        heard = looked = now()
        while not (
            buffer.may_aggregate(candidates := self.dispatcher.candidates()) and self._has_sites(buffer)
        ):
            self.context.check_stop()
            self._check_hope(buffer, now() - heard)
            buffer = self.desk.give_up(buffer, buffer.overdue(now()))
            buffer = self.desk.give_up_on_absent_sites(buffer)
            if not buffer.may_aggregate(candidates):
                buffer = self._fill(buffer, candidates)
            before, buffer = buffer, self.desk.receive(buffer, fold, POLL_SECONDS, stopwatch)
            if buffer is not before:
                heard = looked = now()
            elif now() - looked >= QUIET_SECONDS:
                self._send(buffer, self.desk.lost(buffer, rewrite_models))
                buffer = self.desk.give_up_on_dead_tasks(buffer)
                looked = now()
        return buffer

    def next_progress(self, closed: OpenBuffer, after: Progress, bases: Bases) -> Progress:
        self._open = closed.aggregated()
        kept = {version: bases[version] for version in self._open.versions if version in bases}
        return replace(after, buffer=self._open.to_fields(), bases=kept)

    def _has_sites(self, buffer: OpenBuffer) -> bool:
        """So many as the run needs have answered, or could."""
        sites = self.context.sites
        learned = {sites.site_of(o.client) for o in buffer.outcomes() if o.outcome not in NOT_LEARNED}
        return len(learned) >= sites.min_sites or sites.are_enough()

    def _fill(self, buffer: OpenBuffer, candidates: Sequence[int]) -> OpenBuffer:
        chosen = buffer.replacements(candidates)
        if not chosen:
            return buffer
        buffer = buffer.ask(chosen, self.context.now())
        self.context.checkpoints.save_journal(buffer.to_fields())
        self._send(buffer, chosen)
        return buffer

    def _check_hope(self, buffer: OpenBuffer, silent_seconds: float) -> None:
        federation = self.recipe.federation
        outcomes = buffer.outcomes()
        refusals = [outcome.detail for outcome in outcomes if outcome.outcome == REFUSED]
        any_invalid = any(outcome.outcome == INVALID for outcome in outcomes)
        if refusals and not any_invalid and self.desk.is_hopeless(buffer, federation.in_flight):
            raise FedILError(f"round {buffer.number}: every client refused; the first says {refusals[0]}")
        if silent_seconds >= federation.deadline_seconds:
            raise FedILError(
                f"round {buffer.number}: no client has answered for {federation.deadline_seconds:g} s: start "
                f"workers or raise federation.deadline_seconds, then resume{self.desk.example_of_failure(buffer)}"
            )
