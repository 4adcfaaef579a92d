"""A worker's loop: take a task, train, publish, and only then acknowledge."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
from client_worker.training import Trainer
from fedil_model.errors import LearningError

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.2


class Interrupted(BaseException):
    """Raised inside training when the process is asked to stop: the task goes back at once."""


class Participant:
    def __init__(self, transport: Transport, trainer: Trainer, site: str) -> None:
        self._transport, self._trainer = transport, trainer
        self._queue = tasks_queue(site)
        self._stop = threading.Event()
        self._training = False
        self._waiting = False

    def finish(self) -> None:
        """Stop after the task at hand."""
        self._stop.set()

    def give_back(self) -> None:
        """Stop now; the task at hand returns to its queue. For signal handlers: it must be called in the thread
        that runs the loop."""
        self._stop.set()
        if self._training:
            raise Interrupted

    def serve(self) -> None:
        while not self._stop.is_set():
            delivery = self._next()
            if delivery is not None:
                self._handle(delivery)

    def _next(self) -> Delivery | None:
        try:
            return self._transport.receive(self._queue, _POLL_SECONDS)
        except QueueMissing:
            # Workers may be up before the server has declared anything.
            if not self._waiting:
                _log.info("waiting for the queue %s", self._queue)
            self._waiting = True
            self._stop.wait(_POLL_SECONDS)
            return None

    def _handle(self, delivery: Delivery) -> None:
        try:
            task = decode_message(delivery.body)
            if not isinstance(task, TrainTask):
                raise MessageRejected("schema", "not a task")
        except MessageRejected as error:
            _log.warning("no task (%s): %s", error.reason, error)
            delivery.reject(error.reason)
            return
        try:
            self._do(task)
        except MessageRejected as error:
            # The server is told, so that it does not wait for this client; the task is kept for people to see.
            self._publish(_refusal(task, error.reason, str(error)))
            delivery.reject(error.reason)
        except Interrupted:
            _log.info("asked to stop: the task goes back")
            delivery.requeue()
        else:
            delivery.acknowledge()

    def _do(self, task: TrainTask) -> None:
        answer = self._answer(task)
        if answer is not None:
            self._publish(answer)

    def _publish(self, answer: Update | Refusal) -> None:
        self._transport.publish(updates_queue(answer.run), encode_message(answer))

    def _answer(self, task: TrainTask) -> Update | Refusal | None:
        """None: a later task has overtaken this one, and nobody waits for it."""
        try:
            with self._interruptible():
                return self._trainer.train(task)
        except (LedgerFenced, ModelMissing) as error:
            _log.info("round %d, client %d: dropped (%s)", task.round, task.client, error)
            return None
        except (BrokerUnavailable, MessageRejected):
            raise
        except (LearningError, LedgerMissing) as error:
            return _refusal(task, type(error).__name__, str(error))
        except FedILError:
            raise
        except Exception as error:  # a user's own network or views may raise anything
            _log.exception("round %d, client %d: failed", task.round, task.client)
            return _refusal(task, "error", f"{type(error).__name__}: {error}")

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        self._training = True
        try:
            yield
        finally:
            self._training = False


def _refusal(task: TrainTask, reason: str, detail: str) -> Refusal:
    _log.warning("round %d, client %d: %s: %s", task.round, task.client, reason, detail)
    return Refusal(task.run, task.round, task.client, task.activation, reason, detail[:1000])
