"""The server's life: resume or begin, play rounds, checkpoint, acknowledge, report. How a round is played is
`rounds.py`'s or `buffered.py`'s business; what is remembered, `progress.py`'s."""

import json
from dataclasses import replace
from typing import Protocol

from broker_config.brokers.topology import DEAD_LETTERS, tasks_queue, updates_queue
from broker_config.process.retry import RetriesExhausted
from broker_config.protocol.errors import FedILError
from broker_config.protocol.wire import digest
from broker_config.stores.batches import newest_ledgers
from fedil_model.data.datasets.interface import Samples
from fedil_model.methods.interface import Method
from server_worker.buffered.loop import BufferedLoop
from server_worker.errors import named
from server_worker.round.context import Stopped, Surroundings
from server_worker.round.dispatch import Asking
from server_worker.round.inbox import Inbox
from server_worker.round.loop import RoundsLoop
from server_worker.round.reporting import Reporter
from server_worker.run.progress import Progress, from_checkpoint, is_marked, to_checkpoint
from server_worker.run.recipe import Recipe, numbers_depend_on

__all__ = ["Coordinator", "Stopped", "Surroundings"]


class Loop(Protocol):
    """One way of playing rounds. Whatever it changes is in the progress that it returns; what it has counted
    stays unacknowledged until that is saved."""

    inbox: Inbox

    def begin(self, progress: Progress) -> Progress:
        """Before the very first round."""

    def play(self, progress: Progress) -> Progress: ...


class Coordinator:
    def __init__(
        self, run: str, recipe: Recipe, method: Method, labelled: Samples, around: Surroundings
    ) -> None:
        self._run, self._recipe, self._method, self._labelled = run, recipe, method, labelled
        self._around = around
        method.check_stop = around.check_stop
        self._reporter = Reporter(recipe, around)
        self._asking = Asking(run, recipe, around)
        parts = (run, recipe, method, labelled, around, self._reporter)
        buffered = recipe.federation.mode == "buffered"
        self._loop: Loop = BufferedLoop(*parts) if buffered else RoundsLoop(*parts)

    def run(self) -> Progress:
        try:
            return self._live()
        except Stopped:
            self._reporter.report(wait=True)  # a round whose checkpoint is saved belongs into the history
            raise
        except RetriesExhausted:
            self._around.check_stop()  # who was asked to stop does not wait for a broker
            raise

    def _live(self) -> Progress:
        queues = [tasks_queue(site) for site in sorted(self._around.sites.names())]
        self._around.transport.declare(updates_queue(self._run), DEAD_LETTERS, *queues)
        progress = self._resume() or self._begin()
        self._around.watcher.run_started(progress.round + 1, self._recipe.rounds)
        if progress.record:
            self._reporter.announce(progress)
            progress = _without_models(progress)
        while progress.round < self._recipe.rounds:
            progress = self._loop.play(progress)
            # What was learned beside a store that was emptied meanwhile does not go into a checkpoint.
            self._around.store.check_begun(self._run)
            # The checkpoint remembers one record; the one before it must be out by then.
            self._reporter.report(wait=True)
            began = self._around.clock()
            self._save(progress)
            saved = self._around.clock()
            # Only now: an update that is not in a checkpoint must come back after a crash.
            self._loop.inbox.settle()
            self._reporter.announce(progress, checkpoint_seconds=saved - began)
            progress = _without_models(progress)
        self._reporter.report(wait=True)
        return progress

    def _resume(self) -> Progress | None:
        checkpoint = self._around.checkpoints.latest()
        if checkpoint is None:
            return None
        progress = from_checkpoint(checkpoint, self._recipe_digest())
        if not is_marked(checkpoint):
            # Begun by an earlier version: a ledger that is left is all that can tell of it.
            self._asking.check_any_is_left(progress.answered)
            self._around.store.begin(self._run)
        # A store that was emptied meanwhile is noticed here and not after a wasted round.
        self._asking.check_ledgers(progress.answered)
        return progress

    def _begin(self) -> Progress:
        if any(newest_ledgers(self._around.store, self._run)):
            raise FedILError(
                f"run {self._run} has begun elsewhere, and here is no checkpoint of it: --run-dir must be its folder, "
                "or --run another name"
            )
        clients = self._recipe.split.clients
        if self._recipe.server.pretrain_epochs:
            self._reporter.enter(0, "pretrain")
        progress = Progress(
            round=0,
            state=named("pre-training", lambda: self._method.initial_state(self._labelled)),
            activations=(0,) * clients,
            selection=self._asking.select(1),
            labelled=((0, 0),) * clients,
            increments=(),
            models={},
            record=None,
            answered=(0,) * clients,
        )
        progress = self._loop.begin(progress)
        self._around.store.begin(self._run)
        self._save(progress)
        return progress

    def _save(self, progress: Progress) -> None:
        self._around.checkpoints.save(to_checkpoint(progress, self._recipe_digest()))

    def _recipe_digest(self) -> str:
        return digest([json.dumps(numbers_depend_on(self._recipe), sort_keys=True).encode()])


def _without_models(progress: Progress) -> Progress:
    """They are saved, and with the evaluator: a θ₀ that nobody else needs would be there for a whole round more."""
    return replace(progress, models={})
