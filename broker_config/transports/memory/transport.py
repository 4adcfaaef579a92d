"""A broker in small, inside this process: bytes in, bytes out, and the promises of a real one."""

import threading
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from broker_config.brokers.topology import DEAD_LETTERS, MODELS, kind_name, updates_queue
from broker_config.protocol.buffers import check_size, size
from broker_config.protocol.chunks import OVERHEAD_BYTES, Assembler, split
from broker_config.protocol.errors import BrokerUnavailable, MessageRejected, ModelMissing, QueueMissing
from broker_config.transports.interface import DELIVERY_LIMIT, MAX_BODY_BYTES, Buffers, ModelAddress

Pieces = Sequence[bytes | memoryview]
"""What the broker stores for one body: the body itself, or the chunk frames that it was split into."""


@dataclass(eq=False)
class Entry:
    """One message, in a queue or in somebody's hands."""

    queue: str
    pieces: Pieces
    reason: str | None = None
    deliveries: int = 0
    """Those that count towards DELIVERY_LIMIT."""
    redelivered: bool = False


@dataclass(eq=False)
class _Queue:
    arrived: threading.Condition
    entries: deque[Entry] = field(default_factory=deque)


@dataclass(eq=False)
class _ModelLog:
    next_offset: int = 0
    versions: OrderedDict[int, dict[str, Pieces]] = field(default_factory=OrderedDict)


class Session:
    """One consumer's connection, as the broker sees it: what it holds, in the order of delivery."""

    def __init__(self) -> None:
        self.held: dict[Entry, None] = {}
        self.is_open = True


class EmbeddedBroker:
    """Queues, dead letters and model logs behind one lock. What is handed in belongs to the broker from then
    on: nobody may change those bytes."""

    def __init__(self, *, max_message_bytes: int | None = None) -> None:
        self.max_message_bytes = max_message_bytes
        self._lock = threading.Lock()
        self._queues: dict[str, _Queue] = {}
        self._logs: dict[str, _ModelLog] = {}
        self._leads: dict[str, Session] = {}
        self._lead_changed = threading.Condition(self._lock)
        self.declare([DEAD_LETTERS])

    def declare(self, queues: Iterable[str]) -> None:
        with self._lock:
            for name in queues:
                self._queues.setdefault(name, _Queue(threading.Condition(self._lock)))

    def publish(self, queue: str, pieces: Pieces) -> None:
        self._check_sizes(pieces)
        with self._lock:
            self._put(Entry(queue, pieces))

    def take(self, session: Session, queue: str, timeout_seconds: float) -> Entry | None:
        """Other callers come and go while this one waits."""
        with self._lock:
            waiting = self._queue(queue)
            waiting.arrived.wait_for(lambda: waiting.entries or not session.is_open, timeout_seconds)
            _check_open(session)
            if not waiting.entries:
                return None
            entry = waiting.entries.popleft()
            entry.deliveries += 1
            session.held[entry] = None
            return entry

    def depth(self, queue: str) -> int | None:
        with self._lock:
            known = self._queues.get(queue)
            log = (
                self._logs.get(queue.removeprefix(MODELS.prefix)) if queue.startswith(MODELS.prefix) else None
            )
            if log is not None:
                return len(log.versions)
            return None if known is None else len(known.entries)

    def acknowledge(self, session: Session, entry: Entry) -> None:
        with self._lock:
            _let_go(session, entry)

    def requeue(self, session: Session, entry: Entry) -> None:
        """A polite hand-back is no sign of poison, so it does not count."""
        with self._lock:
            _let_go(session, entry)
            entry.deliveries -= 1
            self._put_back(entry)

    def reject(self, session: Session, entry: Entry, reason: str) -> None:
        with self._lock:
            _let_go(session, entry)
            self._put(Entry(DEAD_LETTERS, entry.pieces, reason))

    def release(self, session: Session) -> None:
        """The consumer is gone; the last delivered goes back first, so that the order is as it was."""
        with self._lock:
            session.is_open = False
            while session.held:
                entry, _ = session.held.popitem()
                if entry.deliveries >= DELIVERY_LIMIT and entry.queue != DEAD_LETTERS:
                    self._put(Entry(DEAD_LETTERS, entry.pieces, "delivery_limit"))
                else:
                    self._put_back(entry)
            self._leads = {run: leader for run, leader in self._leads.items() if leader is not session}
            self._lead_changed.notify_all()
            # Wake whoever still waits in this session's name.
            for queue in self._queues.values():
                queue.arrived.notify_all()

    def take_lead(self, session: Session, run: str, timeout_seconds: float) -> bool:
        with self._lock:
            self._lead_changed.wait_for(
                lambda: self._leads.get(run, session) is session or not session.is_open, timeout_seconds
            )
            _check_open(session)
            return self._leads.setdefault(run, session) is session

    def retire(self, run: str) -> None:
        with self._lock:
            self._queues.pop(updates_queue(run), None)
            self._logs.pop(run, None)
            self._leads.pop(run, None)
            self._lead_changed.notify_all()

    def append_model(
        self, run: str, version: int, pieces: Pieces, kept: int, entry: str = ""
    ) -> ModelAddress:
        """Kept are the versions written last, not the highest: a run may go on from an older checkpoint."""
        self._check_sizes(pieces)
        with self._lock:
            log = self._logs.setdefault(run, _ModelLog())
            if not entry:
                log.versions.pop(version, None)
            log.versions.setdefault(version, {})[entry] = pieces
            while len(log.versions) > kept:
                log.versions.popitem(last=False)
            log.next_offset += 1
            return ModelAddress(run, version, log.next_offset - 1, entry)

    def read_model(self, address: ModelAddress) -> Pieces:
        with self._lock:
            log = self._logs.get(address.run)
            entries = log.versions.get(address.version, {}) if log else {}
            if address.entry not in entries:
                raise ModelMissing(
                    f"version {address.version} of run {address.run!r} is not in the model log: "
                    "drop this task and wait for one with a newer version"
                )
            return entries[address.entry]

    def _queue(self, name: str) -> _Queue:
        try:
            return self._queues[name]
        except KeyError:
            raise QueueMissing(f"nobody declared the queue {name!r}: declare it first") from None

    def _put(self, entry: Entry) -> None:
        queue = self._queue(entry.queue)
        queue.entries.append(entry)
        queue.arrived.notify()

    def _put_back(self, entry: Entry) -> None:
        queue = self._queues.get(entry.queue)
        if queue is None:  # its run was retired meanwhile
            return
        entry.redelivered = True
        queue.entries.appendleft(entry)
        queue.arrived.notify()

    def _check_sizes(self, pieces: Pieces) -> None:
        limit = self.max_message_bytes
        if limit is not None and any(len(piece) > limit for piece in pieces):
            raise MessageRejected("too_large", f"a message exceeds this broker's {limit} bytes")


