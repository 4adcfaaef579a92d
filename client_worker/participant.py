"""A worker's loop: take a task, train, publish, and only then acknowledge."""

import json
import logging
import time
from collections.abc import Callable

from broker_config.brokers.topology import tasks_queue, updates_queue
from broker_config.process.logs import about
from broker_config.protocol.errors import (
    BrokerUnavailable,
    FedILError,
    LedgerFenced,
    LedgerMissing,
    MessageRejected,
    ModelMissing,
    QueueMissing,
)
from broker_config.protocol.messages import Refusal, TrainTask, Update
from broker_config.protocol.wire import MAX_HEADER_BYTES, decode_message, encode_message
from broker_config.transports.interface import Delivery, Transport
from client_worker import metrics
from client_worker.stopping import Interrupted, Stopping
from client_worker.training import ModelRewritten, OutOfMemory, Trainer
from fedil_model.errors import LearningError
from fedil_model.methods import method_named

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.2
_MOST_TASK_BYTES = MAX_HEADER_BYTES + (1 << 16)
"""A task has no arrays: whatever is larger is none, and gets no memory."""
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
        counts: metrics.WorkerMetrics | None = None,
    ) -> None:
        """`tell` hears what this worker is doing, as keywords: state, run, round, client and so on."""
        self._transport, self._trainer, self._tell = transport, trainer, tell
        transport.max_body_bytes = _MOST_TASK_BYTES
        self._counts = counts or metrics.WorkerMetrics(site, "")
        self._site, self._queue = site, tasks_queue(site)
        self.stopping = stopping or Stopping()
        self._waiting = False
        self._busy_until: float | None = time.monotonic()
        self._tasks_done = 0
        self._answered: tuple[tuple[object, ...], Update] | None = None

    def serve(self) -> None:
        self._tell(state="idle")
        while not self.stopping.asked():
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
            self.stopping.wait(_POLL_SECONDS)
            delivery = None
        idle_since = self._busy_until
        if delivery is None and idle_since is not None and time.monotonic() - idle_since >= _REST_SECONDS:
            self._trainer.rest()
            self._busy_until = None
        return delivery

    def _handle(self, delivery: Delivery) -> None:
        try:
            task = decode_message(delivery.body)
            if not isinstance(task, TrainTask):
                raise MessageRejected("schema", "not a task")
        except MessageRejected as error:
            _log.warning("message refused: %s", error)
            delivery.reject(error.reason)
            self._counts.ended(metrics.REJECTED)
            return
        with about(run=task.run, round=task.round, client=task.client):
            self._work(delivery, task)

    def _work(self, delivery: Delivery, task: TrainTask) -> None:
        _log.debug("task taken")
        self._tell(state="training", run=task.run, round=task.round, client=task.client)
        self._counts.began()
        outcome = None
        try:
            outcome = self._settle(delivery, task)
        except BrokerUnavailable:
            outcome = metrics.RETURNED
            raise
        finally:
            self._counts.ended(outcome)
            self._busy_until = time.monotonic()
            self._tell(state="idle", run=None, round=None, client=None, tasks_done=self._tasks_done)

    def _settle(self, delivery: Delivery, task: TrainTask) -> str:
        """What became of the task, in a word for counters."""
        try:
            outcome = self._do(task)
        except MessageRejected as error:
            # The server is told, so that it does not wait for this client; the task is kept for people to see.
            self._publish(_refusal(task, error.reason, error.detail))
            delivery.reject(error.reason)
            return metrics.REJECTED
        except Interrupted:
            _log.info("asked to stop, the task goes back")
            delivery.requeue()
            return metrics.RETURNED
        except OutOfMemory as error:
            _log.warning("%s; the task goes back", error)
            delivery.requeue()
            return metrics.OUT_OF_MEMORY
        except BrokerUnavailable as error:
            # The store may be gone and the broker not: another worker need not wait until this connection ends.
            _log.warning("%s; the task goes back", error)
            delivery.requeue()
            raise
        delivery.acknowledge()
        return outcome

    def _do(self, task: TrainTask) -> str:
        known = self._known(task)
        answer = known or self._answer(task)
        if answer is None:
            return metrics.DROPPED
        self._tell(state="publishing")
        run_exists = self._publish(answer)
        self._tasks_done += 1
        if not run_exists:
            return metrics.DROPPED
        if isinstance(answer, Refusal):
            return metrics.REFUSED
        return metrics.REPEATED if known else metrics.ANSWERED

    def _known(self, task: TrainTask) -> Update | None:
        """The last answer, if this task is the same again: a broker that went away before it took the answer (or
        the acknowledgement) delivers the task once more, and an hour of training is not repeated; unless the store
        has lost the ledger, which is then asked for."""
        if self._answered is None or self._answered[0] != _question(task):
            return None
        if not self._trainer.has_committed(task):
            return None
        _log.info("answered again without training")
        return self._answered[1]

    def _publish(self, answer: Update | Refusal) -> bool:
        """False: the run is over, and no server reads it."""
        began = time.monotonic()
        try:
            self._transport.publish(updates_queue(answer.run, self._site), encode_message(answer))
        except QueueMissing:
            _log.info("dropped, the run is over")
            return False
        self._counts.published(time.monotonic() - began)
        _log.debug("answer handed in")
        return True

    def _answer(self, task: TrainTask) -> Update | Refusal | None:
        """None: another task has replaced this one, whose answer is not awaited; a refusal would count against
        the other."""
        self._answered = None
        began = time.monotonic()
        try:
            update = self._trainer.train(task)
        except (LedgerFenced, ModelRewritten) as error:
            _log.info("dropped (%s)", error)
            return None
        except (LearningError, LedgerMissing, ModelMissing) as error:
            return _refusal(task, type(error).__name__, str(error))
        except (FedILError, OutOfMemory):
            raise
        except Exception as error:  # a user's own network or views may raise anything
            _log.exception("training failed")
            return _refusal(task, "error", f"{type(error).__name__}: {error}")
        self._answered = (_question(task), update)
        self._counts.trained(update, method_named(json.loads(task.learning)))
        seconds, speed = time.monotonic() - began, update.metrics["images_per_second"]
        self._tell(images_per_second=round(speed, 1))
        _log.info("trained %d samples in %.1f s, %.0f images/s", update.num_samples, seconds, speed)
        return update


def _question(task: TrainTask) -> tuple[object, ...]:
    """What an answer depends on. Addresses in the log are left out: a restarted server may have written it again."""
    extras = tuple(sorted((name, entry.digest) for name, entry in task.extras.items()))
    settings = (task.learning, task.wire)
    return task.run, task.round, task.client, task.activation, task.model.digest, *settings, extras


def _refusal(task: TrainTask, reason: str, detail: str) -> Refusal:
    _log.warning("refused: %s: %s", reason, detail)
    return Refusal(task.run, task.round, task.client, task.activation, reason, detail[:1000])
