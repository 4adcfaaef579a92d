"""The server's loop: Algorithm 1 around a transport and a store. What it decides is in `round.py`,
`selection.py` and the method; what it remembers is in `progress.py`."""

import dataclasses
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import torch

from broker_config.errors import FedILError, MessageRejected
from broker_config.messages import MODEL_KIND, Refusal, TrainTask, Update
from broker_config.stores.interface import Store
from broker_config.topology import DEAD_LETTERS, tasks_queue, updates_queue
from broker_config.transports.interface import Delivery, Transport
from broker_config.wire import decode_message, digest, encode_arrays, encode_message
from fedil_model.convergence import Increment, assess
from fedil_model.datasets.interface import Samples
from fedil_model.errors import LearningError
from fedil_model.methods.interface import Fold, Folded, Method, ServerStep
from fedil_model.parameters import from_arrays, to_arrays
from server_worker.checkpoint import CheckpointFolder
from server_worker.evaluation import Evaluator
from server_worker.events import ClientOutcome, RoundRecord, Watcher
from server_worker.progress import Progress, from_checkpoint, to_checkpoint
from server_worker.recipe import Recipe, numbers_depend_on
from server_worker.round import OpenRound
from server_worker.selection import select_clients

_POLL_SECONDS = 0.5
_LETTERS_AT_A_TIME = 100


class Stopped(Exception):
    """Asked to stop; everything up to the last checkpoint is kept."""


@dataclass(frozen=True)
class Surroundings:
    """What a coordinator works with, handed in."""

    transport: Transport
    store: Store
    checkpoints: CheckpointFolder
    evaluator: Evaluator
    watcher: Watcher
    clock: Callable[[], float]
    stop: threading.Event
    site_of: Callable[[int], str]
    purity: Callable[[], Mapping[str, float | None]] = dict
    """Share of right pseudo-labels, where somebody offline knows the truth."""