def _check_open(session: Session) -> None:
    if not session.is_open:
        raise BrokerUnavailable("this connection is closed: open another")


def _let_go(session: Session, entry: Entry) -> None:
    _check_open(session)
    if entry not in session.held:
        raise BrokerUnavailable("this delivery was settled before: settle each exactly once")
    del session.held[entry]


class MemoryDelivery:
    def __init__(
        self, broker: EmbeddedBroker, session: Session, entry: Entry, max_body_bytes: int = MAX_BODY_BYTES
    ) -> None:
        self._broker, self._session, self._entry = broker, session, entry
        self._max_body_bytes = max_body_bytes
        self._body: memoryview | None = None
        self.is_at_hand = True
        self.redelivered = entry.redelivered
        self.reason = entry.reason
        self.sender: str | None = None

    @property
    def body(self) -> memoryview:
        if self._body is None:
            check_size(self.size, self._max_body_bytes)
            self._body = whole(self._entry.pieces, self._broker.max_message_bytes)
        return self._body

    @property
    def size(self) -> int:
        """Of the body, without what its chunks take for themselves"""
        frames = 0 if self._broker.max_message_bytes is None else len(self._entry.pieces)
        return size(self._entry.pieces) - frames * OVERHEAD_BYTES

    def release_body(self) -> None:
        self._body = memoryview(b"")

    def acknowledge(self) -> None:
        self._broker.acknowledge(self._session, self._entry)

    def requeue(self) -> None:
        self._broker.requeue(self._session, self._entry)

    def reject(self, reason: str) -> None:
        self._broker.reject(self._session, self._entry, reason)


class MemoryTransport:
    """A connection to a broker in the same process."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._session = Session()
        self.max_body_bytes = MAX_BODY_BYTES
        self.bytes_sent: Counter[str] = Counter()
        self.bytes_received: Counter[str] = Counter()

    def declare(self, *queues: str) -> None:
        _check_open(self._session)
        self._broker.declare(queues)

    def publish(self, queue: str, body: Buffers) -> None:
        _check_open(self._session)
        self._broker.publish(queue, own(body, self._broker.max_message_bytes))
        self.bytes_sent[kind_name(queue)] += size(body)

    def receive(self, queue: str, timeout_seconds: float) -> MemoryDelivery | None:
        _check_open(self._session)
        entry = self._broker.take(self._session, queue, timeout_seconds)
        if entry is None:
            return None
        delivery = MemoryDelivery(self._broker, self._session, entry, self.max_body_bytes)
        self.bytes_received[kind_name(queue)] += delivery.size
        return delivery

    def depth(self, queue: str) -> int | None:
        _check_open(self._session)
        return self._broker.depth(queue)

    def append_model(
        self,
        run: str,
        version: int,
        body: Buffers,
        kept: int = 2,
        entry: str = "",
        entries: int = 1,  # noqa: ARG002
    ) -> ModelAddress:
        _check_open(self._session)
        pieces = own(body, self._broker.max_message_bytes)
        address = self._broker.append_model(run, version, pieces, kept, entry)
        self.bytes_sent[MODELS.name] += size(body)
        return address

    def read_model(self, address: ModelAddress) -> memoryview:
        _check_open(self._session)
        body = whole(self._broker.read_model(address), self._broker.max_message_bytes)
        self.bytes_received[MODELS.name] += len(body)
        return body

    def take_lead(self, run: str, timeout_seconds: float) -> bool:
        return self._broker.take_lead(self._session, run, timeout_seconds)

    def retire(self, run: str) -> None:
        _check_open(self._session)
        self._broker.retire(run)

    def concerns(self, longest_task_seconds: float) -> tuple[str, ...]:  # noqa: ARG002 - it waits for ever
        return ()

    def close(self) -> None:
        self._broker.release(self._session)


def own(body: Buffers, max_message_bytes: int | None) -> Pieces:
    """A copy, since senders go on training into the arrays that `body` looks into."""
    if max_message_bytes is None:
        return (b"".join(body),)
    # A random id, since the same body may be under way twice.
    return tuple(split(body, max_message_bytes, uuid.uuid4().bytes))


def whole(pieces: Pieces, max_message_bytes: int | None) -> memoryview:
    if max_message_bytes is None:
        return memoryview(pieces[0])
    assembler = Assembler()
    finished = [body for piece in pieces if (body := assembler.add(piece)) is not None]
    return finished[0]
