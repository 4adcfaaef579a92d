"""Rounds mode, the paper's: ask some clients, wait for them with a quorum and one deadline, aggregate."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from broker_config.errors import FedILError
from fedil_model.methods.interface import Fold
from server_worker.asking import Broadcast
from server_worker.collecting import DEAD_TASK_SECONDS, POLL_SECONDS, Collecting
from server_worker.events import ClientOutcome
from server_worker.progress import Progress
from server_worker.reporting import Stopwatch
from server_worker.round import OpenRound


class RoundsLoop(Collecting):
    def __init__(self, *parts: Any, save: Callable[[Progress], None]) -> None:
        """`parts` as for `Collecting`; `save` writes a checkpoint."""
        super().__init__(*parts)
        self._save = save
        self._restarted = True
        """Answers to tasks of an earlier life may lie in the queue."""

    def begin(self, progress: Progress) -> Progress:
        return progress

    def play(self, progress: Progress) -> Progress:
        number, stamps = progress.round + 1, Stopwatch(self._around.clock)
        step = self._server_step(progress, stamps)
        self._reporter.enter(number, "broadcast")
        # Only this one: who is behind need not begin with an older model.
        model = self._asking.broadcast(number, step.broadcast, kept=1)
        abandoned: dict[int, ClientOutcome] = {}
        while True:
            fold = self._method.open_fold(progress.state, {number: step.broadcast}, number)
            opened = self._ask(self._open(progress, abandoned), model, progress, fold)
            stamps.lap("broadcast")
            closed = self._collect(opened, progress, fold, stamps)
            if not closed.is_deserted:
                break
            abandoned = {outcome.client: outcome for outcome in closed.outcomes()}
            progress = self._turn_to_others(progress, closed)
        if not closed.learned:
            raise self._all_refused(closed)
        after = self._aggregate(progress, step, fold, closed, stamps)
        return replace(after, selection=self._asking.select(number + 1))

    def _open(self, progress: Progress, abandoned: Mapping[int, ClientOutcome]) -> OpenRound:
        federation = self._recipe.federation
        needed = min(federation.clients_per_round, len(progress.selection))
        return OpenRound(
            run=self._run,
            number=progress.round + 1,
            activations={client: progress.activations[client] + 1 for client in progress.selection},
            needed=needed,
            quorum=math.ceil(federation.quorum * needed),
            deadline=math.inf,
            abandoned=abandoned,
            over=progress.activations,
        )

    def _ask(self, opened: OpenRound, model: Broadcast, progress: Progress, fold: Fold) -> OpenRound:
        if self._restarted:
            for arrival in self.inbox.leftovers():
                opened = self._take(arrival, opened, fold)
            self._restarted = False
        unanswered = {client: opened.activations[client] for client in opened.awaited}
        self._asking.ask(model, unanswered, progress.answered)
        self._reporter.enter(opened.number, "wait")
        return replace(opened, deadline=self._around.now() + self._recipe.federation.deadline_seconds)

    def _collect(self, opened: OpenRound, progress: Progress, fold: Fold, stamps: Stopwatch) -> OpenRound:
        """Take answers until the round may close."""
        now = self._around.now
        heard = now()
        while not opened.may_close(now()):
            self._around.check_stop()
            overdue = opened.overdue(now())
            opened, came = self._receive(POLL_SECONDS, opened, progress, fold, stamps)
            if came:
                heard = now()
            elif overdue and self.inbox.is_empty:
                raise self._too_few(opened)
            elif now() - heard >= DEAD_TASK_SECONDS:
                opened = self._give_up_on_dead_tasks(opened)
                opened = self._give_up_on_absent_sites(opened, self._around.sites.present())
                heard = now()
        stamps.lap("wait")
        return opened

    def _too_few(self, opened: OpenRound) -> FedILError:
        return FedILError(
            f"round {opened.number}: {opened.learned} of {len(opened.activations)} clients have learned within "
            f"{self._recipe.federation.deadline_seconds:g} s, the quorum is {opened.quorum}: "
            "start more workers, raise federation.deadline_seconds or lower federation.quorum, then resume"
        )

    def _all_refused(self, closed: OpenRound) -> FedILError:
        said = next(outcome.detail for outcome in closed.outcomes() if outcome.outcome == "refused")
        return FedILError(f"round {closed.number}: every client refused; the first says {said}")

    def _turn_to_others(self, progress: Progress, deserted: OpenRound) -> Progress:
        """The same round with clients of sites that are there; who was asked before is fenced off if it is asked
        again. Written down first: another life must neither ask those of the last checkpoint nor use one activation
        for two tasks."""
        number = deserted.number
        self._around.watcher.note(f"round {number}: the sites of all who were asked are gone; asking others")
        activations = list(progress.activations)
        for client, activation in deserted.activations.items():
            activations[client] = activation
        selection = self._asking.select(number)
        changed = replace(progress, activations=tuple(activations), selection=selection)
        # The checkpoint remembers one record, which must be out before it is written anew.
        self._reporter.report(wait=True)
        self._save(changed)
        self.inbox.settle()
        return changed
