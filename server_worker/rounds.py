"""Rounds mode, the paper's: ask some clients, wait for them with a quorum and one deadline, aggregate."""

import math
from collections.abc import Callable
from dataclasses import replace

from broker_config.errors import FedILError
from broker_config.messages import Refusal, TrainTask
from fedil_model.datasets.interface import Samples
from fedil_model.methods.interface import Fold, Folded, Method, ServerStep
from fedil_model.parameters import from_arrays
from server_worker.asking import Asking
from server_worker.closing import close_round
from server_worker.errors import named
from server_worker.events import ClientOutcome
from server_worker.inbox import Arrival, Inbox
from server_worker.progress import Progress
from server_worker.recipe import Recipe
from server_worker.reporting import Reporter, Stopwatch
from server_worker.round import OpenRound
from server_worker.surroundings import Surroundings

POLL_SECONDS = 0.5
DEAD_TASK_SECONDS = 2.0
"""How long nothing may arrive before the dead letters are looked through."""
_LONGEST_DETAIL = 1000


class _NobodyThere(Exception):
    """Everybody who is still awaited has vanished, and nobody else has learned anything."""


class RoundsLoop:
    def __init__(
        self,
        run: str,
        recipe: Recipe,
        method: Method,
        labelled: Samples,
        around: Surroundings,
        reporter: Reporter,
        save: Callable[[Progress], None],
    ) -> None:
        """`save` writes a checkpoint."""
        self._run, self._recipe, self._method, self._labelled = run, recipe, method, labelled
        self._around, self._reporter, self._save = around, reporter, save
        self._asking = Asking(run, recipe, around)
        self.inbox = Inbox(run, around)
        self._restarted = True
        """Answers to tasks of an earlier life may lie in the queue."""

    def begin(self, progress: Progress) -> Progress:
        return progress

    def play(self, progress: Progress) -> Progress:
        number, stamps = progress.round + 1, Stopwatch(self._around.clock)
        self._reporter.enter(number, "server_step")
        step = named(
            "the server's step", lambda: self._method.server_step(progress.state, self._labelled, number)
        )
        stamps.lap("server_step")
        self._reporter.enter(number, "broadcast")
        # Only this one: who is behind need not begin with an older model.
        model = self._asking.broadcast(number, step.broadcast, kept=1)
        opened = self._open(progress, number)
        fold = self._method.open_fold(progress.state, {number: step.broadcast}, number)
        if self._restarted:
            for arrival in self.inbox.leftovers():
                opened = self._take(arrival, opened, fold)
            self.inbox.remember_dead_tasks()
            self._restarted = False
        unanswered = {c: a for c, a in opened.activations.items() if c not in opened.arrived}
        self._asking.ask(model, unanswered, progress.answered)
        stamps.lap("broadcast")
        self._reporter.enter(number, "wait")
        # From now on: while the brokers were away nobody could answer.
        deadline = self._around.clock() + self._recipe.federation.deadline_seconds
        try:
            closed = self._collect(replace(opened, deadline=deadline), progress, fold, stamps)
        except _NobodyThere:
            return self.play(self._ask_others(progress, opened))
        self._reporter.enter(number, "close")
        folded = fold.close()
        for note in folded.notes:
            self._around.watcher.note(f"round {number}: {note}")
        stamps.lap("fold")
        return self._advance(progress, step, closed, folded, stamps)

    def _open(self, progress: Progress, number: int) -> OpenRound:
        federation = self._recipe.federation
        needed = min(federation.clients_per_round, len(progress.selection))
        return OpenRound(
            run=self._run,
            number=number,
            activations={client: progress.activations[client] + 1 for client in progress.selection},
            needed=needed,
            quorum=math.ceil(federation.quorum * needed),
            deadline=math.inf,
        )

    def _collect(self, opened: OpenRound, progress: Progress, fold: Fold, stamps: Stopwatch) -> OpenRound:
        """Take answers until the round may close."""
        clock = self._around.clock
        heard = clock()
        while not opened.may_close(clock()):
            self._around.check_stop()
            away, before = self._around.away(), opened.answered
            arrival = self.inbox.next(POLL_SECONDS)
            opened = replace(opened, deadline=opened.deadline + self._around.away() - away)
            self._reporter.report(wait=False)
            stamps.lap("wait")
            if arrival is not None:
                opened = self._take(arrival, opened, fold)
                self._asking.check_store(arrival.answer, progress.answered)
                del arrival  # or two updates are in memory while the next one comes
                stamps.lap("fold")
                heard = clock()
            elif clock() - heard >= DEAD_TASK_SECONDS:
                opened = self._give_up_on_absent_sites(self._give_up_on_dead_tasks(opened))
                heard = clock()
            if opened.answered == before and opened.overdue(clock()):
                raise FedILError(
                    f"round {opened.number}: {opened.learned} of {len(opened.activations)} clients have learned within "
                    f"{self._recipe.federation.deadline_seconds:g} s, the quorum is {opened.quorum}: "
                    "start more workers, raise federation.deadline_seconds or lower federation.quorum, then resume"
                )
        stamps.lap("wait")
        return opened

    def _give_up_on_absent_sites(self, opened: OpenRound) -> OpenRound:
        """As long as others have workers: when nobody has, all wait."""
        sites = self._around.sites
        present = sites.present()
        awaited = sorted(opened.activations.keys() - opened.arrived.keys())
        absent = [client for client in awaited if present and sites.site_of(client) not in present]
        if absent and absent == awaited and not opened.learned:
            raise _NobodyThere
        for client in absent:
            outcome = ClientOutcome(client, "missing", detail="its site has no worker")
            opened = self._note_outcome(opened, outcome)
        return opened

    def _ask_others(self, progress: Progress, opened: OpenRound) -> Progress:
        """The same round with clients of sites that are there; who was asked before is fenced off. Written down first:
        a server that dies now must ask the same on its return, or they would train one activation for two rounds."""
        self._around.watcher.note(
            f"round {opened.number}: the sites of all who were asked are gone; asking others"
        )
        activations = list(progress.activations)
        for client, activation in opened.activations.items():
            activations[client] = activation
        selection = self._asking.select(opened.number)
        changed = replace(progress, activations=tuple(activations), selection=selection)
        self._reporter.report(wait=True)
        self._save(changed)
        self.inbox.settle()
        return changed

    def _take(self, arrival: Arrival, opened: OpenRound, fold: Fold) -> OpenRound:
        answer = arrival.answer
        objection = opened.objection(answer)
        if objection is None:
            outcome = judge(arrival, fold, self._recipe.client.epochs)
            self.inbox.hold(arrival)
            return self._note_outcome(opened, outcome)
        if objection == "duplicate":
            self.inbox.hold_repeat(arrival)
        elif objection == "late":
            self.inbox.drop(arrival, "late")
        else:
            self.inbox.refuse(arrival.delivery, objection, f"round {answer.round}, client {answer.client}")
        return opened

    def _note_outcome(self, opened: OpenRound, outcome: ClientOutcome) -> OpenRound:
        opened = opened.record(outcome)
        self._around.watcher.update_arrived(opened.number, outcome, opened.answered, len(opened.activations))
        return opened

    def _give_up_on_dead_tasks(self, opened: OpenRound) -> OpenRound:
        dead: dict[int, str] = {}

        def note(task: TrainTask, reason: str) -> None:
            if task.round == opened.number and opened.activations.get(task.client) == task.activation:
                dead[task.client] = reason

        self.inbox.dead_tasks(note)
        for client in sorted(dead.keys() - opened.arrived.keys()):
            detail = f"its task is a dead letter ({dead[client]})"
            opened = self._note_outcome(opened, ClientOutcome(client, "refused", detail=detail))
        return opened

    def _advance(
        self, progress: Progress, step: ServerStep, closed: OpenRound, folded: Folded, stamps: Stopwatch
    ) -> Progress:
        outcomes = closed.outcomes()
        if not closed.learned:
            said = next((o.detail for o in outcomes if o.outcome == "refused"), outcomes[0].detail)
            raise FedILError(f"round {closed.number}: every client refused; the first says {said}")
        after = close_round(
            progress,
            self._recipe,
            self._method,
            self._labelled,
            step=step,
            folded=folded,
            outcomes=outcomes,
            asked=closed.activations,
            refused=self.inbox.take_refused(),
            seconds=stamps.seconds(),
        )
        return replace(after, selection=self._asking.select(closed.number + 1))


def judge(arrival: Arrival, fold: Fold, epochs: int, weight: float = 1.0) -> ClientOutcome:
    answer = arrival.answer
    if isinstance(answer, Refusal):
        return ClientOutcome(answer.client, "refused", detail=_one_line(f"{answer.reason}: {answer.detail}"))
    if answer.num_steps > epochs * answer.num_samples:
        detail = f"{answer.num_steps} steps of {answer.num_samples} samples, in {epochs} epochs"
        return ClientOutcome(answer.client, "invalid", detail=detail)
    verdict = fold.add(from_arrays(answer.tensors), answer.num_steps, answer.base_version, weight)
    return ClientOutcome(
        answer.client,
        verdict.outcome,
        verdict.cosine,
        verdict.detail,
        dict(answer.metrics),
        answer.num_samples,
    )


def _one_line(text: str) -> str:
    """What others say goes into logs and checkpoints."""
    return " ".join(text[:_LONGEST_DETAIL].split())
