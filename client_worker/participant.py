"""A worker's loop: take a task, train, publish, and only then acknowledge."""

import logging
import time
from collections.abc import Callable

from broker_config.errors import (
    BrokerUnavailable,
    FedILError,
    LedgerFenced,
    LedgerMissing,
    MessageRejected,
    ModelMissing,
    QueueMissing,
)
from broker_config.messages import Refusal, TrainTask, Update
from broker_config.topology import tasks_queue, updates_queue
from broker_config.transports.interface import Delivery, Transport
from broker_config.wire import decode_message, encode_message
from client_worker.stopping import Interrupted, Stopping
from client_worker.training import ModelRewritten, OutOfMemory, Trainer
from fedil_model.errors import LearningError

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_REST_SECONDS = 60.0
"""Without a task for so long, a worker gives its device's memory back."""


class Participant:
    def __init__(
        self,
        transport: Transport,
        trainer: Trainer,
        site: str,
        stopping: Stopping | None = None,
        tell: Callable[..., None] = lambda **_: None,
    ) -> None:
        """`tell` hears what this worker is doing, as keywords: state, run, round, client and so on."""
        self._transport, self._trainer, self._tell = transport, trainer, tell
        self._queue = tasks_queue(site)
        self._stopping = stopping or Stopping()
        self._waiting = False
        self._busy_until: float | None = time.monotonic()
        self._tasks_done = 0
        self._answered: tuple[tuple[object, ...], Update] | None = None

    def finish(self) -> None:
        """Stop after the task at hand."""
        self._stopping.ask()

    def serve(self) -> None:
        self._tell(state="idle")
        while not self._stopping.asked():
            delivery = self._next()
            if delivery is not None:
                self._handle(delivery)

    def _next(self) -> Delivery | None:
        try:
            delivery = self._transport.receive(self._queue, _POLL_SECONDS)
        except QueueMissing:
            # Workers may be up before the server has declared anything.
            if not self._waiting:
                _log.info("waiting for the queue %s", self._queue)
            self._waiting = True
            self._stopping.wait(_POLL_SECONDS)
            delivery = None
        if delivery is None:
            self._rest_after_a_while()
        return delivery

    def _rest_after_a_while(self) -> None:
        if self._busy_until is not None and time.monotonic() - self._busy_until >= _REST_SECONDS:
            self._trainer.rest()
            self._busy_until = None

    def _handle(self, delivery: Delivery) -> None:
        try:
            task = decode_message(delivery.body)
            if not isinstance(task, TrainTask):
                raise MessageRejected("schema", "not a task")
        except MessageRejected as error:
            _log.warning("no task (%s): %s", error.reason, error)
            delivery.reject(error.reason)
            return
        self._tell(state="training", run=task.run, round=task.round, client=task.client)
        try:
            self._settle(delivery, task)
        finally:
            self._busy_until = time.monotonic()
            self._tell(state="idle", run=None, round=None, client=None, tasks_done=self._tasks_done)

    def _settle(self, delivery: Delivery, task: TrainTask) -> None:
        try:
            self._do(task)
        except MessageRejected as error:
            # The server is told, so that it does not wait for this client; the task is kept for people to see.
            self._publish(_refusal(task, error.reason, str(error)))
            delivery.reject(error.reason)
        except Interrupted:
            _log.info("%s: asked to stop, the task goes back", _name(task))
            delivery.requeue()
        except OutOfMemory as error:
            _log.warning("%s: %s; the task goes back", _name(task), error)
            delivery.requeue()
        except BrokerUnavailable:
            # The store may be gone and the broker not: whoever is next need not wait for this connection to end.
            delivery.requeue()
            raise
        else:
            delivery.acknowledge()

    def _do(self, task: TrainTask) -> None:
        answer = self._known(task) or self._answer(task)
        if answer is not None:
            self._tell(state="publishing")
            self._publish(answer)
            self._tasks_done += 1

    def _known(self, task: TrainTask) -> Update | None:
        """The last answer, if this task is the same again: a broker that went away before it took the answer (or
        the acknowledgement) delivers the task once more, and an hour of training is not repeated."""
        if self._answered is None or self._answered[0] != _question(task):
            return None
        _log.info("%s: answered again without training", _name(task))
        return self._answered[1]

    def _publish(self, answer: Update | Refusal) -> None:
        try:
            self._transport.publish(updates_queue(answer.run), encode_message(answer))
        except QueueMissing:
            _log.info("%s: dropped, the run is over", _name(answer))

    def _answer(self, task: TrainTask) -> Update | Refusal | None:
        """None: another task has taken the place of this one, and nobody waits for it; a refusal would count against
        the other."""
        self._answered = None
        began = time.monotonic()
        try:
            update = self._trainer.train(task)
        except (LedgerFenced, ModelRewritten) as error:
            _log.info("%s: dropped (%s)", _name(task), error)
            return None
        except (LearningError, LedgerMissing, ModelMissing) as error:
            return _refusal(task, type(error).__name__, str(error))
        except (FedILError, OutOfMemory):
            raise
        except Exception as error:  # a user's own network or views may raise anything
            _log.exception("%s: failed", _name(task))
            return _refusal(task, "error", f"{type(error).__name__}: {error}")
        self._answered = (_question(task), update)
        self._report(update, time.monotonic() - began)
        return update

    def _report(self, update: Update, seconds: float) -> None:
        speed = update.metrics["images_per_second"]
        self._tell(images_per_second=round(speed, 1))
        _log.info(
            "%s: trained %d samples in %.1f s, %.0f images/s",
            _name(update),
            update.num_samples,
            seconds,
            speed,
        )


def _question(task: TrainTask) -> tuple[object, ...]:
    """What an answer depends on. The model's place in the log is left out: a server that was restarted may have
    written it again."""
    return task.run, task.round, task.client, task.activation, task.model_digest, task.learning


def _name(about: TrainTask | Update | Refusal) -> str:
    return f"run {about.run}, round {about.round}, client {about.client}"


def _refusal(task: TrainTask, reason: str, detail: str) -> Refusal:
    _log.warning("%s: %s: %s", _name(task), reason, detail)
    return Refusal(task.run, task.round, task.client, task.activation, reason, detail[:1000])
