"""A message broker inside this process: queues, dead letters, model logs and leader election behind one lock."""

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from broker_config.brokers.topology import DEAD_LETTERS, MODELS, updates_queue
from broker_config.protocol.errors import BrokerUnavailable, QueueMissing
from broker_config.transports.interface import DELIVERY_LIMIT, ModelAddress

Body = bytes | memoryview


@dataclass(eq=False)
class QueuedMessage:
    """A message that is ready in its queue or held unacknowledged by a session."""

    queue: str
    body: Body
    reason: str | None = None
    deliveries: int = 0
    """Deliveries that count towards DELIVERY_LIMIT"""
    redelivered: bool = False


@dataclass(eq=False)
class _Queue:
    arrived: threading.Condition
    messages: deque[QueuedMessage] = field(default_factory=deque)


@dataclass(eq=False)
class _ModelLog:
    next_offset: int = 0
    versions: OrderedDict[int, dict[str, Body]] = field(default_factory=OrderedDict)


class Session:
    """The broker's side of one connection."""

    def __init__(self) -> None:
        self.unacknowledged: dict[QueuedMessage, None] = {}
        """In the order of delivery"""
        self.is_open = True

    def check_open(self) -> None:
        if not self.is_open:
            raise BrokerUnavailable("this connection is closed: open another")

    def settle(self, message: QueuedMessage) -> None:
        self.check_open()
        if message not in self.unacknowledged:
            raise BrokerUnavailable("this delivery was settled before: settle each exactly once")
        del self.unacknowledged[message]


class EmbeddedBroker:
    """Keeps the bytes that it is given without a copy: the caller must not change them afterwards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[str, _Queue] = {}
        self._logs: dict[str, _ModelLog] = {}
        self._leaders: dict[str, Session] = {}
        self._leader_changed = threading.Condition(self._lock)
        self.declare([DEAD_LETTERS])

    def declare(self, queues: Iterable[str]) -> None:
        with self._lock:
            for name in queues:
                self._queues.setdefault(name, _Queue(threading.Condition(self._lock)))

    def publish(self, queue: str, body: Body) -> None:
        with self._lock:
            self._enqueue(QueuedMessage(queue, body))

    def receive(self, session: Session, queue: str, timeout_seconds: float) -> QueuedMessage | None:
        with self._lock:
            waiting = self._queue(queue)
            waiting.arrived.wait_for(lambda: waiting.messages or not session.is_open, timeout_seconds)
            session.check_open()
            if not waiting.messages:
                return None
            message = waiting.messages.popleft()
            message.deliveries += 1
            session.unacknowledged[message] = None
            return message

    def depth(self, queue: str) -> int | None:
        with self._lock:
            if queue.startswith(MODELS.prefix):
                log = self._logs.get(queue.removeprefix(MODELS.prefix))
                return None if log is None else len(log.versions)
            known = self._queues.get(queue)
            return None if known is None else len(known.messages)

    def acknowledge(self, session: Session, message: QueuedMessage) -> None:
        with self._lock:
            session.settle(message)

    def requeue(self, session: Session, message: QueuedMessage) -> None:
        with self._lock:
            session.settle(message)
            message.deliveries -= 1
            self._return(message)

    def reject(self, session: Session, message: QueuedMessage, reason: str) -> None:
        with self._lock:
            session.settle(message)
            self._enqueue(QueuedMessage(DEAD_LETTERS, message.body, reason))

    def disconnect(self, session: Session) -> None:
        """Returns what the session holds; the message delivered last returns first, which restores the order."""
        with self._lock:
            session.is_open = False
            while session.unacknowledged:
                message, _ = session.unacknowledged.popitem()
                if message.deliveries >= DELIVERY_LIMIT and message.queue != DEAD_LETTERS:
                    self._enqueue(QueuedMessage(DEAD_LETTERS, message.body, "delivery_limit"))
                else:
                    self._return(message)
            self._leaders = {run: leader for run, leader in self._leaders.items() if leader is not session}
            self._leader_changed.notify_all()
            # Another thread may be waiting in this session.
            for queue in self._queues.values():
                queue.arrived.notify_all()

    def acquire_leadership(self, session: Session, run: str, timeout_seconds: float) -> bool:
        with self._lock:
            self._leader_changed.wait_for(
                lambda: self._leaders.get(run, session) is session or not session.is_open, timeout_seconds
            )
            session.check_open()
            return self._leaders.setdefault(run, session) is session

    def retire(self, run: str) -> None:
        with self._lock:
            self._queues.pop(updates_queue(run), None)
            self._logs.pop(run, None)
            self._leaders.pop(run, None)
            self._leader_changed.notify_all()

    def append_model(self, run: str, version: int, body: Body, kept: int, entry: str = "") -> ModelAddress:
        """Keeps the versions written last, not the highest: a run may continue from an older checkpoint."""
        with self._lock:
            log = self._logs.setdefault(run, _ModelLog())
            if not entry:
                log.versions.pop(version, None)
            log.versions.setdefault(version, {})[entry] = body
            while len(log.versions) > kept:
                log.versions.popitem(last=False)
            log.next_offset += 1
            return ModelAddress(run, version, log.next_offset - 1, entry)

    def read_model(self, address: ModelAddress) -> Body:
        with self._lock:
            log = self._logs.get(address.run)
            entries = log.versions.get(address.version, {}) if log else {}
            if address.entry not in entries:
                raise address.missing()
            return entries[address.entry]

    def _queue(self, name: str) -> _Queue:
        try:
            return self._queues[name]
        except KeyError:
            raise QueueMissing(f"the queue {name!r} does not exist: declare it first") from None

    def _enqueue(self, message: QueuedMessage) -> None:
        queue = self._queue(message.queue)
        queue.messages.append(message)
        queue.arrived.notify()

    def _return(self, message: QueuedMessage) -> None:
        queue = self._queues.get(message.queue)
        if queue is None:  # the run was retired meanwhile
            return
        message.redelivered = True
        queue.messages.appendleft(message)
        queue.arrived.notify()
