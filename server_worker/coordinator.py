"""A run's server, from its first round or its last checkpoint to the end. `Coordinator._play_round` is the round; which
clients are asked and when a round closes is the mode's business (round/loop.py, buffered/loop.py)."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from broker_config.brokers.topology import DEAD_LETTERS, tasks_queue, updates_queue
from broker_config.process.retry import RetriesExhausted
from broker_config.protocol.buffers import digest
from broker_config.protocol.errors import FedILError
from broker_config.stores.batches import newest_ledgers
from broker_config.transports.interface import MAX_BODY_BYTES
from fedil_model.data.datasets.interface import Samples
from fedil_model.errors import LearningError
from fedil_model.methods.interface import Folded, Method, ServerStep
from fedil_model.training.convergence import Increment, assess
from fedil_model.training.flat_model import num_bytes
from server_worker.buffered.loop import BufferedMode
from server_worker.round.answers import AnswerDesk
from server_worker.round.context import ServerContext, Stopped
from server_worker.round.dispatch import TaskDispatcher
from server_worker.round.inbox import Inbox
from server_worker.round.loop import Mode, RoundsMode
from server_worker.round.reporting import Reporter
from server_worker.round.series import add_to_totals, no_totals, round_series
from server_worker.round.state import Open
from server_worker.round.stopwatch import Stopwatch
from server_worker.run.ledger_checks import LedgerChecks
from server_worker.run.progress import Progress, from_checkpoint, latest, to_checkpoint
from server_worker.run.recipe import Recipe, numbers_depend_on
from server_worker.watch.events import NOT_LEARNED, ClientOutcome, RoundRecord
from server_worker.watch.notices import Notice
from server_worker.watch.pace import EpochTeller

__all__ = ["Coordinator", "ServerContext", "Stopped"]

_MOST_MODELS, _SPARE_BYTES = 4, 16 << 20
"""An update may hold several sets of tensors, and text beside them."""


class Coordinator:
    def __init__(
        self, run: str, recipe: Recipe, method: Method, labelled: Samples, context: ServerContext
    ) -> None:
        self._run, self._recipe, self._method, self._labelled = run, recipe, method, labelled
        self._context = context
        method.check_stop = context.check_stop
        self._reporter = Reporter(recipe, context)
        self._inbox = Inbox(run, context)
        self._dispatcher = TaskDispatcher(run, recipe, method, context, self._inbox.refuse_for)
        self._ledgers = LedgerChecks(run, context.store, context.sites)
        self._desk = AnswerDesk(
            run,
            recipe,
            self._inbox,
            self._dispatcher,
            context,
            self._ledgers,
            on_idle=lambda: self._reporter.flush(wait=False),
        )
        self._restarted = True
        """This process has not finished a round yet: answers to an earlier life may be in the queue."""
        self._used = self._use()
        # Not of the rounds: whether a run may go on to more of them is decided before it does (run/resuming.py).
        settings = {key: value for key, value in numbers_depend_on(recipe).items() if key != "rounds"}
        self._recipe_digest = digest([json.dumps(settings, sort_keys=True).encode()])
        mode: type[Mode[Any]] = BufferedMode if recipe.federation.mode == "buffered" else RoundsMode
        self._mode = mode(run, recipe, self._inbox, self._desk, self._dispatcher, context)

    def run(self) -> Progress:
        try:
            return self._live()
        except Stopped:
            self._reporter.flush(wait=True)  # a round that a checkpoint has belongs into the history
            raise
        except RetriesExhausted:
            self._context.check_stop()  # a server that was asked to stop does not wait for a broker
            raise

    def _live(self) -> Progress:
        sites = sorted(self._context.sites.names())
        tasks = [tasks_queue(site) for site in sites]
        updates = [updates_queue(self._run, site) for site in sites]
        self._context.transport.declare(DEAD_LETTERS, *tasks, *updates)
        progress = self._resume() or self._begin()
        self._context.watcher.run_started(progress.round + 1, self._recipe.rounds)
        if progress.closed:
            self._reporter.announce(progress)
        while progress.round < self._recipe.rounds:
            # The models are saved and with the evaluator: here they would take memory for a whole round.
            progress = replace(progress, models={})
            progress = self._play_round(progress)
        self._reporter.flush(wait=True)
        return progress

    # ---- the round ---------------------------------------------------------------------------------------------

    def _play_round(self, progress: Progress) -> Progress:
        number, stopwatch = progress.round + 1, Stopwatch(self._context.clock)

        self._reporter.enter(number, "server_step")
        step = self._server_step(progress, number)
        stopwatch.lap("server_step")

        self._reporter.enter(number, "broadcast")
        bases = {**progress.bases, number: step.broadcast}
        fold = self._method.open_fold(step.state, bases, number, self._labelled)
        self._dispatcher.start_round(step.state, progress.answered)
        opened = self._mode.open(progress)
        if self._restarted:
            opened = self._desk.take_leftovers(opened, fold)
        self._dispatcher.broadcast(bases, opened.versions)

        opened = self._mode.ask(opened, self._restarted)
        self._restarted = False
        stopwatch.lap("broadcast")

        self._reporter.enter(number, "wait")
        rewrite_models = partial(self._dispatcher.broadcast, bases, opened.versions, again=True)
        closed = self._mode.collect(opened, fold, rewrite_models, stopwatch)
        stopwatch.lap("wait")

        self._reporter.enter(number, "close")
        folded = fold.close()
        for words in folded.notes:
            self._context.watcher.note(Notice(words, number))
        stopwatch.lap("fold")
        after = self._close(progress, step, folded, closed, stopwatch)
        after = self._mode.next_progress(closed, after, bases)

        checkpoint_seconds = self._checkpoint(after)
        self._reporter.announce(after, checkpoint_seconds)
        return after

    def _server_step(self, progress: Progress, number: int) -> ServerStep:
        with _naming_errors("the server's step"):
            step = self._method.server_step(progress.state, self._labelled, number)
        # Before anything is received: a client that claims to send a terabyte gets no memory for it.
        most = _MOST_MODELS * num_bytes(step.broadcast) + _SPARE_BYTES
        self._context.transport.max_body_bytes = min(most, MAX_BODY_BYTES)
        return step

    def _close(
        self, progress: Progress, step: ServerStep, folded: Folded, closed: Open, stopwatch: Stopwatch
    ) -> Progress:
        """What the aggregation does to the run's progress"""
        number, outcomes = progress.round + 1, closed.outcomes()
        with _naming_errors("the end of the round"):
            end = self._method.end_round(folded.state, step.broadcast, self._labelled, number)
        totals = add_to_totals(progress.totals, outcomes)
        model_norm = float(torch.linalg.vector_norm(end.models["global"].params))
        norm = folded.delta_norm if end.delta_norm is None else end.delta_norm
        increments = (*progress.increments, Increment(norm, folded.effort, model_norm))
        convergence = asdict(assess(increments))
        metrics = {**step.metrics, **folded.metrics, **end.metrics}
        learned = {o.client: closed.asked[o.client] for o in outcomes if o.outcome not in NOT_LEARNED}
        return Progress(
            round=number,
            state=end.state,
            activations=latest(progress.activations, closed.asked),
            answered=latest(progress.answered, learned),
            totals=totals,
            increments=increments,
            models=end.models,
            closed=RoundRecord(
                round=number,
                rounds=self._recipe.rounds,
                selected=len(outcomes),
                accepted=sum(outcome.counts for outcome in outcomes),
                outcomes=outcomes,
                delta_norm=norm,
                verdict=convergence.pop("verdict"),
                convergence=convergence,
                series=round_series(self._recipe.spec.display, metrics, outcomes, progress.totals, totals),
                seconds=stopwatch.seconds(),
                refused=self._inbox.take_refused(),
                finished_at=time.time(),
                **self._take_used(outcomes),
            ),
        )

    def _take_used(self, outcomes: Sequence[ClientOutcome]) -> dict[str, Any]:
        """What the round took, as fields of its record"""
        before, self._used = self._used, self._use()
        clients = sum(max(outcome.metrics.get("seconds_cpu", 0.0), 0.0) for outcome in outcomes)
        taken = {name: now - before[name] for name, now in self._used.items()}
        return taken | {"cpu_seconds": taken["cpu_seconds"] + clients}

    def _use(self) -> dict[str, Any]:
        """Since this process began"""
        transport = self._context.transport
        return {
            "cpu_seconds": time.process_time(),
            "bytes_sent": sum(transport.bytes_sent.values()),
            "bytes_received": sum(transport.bytes_received.values()),
        }

    def _checkpoint(self, progress: Progress) -> float:
        """Save, then acknowledge the updates: one that is not in a checkpoint must come back after a crash."""
        # A store that lost something meanwhile: what was learned beside it does not go into a checkpoint.
        progress = replace(progress, counted=self._ledgers.count())
        # The checkpoint holds one closed round; the one before must be reported by then.
        self._reporter.flush(wait=True)
        began = self._context.clock()
        self._save(progress)
        self._ledgers.saved()
        seconds = self._context.clock() - began
        self._inbox.settle()
        return seconds

    # ---- the beginning -----------------------------------------------------------------------------------------

    def _resume(self) -> Progress | None:
        checkpoint = self._context.checkpoints.latest()
        if checkpoint is None:
            return None
        progress = from_checkpoint(checkpoint, self._recipe_digest)
        # A store that was emptied or went back meanwhile is noticed here and not after a wasted round.
        self._ledgers.resume(progress.counted)
        self._ledgers.check(progress.answered)
        return progress

    def _begin(self) -> Progress:
        if any(newest_ledgers(self._context.store, self._run)):
            raise FedILError(
                f"run {self._run} has begun elsewhere, and here is no checkpoint of it: --run-dir must be its folder, "
                "or --run another name"
            )
        clients = self._recipe.split.clients
        if self._recipe.server.pretrain_epochs:
            self._reporter.enter(0, "pretrain")
            self._method.on_epoch = EpochTeller(self._context.watcher, self._context.clock)
        with _naming_errors("pre-training"):
            state = self._method.initial_state(self._labelled)
        never, totals = (0,) * clients, no_totals(self._recipe.spec.display, clients)
        progress = Progress(0, state, activations=never, answered=never, totals=totals)
        progress = self._mode.first_progress(progress)
        self._ledgers.begin()
        self._save(progress)
        return progress

    def _save(self, progress: Progress) -> None:
        self._context.checkpoints.save(to_checkpoint(progress, self._recipe_digest))


@contextmanager
def _naming_errors(step: str) -> Iterator[None]:
    """A user's own network or views may raise anything."""
    try:
        yield
    except (FedILError, LearningError, Stopped):
        raise
    except Exception as error:
        raise FedILError(f"{step} failed: {type(error).__name__}: {error}") from error