class Coordinator:
    def __init__(
        self, run: str, recipe: Recipe, method: Method, labelled: Samples, around: Surroundings
    ) -> None:
        self._run, self._recipe, self._method, self._labelled = run, recipe, method, labelled
        self._around = around
        self._learning = recipe.learning().model_dump_json()
        self._pending: tuple[RoundRecord, Future[dict[str, float]] | None] | None = None

    def run(self) -> Progress:
        sites = {self._around.site_of(client) for client in range(self._recipe.split.clients)}
        queues = [tasks_queue(site) for site in sorted(sites)]
        self._around.transport.declare(updates_queue(self._run), DEAD_LETTERS, *queues)
        progress = self._resume() or self._begin()
        self._around.watcher.run_started(progress.round + 1, self._recipe.rounds)
        if progress.record:
            self._announce(progress)
        while progress.round < self._recipe.rounds:
            progress = self._play(progress)
        self._report(wait=True)
        return progress

    # ---- before the first round ------------------------------------------------------------------------------

    def _resume(self) -> Progress | None:
        checkpoint = self._around.checkpoints.latest()
        return from_checkpoint(checkpoint, self._recipe_digest()) if checkpoint else None

    def _begin(self) -> Progress:
        clients = self._recipe.split.clients
        if self._recipe.server.pretrain_epochs:
            self._enter(0, "pretrain")
        progress = Progress(
            round=0,
            state=_named("pre-training", lambda: self._method.initial_state(self._labelled)),
            activations=(0,) * clients,
            selection=self._select(1),
            labelled=((0, 0),) * clients,
            increments=(),
            models={},
            record=None,
        )
        self._around.checkpoints.save(to_checkpoint(progress, self._recipe_digest()))
        return progress

    def _recipe_digest(self) -> str:
        return digest([json.dumps(numbers_depend_on(self._recipe), sort_keys=True).encode()])

    def _select(self, round_number: int) -> tuple[int, ...]:
        federation, clients = self._recipe.federation, range(self._recipe.split.clients)
        count = federation.clients_per_round + federation.over_select
        return select_clients(self._recipe.seed, round_number, clients, count)

    # ---- one round -------------------------------------------------------------------------------------------

    def _play(self, progress: Progress) -> Progress:
        number, stamps = progress.round + 1, _Stopwatch(self._around.clock)
        self._enter(number, "server_step")
        step = _named(
            "the server's step", lambda: self._method.server_step(progress.state, self._labelled, number)
        )
        stamps.lap("server_step")
        self._enter(number, "broadcast")
        opened = self._open(progress, step, number)
        stamps.lap("broadcast")
        self._enter(number, "wait")
        fold = self._method.open_fold(progress.state, step.broadcast, number)
        closed, deliveries = self._collect(opened, fold, stamps)
        self._enter(number, "close")
        folded = fold.close()
        stamps.lap("fold")
        after = self._advance(progress, step, closed, folded, stamps)
        # The checkpoint remembers one record; the one before it must be out by then.
        self._report(wait=True)
        self._around.checkpoints.save(to_checkpoint(after, self._recipe_digest()))
        # Only now: an update that is not in a checkpoint must come back after a crash.
        for delivery in deliveries:
            delivery.acknowledge()
        for note in folded.notes:
            self._around.watcher.note(f"round {number}: {note}")
        self._announce(after)
        return after

    def _enter(self, number: int, phase: str) -> None:
        if self._around.stop.is_set():
            raise Stopped
        self._report(wait=False)
        self._around.watcher.phase(number, phase)

    def _open(self, progress: Progress, step: ServerStep, number: int) -> OpenRound:
        activations = {client: progress.activations[client] + 1 for client in progress.selection}
        body = encode_arrays(MODEL_KIND, {"run": self._run, "version": number}, to_arrays(step.broadcast))
        address = self._around.transport.append_model(self._run, number, body)
        model_digest = digest(body)
        for client, activation in activations.items():
            self._around.store.open_activation(self._run, client, activation)
            task = TrainTask(self._run, number, client, activation, address, model_digest, self._learning)
            queue = tasks_queue(self._around.site_of(client))
            self._around.transport.publish(queue, encode_message(task))
        federation = self._recipe.federation
        return OpenRound(
            run=self._run,
            number=number,
            activations=activations,
            needed=federation.clients_per_round,
            quorum=max(1, round(federation.quorum * federation.clients_per_round)),
            deadline=self._around.clock() + federation.deadline_seconds,
        )

    def _collect(
        self, opened: OpenRound, fold: Fold, stamps: "_Stopwatch"
    ) -> tuple[OpenRound, list[Delivery]]:
        """Take answers until the round may close; those that count stay unacknowledged until the checkpoint."""
        counted: list[Delivery] = []
        queue, clock = updates_queue(self._run), self._around.clock
        while not opened.may_close(clock()):
            if self._around.stop.is_set():
                raise Stopped
            if opened.overdue(clock()):
                raise FedILError(
                    f"round {opened.number}: {opened.answered} of {len(opened.activations)} clients answered within "
                    f"{self._recipe.federation.deadline_seconds:g} s, the quorum is {opened.quorum}: "
                    "start more workers, raise federation.deadline_seconds or lower federation.quorum, then resume"
                )
            delivery = self._around.transport.receive(queue, _POLL_SECONDS)
            self._report(wait=False)
            if delivery is None:
                opened = self._give_up_on_dead_tasks(opened)
                continue
            stamps.lap("wait")
            outcome = self._take(delivery, opened, fold)
            stamps.lap("fold")
            if outcome:
                counted.append(delivery)
                opened = self._note_outcome(opened, outcome)
        stamps.lap("wait")
        return opened, counted

    def _note_outcome(self, opened: OpenRound, outcome: ClientOutcome) -> OpenRound:
        opened = opened.record(outcome)
        self._around.watcher.update_arrived(opened.number, outcome, opened.answered, len(opened.activations))
        return opened

    def _give_up_on_dead_tasks(self, opened: OpenRound) -> OpenRound:
        """A task that killed whoever took it lies among the dead letters; nobody will answer it. Letters are only
        looked at: they stay for people to see."""
        letters: list[Delivery] = []
        while len(letters) < _LETTERS_AT_A_TIME:
            letter = self._around.transport.receive(DEAD_LETTERS, 0.0)
            if letter is None:
                break
            letters.append(letter)
            client = _client_of_dead_task(letter, opened)
            if client is not None:
                detail = f"its task is a dead letter ({letter.reason})"
                opened = self._note_outcome(opened, ClientOutcome(client, "refused", detail=detail))
        for letter in letters:
            letter.requeue()
        return opened

    def _take(self, delivery: Delivery, opened: OpenRound, fold: Fold) -> ClientOutcome | None:
        """What one message amounts to; None if it does not count (it is settled then)."""
        try:
            answer = decode_message(delivery.body)
        except MessageRejected as error:
            self._refuse(delivery, error.reason, str(error))
            return None
        if isinstance(answer, TrainTask):
            self._refuse(delivery, "schema", "a task on the queue of updates")
            return None
        objection = opened.objection(answer)
        if objection in ("late", "duplicate"):
            self._around.watcher.note(f"round {answer.round}, client {answer.client}: {objection}")
            delivery.acknowledge()
            return None
        if objection:
            self._refuse(delivery, objection, f"round {answer.round}, client {answer.client}")
            return None
        return self._judge(answer, fold)

    def _judge(self, answer: Update | Refusal, fold: Fold) -> ClientOutcome:
        if isinstance(answer, Refusal):
            return ClientOutcome(answer.client, "refused", detail=f"{answer.reason}: {answer.detail}")
        verdict = fold.add(from_arrays(answer.tensors), answer.num_steps)
        return ClientOutcome(
            answer.client,
            verdict.outcome,
            verdict.cosine,
            verdict.detail,
            dict(answer.metrics),
            answer.num_samples,
        )

    def _refuse(self, delivery: Delivery, reason: str, detail: str) -> None:
        self._around.watcher.note(f"message refused ({reason}): {detail}")
        delivery.reject(reason)

    # ---- after a round ---------------------------------------------------------------------------------------

    def _advance(
        self, progress: Progress, step: ServerStep, closed: OpenRound, folded: Folded, stamps: "_Stopwatch"
    ) -> Progress:
        outcomes = closed.outcomes()
        if all(outcome.outcome in ("refused", "missing") for outcome in outcomes):
            raise FedILError(
                f"round {closed.number}: every client refused; the first says {outcomes[0].detail}"
            )
        activations, labelled = list(progress.activations), list(progress.labelled)
        for client, activation in closed.activations.items():
            activations[client] = activation
        for outcome in outcomes:
            if outcome.outcome != "invalid" and {"pseudo_labels", "credible"} <= outcome.metrics.keys():
                held = (int(outcome.metrics["pseudo_labels"]), int(outcome.metrics["credible"]))
                labelled[outcome.client] = held
        models = self._method.models(folded.state, step.broadcast, self._labelled)
        model_norm = float(torch.linalg.vector_norm(models["global"].params))
        increments = (*progress.increments, Increment(folded.delta_norm, folded.effort, model_norm))
        record = self._record(closed, step, folded, increments, labelled, stamps)
        return Progress(
            round=closed.number,
            state=folded.state,
            activations=tuple(activations),
            selection=self._select(closed.number + 1),
            labelled=tuple(labelled),
            increments=increments,
            models=models,
            record=record,
        )

    def _record(
        self,
        closed: OpenRound,
        step: ServerStep,
        folded: Folded,
        increments: tuple[Increment, ...],
        labelled: list[tuple[int, int]],
        stamps: "_Stopwatch",
    ) -> RoundRecord:
        outcomes, convergence = closed.outcomes(), assess(increments)
        return RoundRecord(
            round=closed.number,
            rounds=self._recipe.rounds,
            selected=len(outcomes),
            accepted=sum(outcome.counts for outcome in outcomes),
            outcomes=outcomes,
            delta_norm=folded.delta_norm,
            reference_norm=folded.reference_norm,
            verdict=convergence.verdict,
            convergence={k: v for k, v in dataclasses.asdict(convergence).items() if k != "verdict"},
            accuracy={},
            losses=dict(step.losses) | _mean_losses(outcomes),
            pseudo_labels=sum(pseudo for pseudo, _ in labelled),
            credible=sum(credible for _, credible in labelled),
            purity={},
            seconds=stamps.seconds(),
        )

    def _announce(self, progress: Progress) -> None:
        """Hand the record on as soon as its accuracy is known, while the next round is already running."""
        self._report(wait=True)
        assert progress.record is not None
        record = dataclasses.replace(progress.record, purity=dict(self._around.purity()))
        due = record.round % self._recipe.evaluate_every == 0 or record.round == self._recipe.rounds
        self._pending = (record, self._around.evaluator.submit(progress.models) if due else None)
        self._report(wait=False)

    def _report(self, wait: bool) -> None:
        if self._pending is None:
            return
        record, future = self._pending
        if future is not None and not wait and not future.done():
            return
        self._pending = None
        accuracy = future.result() if future is not None else {}
        self._around.watcher.round_closed(dataclasses.replace(record, accuracy=accuracy))


_T = TypeVar("_T")


def _named(what: str, step: Callable[[], _T]) -> _T:
    """A user's own network or views may raise anything, at the server as at a client."""
    try:
        return step()
    except (FedILError, LearningError):
        raise
    except Exception as error:
        raise FedILError(f"{what} failed: {type(error).__name__}: {error}") from error


def _client_of_dead_task(letter: Delivery, opened: OpenRound) -> int | None:
    try:
        task = decode_message(letter.body)
    except MessageRejected:
        return None
    asked = isinstance(task, TrainTask) and (task.run, task.round) == (opened.run, opened.number)
    return task.client if asked and task.client not in opened.arrived else None


def _mean_losses(outcomes: tuple[ClientOutcome, ...]) -> dict[str, float]:
    names = sorted({name for o in outcomes for name in o.metrics if name.startswith("loss_")})
    by_name = {name: [o.metrics[name] for o in outcomes if name in o.metrics] for name in names}
    return {name: sum(values) / len(values) for name, values in by_name.items()}


class _Stopwatch:
    """Seconds by phase; a phase may come back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = self._last = clock()
        self._laps: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        now = self._clock()
        self._laps[phase] = self._laps.get(phase, 0.0) + now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        return self._laps | {"total": self._clock() - self._began}
