"""Rounds mode, the paper's: ask some clients, wait for them with a quorum and one deadline, aggregate."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from broker_config.protocol.errors import FedILError
from fedil_model.methods.interface import Fold, ServerStep
from server_worker.round.collecting import DEAD_TASK_SECONDS, POLL_SECONDS, Collecting
from server_worker.round.dispatch import Broadcast
from server_worker.round.reporting import Stopwatch
from server_worker.round.selection import select_clients
from server_worker.round.state import MISSING, OpenRound
from server_worker.run.progress import Progress

_LAST_LOOK_SECONDS = 10.0
"""What lies in the queue at the deadline is still looked at, for so long at most: somebody may go on sending."""


class RoundsLoop(Collecting):
    _restarted = True
    """Answers to tasks of an earlier life may lie in the queue."""
    _model: Broadcast
    """The open round's"""

    def begin(self, progress: Progress) -> Progress:
        # An earlier run in this folder may have left its own.
        self._write_down(progress)
        return progress

    def play(self, progress: Progress) -> Progress:
        number, stamps = progress.round + 1, Stopwatch(self._around.clock)
        if self._restarted:
            progress = self._restore(progress)
        step = self._server_step(progress, stamps)
        self._reporter.enter(number, "broadcast")
        self._write_model(number, step)
        fold = self._method.open_fold(progress.state, {number: step.broadcast}, number)
        opened = self._open(progress)
        if self._restarted:
            for arrival in self.inbox.leftovers():
                opened = self._take(arrival, opened, fold)
            self._restarted = False
        opened = self._ask(opened, progress)
        self._reporter.enter(number, "wait")
        stamps.lap("broadcast")
        closed, progress = self._collect(opened, progress, step, fold, stamps)
        if not closed.learned:
            raise self._nobody_learned(closed)
        after = self._aggregate(progress, step, fold, closed, stamps)
        return replace(after, selection=self._asking.select(number + 1))

    def _open(self, progress: Progress) -> OpenRound:
        federation = self._recipe.federation
        # Not of those who were selected: more may be asked, and another life must count alike.
        needed = min(federation.clients_per_round, self._recipe.split.clients)
        return OpenRound(
            run=self._run,
            number=progress.round + 1,
            activations={client: progress.activations[client] + 1 for client in progress.selection},
            needed=needed,
            quorum=math.ceil(federation.quorum * needed),
            deadline=math.inf,
            over=progress.activations,
        )

    def _write_model(self, number: int, step: ServerStep) -> None:
        # Only this one: who is behind need not begin with an older model.
        self._model = self._asking.broadcast(number, step.broadcast, kept=1)

    def _ask(self, opened: OpenRound, progress: Progress) -> OpenRound:
        self._send(opened, opened.awaited, progress)
        return replace(opened, deadline=self._around.now() + self._recipe.federation.deadline_seconds)

    def _send(self, opened: OpenRound, clients: Sequence[int], progress: Progress) -> None:
        activations = {client: opened.activations[client] for client in clients}
        self._asking.ask(self._model, activations, progress.answered)

    def _collect(
        self, opened: OpenRound, progress: Progress, step: ServerStep, fold: Fold, stamps: Stopwatch
    ) -> tuple[OpenRound, Progress]:
        """Take answers until the round may close."""
        now = self._around.now
        heard, last_look = now(), math.inf
        while not opened.may_close(now()):
            if opened.is_settled:
                others = self._others(opened)
                if others:
                    progress = self._add(others, opened, progress)
                    opened, last_look = self._ask(opened.also(others), progress), math.inf
                elif self._is_final(opened, now()):
                    break
            self._around.check_stop()
            overdue = opened.overdue(now())
            opened, counted = self._receive(POLL_SECONDS, opened, progress, fold, stamps)
            if counted:
                heard = now()
            elif overdue:
                last_look = min(last_look, now() + _LAST_LOOK_SECONDS)
                if self.inbox.is_empty or now() >= last_look:
                    raise self._too_few(opened)
            if now() - heard >= DEAD_TASK_SECONDS:
                lost = self._lost(opened, partial(self._write_model, opened.number, step))
                self._send(opened, lost, progress)
                opened = self._give_up_on_dead_tasks(opened)
                opened = self._give_up_on_absent_sites(opened, self._around.sites.present())
                heard = now()
        stamps.lap("wait")
        return opened, progress

    def _too_few(self, opened: OpenRound) -> FedILError:
        return FedILError(
            f"round {opened.number}: {opened.learned} of {len(opened.activations)} clients have learned within "
            f"{self._recipe.federation.deadline_seconds:g} s, the quorum is {opened.quorum}: "
            "start more workers, raise federation.deadline_seconds or lower federation.quorum, then resume"
            f"{self._what_is_wrong(opened)}"
        )

    def _nobody_learned(self, closed: OpenRound) -> FedILError:
        outcomes = sorted(closed.outcomes(), key=lambda outcome: outcome.outcome != "refused")
        what = (
            "every client refused" if outcomes[-1].outcome == "refused" else "no client has learned anything"
        )
        return FedILError(f"round {closed.number}: {what}; the first says {outcomes[0].detail}")

    # ---- when too few of those who were asked have learned -----------------------------------------------------

    def _others(self, settled: OpenRound) -> tuple[int, ...]:
        """Whom to ask as well, first of sites that have not refused."""
        candidates = self._asking.candidates()
        if self._is_hopeless(settled, candidates, settled.needed):
            return ()
        left = [client for client in candidates if client not in settled.activations]
        refusing = self._sites_of(settled, ("refused",))
        willing = [client for client in left if self._around.sites.site_of(client) not in refusing]
        return select_clients(
            self._recipe.seed, settled.number, willing or left, settled.needed - settled.fitting
        )

    def _is_final(self, settled: OpenRound, now: float) -> bool:
        """Nobody else can be asked. Who was given up may still answer, while its site is there and time is left."""
        if self._is_hopeless(settled, self._asking.candidates(), settled.needed):
            return True
        hope = self._sites_of(settled, (MISSING,)) & set(self._around.sites.present())
        return bool(settled.learned) and (not hope or now >= settled.deadline)

    def _add(self, others: Sequence[int], opened: OpenRound, progress: Progress) -> Progress:
        """Written down before they are asked: another life must ask them too."""
        self._around.watcher.note(
            f"round {opened.number}: {opened.fitting} of {len(opened.activations)} have learned, where "
            f"{opened.quorum} are needed; asking {len(others)} more"
        )
        changed = replace(progress, selection=(*progress.selection, *others))
        self._write_down(changed)
        return changed

    def _write_down(self, progress: Progress) -> None:
        """Beside the checkpoint, which is large, and has the selection that its round began with."""
        fields = {"version": progress.round + 1, "selection": list(progress.selection)}
        self._around.checkpoints.save_asked(fields)

    def _restore(self, progress: Progress) -> Progress:
        asked = self._around.checkpoints.asked()
        if asked is None or asked["version"] != progress.round + 1:
            return progress
        selection = tuple(asked["selection"])
        # Others were only ever added; what begins otherwise was written before somebody went back to an older
        # checkpoint.
        is_ours = selection[: len(progress.selection)] == progress.selection
        return replace(progress, selection=selection) if is_ours else progress
