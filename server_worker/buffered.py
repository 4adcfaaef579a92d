"""Buffered mode: always some clients at work, an aggregation whenever enough have answered, nobody waits for the
slowest. What is decided is in `buffer.py`.

A task is written down before it is sent, and an answer is held until a checkpoint has it: a server that dies
knows on its return whom it has asked, and counts what they answered once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from broker_config.errors import FedILError
from broker_config.messages import TrainTask
from fedil_model.datasets.interface import Samples
from fedil_model.methods.interface import Fold, Folded, Method, ServerStep
from server_worker.asking import Asking, Broadcast
from server_worker.buffer import OpenBuffer, Rules
from server_worker.closing import close_round
from server_worker.errors import named
from server_worker.events import ClientOutcome
from server_worker.inbox import Arrival, Inbox
from server_worker.progress import Progress
from server_worker.recipe import Recipe
from server_worker.reporting import Reporter, Stopwatch
from server_worker.rounds import DEAD_TASK_SECONDS, POLL_SECONDS, judge
from server_worker.surroundings import Surroundings


class BufferedLoop:
    def __init__(
        self,
        run: str,
        recipe: Recipe,
        method: Method,
        labelled: Samples,
        around: Surroundings,
        reporter: Reporter,
    ) -> None:
        self._recipe, self._method, self._labelled = recipe, method, labelled
        self._around, self._reporter = around, reporter
        self._asking = Asking(run, recipe, around)
        self.inbox = Inbox(run, around)
        federation = recipe.federation
        self._rules = Rules(
            run=run,
            seed=recipe.seed,
            in_flight=federation.in_flight,
            size=federation.buffer_size,
            max_staleness=federation.max_staleness,
            deadline_seconds=federation.deadline_seconds,
        )
        self._open: OpenBuffer | None = None
        """None until this life's first aggregation"""
        self._models: dict[int, Broadcast] = {}
        """Versions that this life has put into the log"""

    def begin(self, progress: Progress) -> Progress:
        fields = OpenBuffer(self._rules, 1, progress.activations).to_fields()
        # An earlier run in this folder may have left its own.
        self._around.checkpoints.save_asked(fields)
        return replace(progress, selection=(), buffer=fields)

    def play(self, progress: Progress) -> Progress:
        number, stamps = progress.round + 1, Stopwatch(self._around.clock)
        self._reporter.enter(number, "server_step")
        step = named(
            "the server's step", lambda: self._method.server_step(progress.state, self._labelled, number)
        )
        stamps.lap("server_step")
        self._reporter.enter(number, "broadcast")
        bases = {**progress.bases, number: step.broadcast}
        fold = self._method.open_fold(progress.state, bases, number)
        buffer = self._open
        if buffer is None:
            buffer = self._restore(progress)
            self.inbox.remember_dead_tasks()
            for arrival in self.inbox.leftovers():
                buffer = self._take(arrival, buffer, fold)
            self._broadcast(buffer, bases)
            self._send(buffer, buffer.awaited, progress)
        else:
            self._broadcast(buffer, bases)
        stamps.lap("broadcast")
        self._reporter.enter(number, "wait")
        closed = self._collect(buffer, fold, progress, stamps)
        self._reporter.enter(number, "close")
        folded = fold.close()
        for note in folded.notes:
            self._around.watcher.note(f"round {number}: {note}")
        stamps.lap("fold")
        return self._advance(progress, step, closed, folded, stamps)

    # ---- asking ----------------------------------------------------------------------------------------------

    def _restore(self, progress: Progress) -> OpenBuffer:
        """What was written down when the last task was sent, or else with the checkpoint."""
        fields, asked = progress.buffer, self._around.checkpoints.asked()
        if asked is not None and asked["version"] == progress.round + 1:
            fields = asked
        assert fields is not None
        return OpenBuffer.from_fields(fields, self._rules, progress.activations, self._around.clock())

    def _broadcast(self, buffer: OpenBuffer, bases: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Oldest first: the log lets go of what was written first."""
        kept = self._rules.max_staleness + 1
        self._models = {
            version: self._models.get(version) or self._asking.broadcast(version, bases[version], kept)
            for version in buffer.bases()
        }

    def _fill(self, buffer: OpenBuffer, candidates: Sequence[int], progress: Progress) -> OpenBuffer:
        chosen = buffer.replacements(candidates)
        if not chosen:
            return buffer
        buffer = buffer.ask(chosen, self._around.clock())
        self._around.checkpoints.save_asked(buffer.to_fields())
        self._send(buffer, chosen, progress)
        return buffer

    def _send(self, buffer: OpenBuffer, clients: Sequence[int], progress: Progress) -> None:
        for client in clients:
            flight = buffer.flights[client]
            model = self._models[flight.base_version]
            self._asking.ask(model, {client: flight.activation}, progress.answered)

    # ---- what arrives ----------------------------------------------------------------------------------------

    def _collect(self, buffer: OpenBuffer, fold: Fold, progress: Progress, stamps: Stopwatch) -> OpenBuffer:
        clock = self._around.clock
        heard = looked = clock()
        while not buffer.may_aggregate(candidates := self._asking.candidates()):
            self._around.check_stop()
            self._check_hope(buffer, candidates, clock() - heard)
            buffer = self._fill(self._give_up(buffer), candidates, progress)
            away = self._around.away()
            arrival = self.inbox.next(POLL_SECONDS)
            away = self._around.away() - away
            heard, buffer = heard + away, buffer.postponed(away)
            self._reporter.report(wait=False)
            stamps.lap("wait")
            if arrival is not None:
                buffer = self._take(arrival, buffer, fold)
                self._asking.check_store(arrival.answer, progress.answered)
                del arrival  # or two updates are in memory while the next one comes
                stamps.lap("fold")
                heard = looked = clock()
            elif clock() - looked >= DEAD_TASK_SECONDS:
                buffer = self._give_up_on_dead_tasks(buffer)
                looked = clock()
        stamps.lap("wait")
        return buffer

    def _check_hope(self, buffer: OpenBuffer, candidates: Sequence[int], silent_seconds: float) -> None:
        if buffer.all_refuse(candidates):
            detail = next(o.detail for o in buffer.outcomes() if o.outcome == "refused")
            raise FedILError(f"round {buffer.version}: every client refused; the first says {detail}")
        if silent_seconds >= self._rules.deadline_seconds:
            raise FedILError(
                f"round {buffer.version}: no client has answered for {self._rules.deadline_seconds:g} s: start "
                "workers or raise federation.deadline_seconds, then resume"
            )

    def _take(self, arrival: Arrival, buffer: OpenBuffer, fold: Fold) -> OpenBuffer:
        answer = arrival.answer
        objection = buffer.objection(answer)
        if objection is None:
            outcome = judge(arrival, fold, self._recipe.client.epochs, buffer.weight(answer.client))
            self.inbox.hold(arrival)
            return self._note(buffer, replace(outcome, staleness=buffer.staleness(answer.client)))
        if objection == "duplicate":
            self.inbox.hold_repeat(arrival)
        elif objection in ("late", "stale"):
            self.inbox.drop(arrival, objection)
        else:
            self.inbox.refuse(arrival.delivery, objection, f"round {answer.round}, client {answer.client}")
        return buffer

    def _note(self, buffer: OpenBuffer, outcome: ClientOutcome) -> OpenBuffer:
        buffer = buffer.record(outcome)
        self._around.watcher.update_arrived(buffer.version, outcome, buffer.answered, self._rules.size)
        return buffer

    def _give_up(self, buffer: OpenBuffer) -> OpenBuffer:
        """On clients whose time is over, and on those of sites without a worker as long as others have one."""
        outcomes = {outcome.client: outcome for outcome in buffer.overdue(self._around.clock())}
        sites = self._around.sites
        present = sites.present()
        for client in buffer.awaited:
            if present and sites.site_of(client) not in present:
                staleness = buffer.staleness(client)
                outcomes[client] = ClientOutcome(
                    client, "missing", detail="its site has no worker", staleness=staleness
                )
        for outcome in outcomes.values():
            buffer = self._note(buffer, outcome)
        return buffer

    def _give_up_on_dead_tasks(self, buffer: OpenBuffer) -> OpenBuffer:
        dead: dict[int, str] = {}

        def note(task: TrainTask, reason: str) -> None:
            flight = buffer.flights.get(task.client)
            if flight is not None and flight.activation == task.activation:
                dead[task.client] = reason

        self.inbox.dead_tasks(note)
        for client in sorted(dead.keys() & set(buffer.awaited)):
            detail = f"its task is a dead letter ({dead[client]})"
            buffer = self._note(buffer, ClientOutcome(client, "refused", detail=detail))
        return buffer

    # ---- after an aggregation --------------------------------------------------------------------------------

    def _advance(
        self, progress: Progress, step: ServerStep, closed: OpenBuffer, folded: Folded, stamps: Stopwatch
    ) -> Progress:
        after = close_round(
            progress,
            self._recipe,
            self._method,
            self._labelled,
            step=step,
            folded=folded,
            outcomes=closed.outcomes(),
            asked={client: flight.activation for client, flight in closed.flights.items()},
            refused=self.inbox.take_refused(),
            seconds=stamps.seconds(),
        )
        self._open = closed.aggregated()
        bases = {**progress.bases, closed.version: step.broadcast}
        return replace(
            after,
            buffer=self._open.to_fields(),
            bases={version: bases[version] for version in self._open.bases() if version in bases},
        )
