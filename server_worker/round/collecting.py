"""What the loops of both modes do alike: the server's step, taking what arrives, giving up who will not answer."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, Self, TypeVar

from broker_config.protocol.errors import ModelMissing
from broker_config.protocol.messages import Refusal, TrainTask, Update
from broker_config.transports.interface import MAX_BODY_BYTES
from fedil_model.data.datasets.interface import Samples
from fedil_model.methods.interface import Fold, Method, ServerStep
from fedil_model.training.flat_model import from_arrays, num_bytes
from server_worker.errors import named
from server_worker.round.closing import close_round
from server_worker.round.context import Surroundings
from server_worker.round.dispatch import Asking
from server_worker.round.inbox import Arrival, Inbox
from server_worker.round.reporting import Reporter, Stopwatch
from server_worker.round.state import MISSING
from server_worker.round.validation import impossible, kept_metrics, one_line
from server_worker.run.progress import Progress
from server_worker.run.recipe import Recipe
from server_worker.watch.events import NOT_LEARNED, ClientOutcome

POLL_SECONDS = 0.5
DEAD_TASK_SECONDS = 2.0
"""How long nothing may arrive before the dead letters are looked through."""
_OF_NO_USE = ("late", "stale")
"""Objections to answers that are good and came too late"""
_GIVEN_UP = ("delivery_limit", "expired")
"""Reasons of the broker's own for making a dead letter of a task"""
_BAD = frozenset({"refused", "invalid"})
_MANY = 3
"""Times as many as are asked at a time"""
_MOST_MODELS, _SPARE_BYTES = 4, 16 << 20
"""A method may send more than one set of tensors, and words beside them."""


class Open(Protocol):
    """What answers arrive for: a round or a buffer, as a value."""

    @property
    def number(self) -> int: ...

    @property
    def asked(self) -> Mapping[int, int]:
        """Client → the activation that its outcome belongs to"""

    @property
    def awaited(self) -> tuple[int, ...]: ...

    @property
    def answered(self) -> int: ...

    @property
    def expected(self) -> int:
        """Answers that are wanted, for people"""

    def staleness(self, client: int) -> int | None: ...

    def weight(self, client: int) -> float: ...

    def objection(self, answer: Update | Refusal) -> str | None: ...

    def record(self, outcome: ClientOutcome) -> Self: ...

    def outcomes(self) -> tuple[ClientOutcome, ...]: ...


_Open = TypeVar("_Open", bound=Open)


