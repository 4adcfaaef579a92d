"""Takes what arrives for an open round: judged by the fold, recorded, and held until a checkpoint has its effect."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from broker_config.protocol.errors import LedgerMissing, ModelMissing
from broker_config.protocol.messages import Refusal, TrainTask, Update
from fedil_model.errors import StateError
from fedil_model.methods.interface import INVALID, Answer, Fold
from fedil_model.training.codecs import decode
from fedil_model.training.flat_model import from_arrays
from server_worker.round.context import ServerContext
from server_worker.round.dead_letters import DeadTasks
from server_worker.round.dispatch import TaskDispatcher
from server_worker.round.inbox import Arrival, Inbox
from server_worker.round.state import Open, OpenT
from server_worker.round.stopwatch import Stopwatch
from server_worker.round.validation import impossible, kept_metrics, one_line
from server_worker.run.ledger_checks import LedgerChecks
from server_worker.run.recipe import Recipe
from server_worker.watch.events import MISSING, NOT_LEARNED, REFUSED, ClientOutcome

_OF_NO_USE = ("late", "stale", "duplicate")
"""Objections to answers that are good"""
_GIVEN_UP_BY_BROKER = ("delivery_limit", "expired")
"""The broker's own reasons for dead-lettering a task"""
_BAD = frozenset({REFUSED, INVALID})
_MANY = 3
"""Times as many failures as clients are asked at a time: then the fault is not one client's"""


@dataclass
class AnswerDesk:
    run: str
    recipe: Recipe
    inbox: Inbox
    dispatcher: TaskDispatcher
    context: ServerContext
    ledgers: LedgerChecks
    on_idle: Callable[[], None]
    """Called after each wait for an answer"""

    def __post_init__(self) -> None:
        self._dead_tasks = DeadTasks(self.run, self.context)
        self._asked_again: dict[tuple[int, str], int] = {}
        """Client and why it was asked again → the activation"""
        self._ask_again: set[int] = set()

    # ---- what arrives ------------------------------------------------------------------------------------------

    def take_leftovers(self, opened: OpenT, fold: Fold) -> OpenT:
        """Answers to an earlier life of this server: those clients need not train again."""
        for arrival in self.inbox.leftovers():
            opened = self._take(arrival, opened, fold)
        self._ask_again = set()  # all that are awaited are asked now
        return opened

    def receive(self, opened: OpenT, fold: Fold, timeout_seconds: float, stopwatch: Stopwatch) -> OpenT:
        """One answer, if one comes in time. Its tensors are out of memory when this returns."""
        arrival = self.inbox.next(timeout_seconds)
        self.on_idle()
        stopwatch.lap("wait")
        if arrival is None:
            return opened
        after = self._take(arrival, opened, fold)
        counts = after is not opened
        if counts and isinstance(arrival.answer, Refusal) and arrival.answer.reason == LedgerMissing.__name__:
            self.ledgers.check(self.dispatcher.answered)
        stopwatch.lap("fold")
        return after

    def _take(self, arrival: Arrival, opened: OpenT, fold: Fold) -> OpenT:
        answer = arrival.answer
        objection = opened.objection(answer)
        if objection is None and (why := self._will_be_asked_again(answer)):
            self.inbox.drop(arrival, why)
        elif objection is None:
            outcome = self._judge(answer, fold, opened.weight(answer.client))
            self.inbox.hold(arrival)
            return self._record(opened, outcome)
        elif objection in _OF_NO_USE:
            self.inbox.drop(arrival, objection)
        elif arrival.delivery is not None:
            self.inbox.refuse(arrival.delivery, objection, f"round {answer.round}, client {answer.client}")
        return opened

    def _will_be_asked_again(self, answer: Update | Refusal) -> str:
        """Why, in a word; empty if the answer counts. A model that a task names is in the log unless the log was
        deleted, and a ledger is in the store unless that has gone back to an earlier state: the client is asked again,
        once. What is missing then too is its own site's fault."""
        if isinstance(answer, Refusal):
            why = "model_missing" if answer.reason == ModelMissing.__name__ else ""
        else:
            why = "" if self.ledgers.has(answer.client, answer.activation) else "ledger_missing"
        if not why or self._asked_again.get((answer.client, why)) == answer.activation:
            return ""
        self._asked_again[answer.client, why] = answer.activation
        self._ask_again.add(answer.client)
        return why

    def _judge(self, answer: Update | Refusal, fold: Fold, weight: float) -> ClientOutcome:
        if isinstance(answer, Refusal):
            return ClientOutcome(answer.client, REFUSED, one_line(f"{answer.reason}: {answer.detail}"))
        if wrong := impossible(answer, self.recipe.client, self.context.shard_sizes):
            return ClientOutcome(answer.client, INVALID, wrong)
        metrics = kept_metrics(answer, self.recipe.spec.display)
        try:
            tensors = decode(answer.tensors, self.context.transport.max_body_bytes)
        except StateError as error:
            return ClientOutcome(answer.client, INVALID, one_line(str(error)))
        verdict = fold.add(
            Answer(
                client=answer.client,
                update=from_arrays(tensors),
                base_version=answer.base_version,
                num_samples=answer.num_samples,
                num_steps=answer.num_steps,
                metrics=metrics,
                weight=weight,
            )
        )
        return ClientOutcome(
            answer.client,
            verdict.outcome,
            one_line(verdict.detail),
            verdict.counts,
            dict(verdict.values),
            metrics,
            answer.num_samples,
        )

    def _record(self, opened: OpenT, outcome: ClientOutcome) -> OpenT:
        outcome = replace(outcome, staleness=opened.staleness(outcome.client))
        opened = opened.record(outcome)
        self.context.watcher.update_arrived(opened.number, outcome, opened.answered, opened.expected)
        return opened

    # ---- clients that will not answer --------------------------------------------------------------------------

    def lost(self, opened: Open, rewrite_models: Callable[[], None]) -> list[int]:
        """Awaited clients that must be asked again"""
        lost = self.dispatcher.lost(opened.awaited, rewrite_models) | self._ask_again
        self._ask_again = set()
        return [client for client in opened.awaited if client in lost]

    def give_up(self, opened: OpenT, outcomes: Iterable[ClientOutcome]) -> OpenT:
        for outcome in outcomes:
            opened = self._record(opened, outcome)
        return opened

    def give_up_on_absent_sites(self, opened: OpenT) -> OpenT:
        """As long as enough other sites have workers: until then, all tasks wait."""
        sites = self.context.sites
        if not sites.are_enough():
            return opened
        present = set(sites.present())
        absent = [client for client in opened.awaited if sites.site_of(client) not in present]
        return self.give_up(
            opened, [ClientOutcome(client, MISSING, "its site has no worker") for client in absent]
        )

    def give_up_on_dead_tasks(self, opened: OpenT) -> OpenT:
        """Tasks that this process sent and the broker dead-lettered. Those of an earlier life may still be answered."""
        dead: dict[int, str] = {}
        asked = opened.asked

        def note(task: TrainTask, reason: str) -> None:
            if asked.get(task.client) == task.activation and self.dispatcher.has_sent(task):
                dead[task.client] = reason

        self._dead_tasks.look(note)
        return self.give_up(
            opened, [self._dead(client, dead[client]) for client in sorted(dead.keys() & set(opened.awaited))]
        )

    def _dead(self, client: int, reason: str) -> ClientOutcome:
        # A broker that was killed often gives up a task that a worker still trains, whose answer is welcome. One that
        # was not killed has seen workers die of it.
        outcome = MISSING if reason in _GIVEN_UP_BY_BROKER and self.context.away() else REFUSED
        return ClientOutcome(client, outcome, f"its task is a dead letter ({reason})")

    # ---- when too few learn ------------------------------------------------------------------------------------

    def sites_of(self, opened: Open, outcomes: Collection[str]) -> set[str]:
        return {self.context.sites.site_of(o.client) for o in opened.outcomes() if o.outcome in outcomes}

    def is_hopeless(self, opened: Open, at_a_time: int) -> bool:
        """All refuse or send invalid updates, or very many do and of every site: the fault is everywhere. One site
        alone ends no run."""
        outcomes = [outcome.outcome for outcome in opened.outcomes()]
        if not (NOT_LEARNED | _BAD).issuperset(outcomes):
            return False
        if sum(outcome in _BAD for outcome in outcomes) < min(
            _MANY * at_a_time, len(self.dispatcher.candidates())
        ):
            return False
        return self.sites_of(opened, _BAD).issuperset(self.context.sites.names())

    def example_of_failure(self, opened: Open) -> str:
        """One client that could not learn, for an error message"""
        failed = [o for o in opened.outcomes() if o.outcome in (REFUSED, INVALID, MISSING)]
        failed.sort(key=lambda outcome: outcome.outcome == MISSING)
        return f"; client {failed[0].client}: {failed[0].outcome} ({failed[0].detail})" if failed else ""