class Collecting:
    def __init__(
        self,
        run: str,
        recipe: Recipe,
        method: Method,
        labelled: Samples,
        around: Surroundings,
        reporter: Reporter,
    ) -> None:
        self._run, self._recipe, self._method, self._labelled = run, recipe, method, labelled
        self._around, self._reporter = around, reporter
        self._asking = Asking(run, recipe, around)
        self.inbox = Inbox(run, around)
        self._unread: dict[int, int] = {}
        """Client → the activation in which it did not find its model"""
        self._ask_again: set[int] = set()

    def _server_step(self, progress: Progress, stamps: Stopwatch) -> ServerStep:
        number = progress.round + 1
        self._reporter.enter(number, "server_step")
        step = named(
            "the server's step", lambda: self._method.server_step(progress.state, self._labelled, number)
        )
        # Before anything is received: a client that says it has sent a terabyte gets no memory for it.
        most = _MOST_MODELS * num_bytes(step.broadcast) + _SPARE_BYTES
        self._around.transport.max_body_bytes = min(most, MAX_BODY_BYTES)
        stamps.lap("server_step")
        return step

    def _aggregate(
        self, progress: Progress, step: ServerStep, fold: Fold, closed: Open, stamps: Stopwatch
    ) -> Progress:
        self._reporter.enter(closed.number, "close")
        folded = fold.close()
        for note in folded.notes:
            self._around.watcher.note(f"round {closed.number}: {note}")
        stamps.lap("fold")
        return close_round(
            progress,
            self._recipe,
            self._method,
            self._labelled,
            step=step,
            folded=folded,
            outcomes=closed.outcomes(),
            asked=closed.asked,
            refused=self.inbox.take_refused(),
            seconds=stamps.seconds(),
        )

    def _receive(
        self, timeout_seconds: float, opened: _Open, progress: Progress, fold: Fold, stamps: Stopwatch
    ) -> tuple[_Open, bool]:
        """One answer, if one comes in time; and whether it counts. It is gone from memory when this returns, before
        the next one comes."""
        arrival = self.inbox.next(timeout_seconds)
        self._reporter.report(wait=False)
        stamps.lap("wait")
        if arrival is None:
            return opened, False
        after = self._take(arrival, opened, fold)
        self._asking.check_store(arrival.answer, progress.answered)
        stamps.lap("fold")
        return after, after is not opened

    def _take(self, arrival: Arrival, opened: _Open, fold: Fold) -> _Open:
        answer = arrival.answer
        objection = opened.objection(answer)
        if objection is None and self._found_no_model(answer):
            self.inbox.drop(arrival, "model_missing")
            return opened
        if objection is None:
            outcome = self._judge(answer, fold, opened.weight(answer.client))
            self.inbox.hold(arrival)
            return self._record(opened, outcome)
        if objection == "duplicate":
            self.inbox.hold_repeat(arrival)
        elif objection in _OF_NO_USE:
            self.inbox.drop(arrival, objection)
        else:
            self.inbox.refuse(arrival.delivery, objection, f"round {answer.round}, client {answer.client}")
        return opened

    def _found_no_model(self, answer: Update | Refusal) -> bool:
        """What a client is asked with is in the log, unless somebody has deleted that: then it is no refusal, and the
        client is asked again. Once: who does not find it then will not find it."""
        if not isinstance(answer, Refusal) or answer.reason != ModelMissing.__name__:
            return False
        if self._unread.get(answer.client) == answer.activation:
            return False
        self._unread[answer.client] = answer.activation
        self._ask_again.add(answer.client)
        return True

    def _lost(self, opened: Open, write_models: Callable[[], object]) -> list[int]:
        """Whom to ask again"""
        lost = {*self._asking.lost(opened.awaited, write_models), *self._ask_again}
        self._ask_again.clear()
        return [client for client in opened.awaited if client in lost]

    def _judge(self, answer: Update | Refusal, fold: Fold, weight: float) -> ClientOutcome:
        if isinstance(answer, Refusal):
            detail = one_line(f"{answer.reason}: {answer.detail}")
            return ClientOutcome(answer.client, "refused", detail=detail)
        if wrong := impossible(answer, self._recipe.client, self._around.held):
            return ClientOutcome(answer.client, "invalid", detail=wrong)
        verdict = fold.add(from_arrays(answer.tensors), answer.num_steps, answer.base_version, weight)
        return ClientOutcome(
            answer.client,
            verdict.outcome,
            verdict.cosine,
            one_line(verdict.detail),
            kept_metrics(answer),
            answer.num_samples,
        )

    def _record(self, opened: _Open, outcome: ClientOutcome) -> _Open:
        outcome = replace(outcome, staleness=opened.staleness(outcome.client))
        opened = opened.record(outcome)
        self._around.watcher.update_arrived(opened.number, outcome, opened.answered, opened.expected)
        return opened

    # ---- who will not answer ---------------------------------------------------------------------------------

    def _give_up_on_absent_sites(self, opened: _Open, present: Iterable[str]) -> _Open:
        """As long as others have workers: when nobody has, all wait."""
        there = set(present)
        for client in opened.awaited:
            if there and self._around.sites.site_of(client) not in there:
                outcome = ClientOutcome(client, MISSING, detail="its site has no worker")
                opened = self._record(opened, outcome)
        return opened

    def _give_up_on_dead_tasks(self, opened: _Open) -> _Open:
        """Only on what this life has sent: what an earlier one was not answered may be answered now."""
        dead: dict[int, str] = {}
        asked = opened.asked

        def note(task: TrainTask, reason: str) -> None:
            if asked.get(task.client) == task.activation and self._asking.has_sent(task):
                dead[task.client] = reason

        self.inbox.dead_tasks(note)
        for client in sorted(dead.keys() & set(opened.awaited)):
            # A broker that was killed often gives up a task that somebody is still at: that answer is welcome. One that
            # was not has seen workers die of it.
            outcome = MISSING if dead[client] in _GIVEN_UP and self._around.away() else "refused"
            detail = f"its task is a dead letter ({dead[client]})"
            opened = self._record(opened, ClientOutcome(client, outcome, detail=detail))
        return opened

    def _sites_of(self, opened: Open, outcomes: Collection[str]) -> set[str]:
        return {self._around.sites.site_of(o.client) for o in opened.outcomes() if o.outcome in outcomes}

    def _is_hopeless(self, opened: Open, candidates: Sequence[int], at_a_time: int) -> bool:
        """All refuse or send nonsense, or very many and of every site: what is wrong is wrong everywhere. One site
        alone ends nobody's run."""
        outcomes = [outcome.outcome for outcome in opened.outcomes()]
        if not (NOT_LEARNED | _BAD).issuperset(outcomes):
            return False
        if sum(outcome in _BAD for outcome in outcomes) < min(_MANY * at_a_time, len(candidates)):
            return False
        return self._sites_of(opened, _BAD).issuperset(self._around.sites.names())

    def _what_is_wrong(self, opened: Open) -> str:
        """One of those who could not learn, for an error"""
        found = [o for o in opened.outcomes() if o.outcome in ("refused", "invalid", MISSING)]
        found.sort(key=lambda outcome: outcome.outcome == MISSING)
        return f"; client {found[0].client}: {found[0].outcome} ({found[0].detail})" if found else ""
