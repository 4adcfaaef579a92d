"""A message broker inside this process: queues, dead letters, model logs and leader election behind one lock."""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import count
from typing import Any

from broker_config.brokers.topology import DEAD_LETTERS, MODELS, updates_queue
from broker_config.protocol.errors import BrokerUnavailable, MessageRejected, QueueMissing
from broker_config.transports.interface import DELIVERY_LIMIT, Buffers, ModelAddress

Body = bytes | memoryview
Reply = tuple[Any, Body]
"""A result of plain values, and a body"""


@dataclass
class _Message:
    queue: str
    body: Body
    reason: str | None = None
    deliveries: int = 0
    """Deliveries that count towards DELIVERY_LIMIT"""
    redelivered: bool = False


class EmbeddedBroker:
    """Keeps the bytes that it is given without a copy: the caller must not change them afterwards. Sessions use it
    while they hold `changed`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """There is a message or a leadership to take, or a session has ended."""
        self.queues: dict[str, deque[_Message]] = {}
        self.logs: dict[str, OrderedDict[int, dict[str, Body]]] = {}
        """run → version → entries by name"""
        self.next_offsets: Counter[str] = Counter()
        """Of the model logs, by run: a task that an earlier server sent has another address"""
        self.leaders: dict[str, Session] = {}
        self.declare([DEAD_LETTERS])

    def declare(self, queues: Iterable[str]) -> None:
        with self.changed:
            for name in queues:
                self.queues.setdefault(name, deque())

    def queue(self, name: str) -> deque[_Message]:
        try:
            return self.queues[name]
        except KeyError:
            raise QueueMissing(f"the queue {name!r} does not exist: declare it first") from None

    def enqueue(self, message: _Message) -> None:
        self.queue(message.queue).append(message)
        self.changed.notify_all()

    def put_back(self, message: _Message) -> None:
        if message.queue in self.queues:  # else the run was retired meanwhile
            message.redelivered = True
            self.queues[message.queue].appendleft(message)
            self.changed.notify_all()


class Session:
    """One connection to the broker. The methods do_… take a body and plain values, and return plain values and a
    body: they may be called from another process."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._is_open = True
        self._tags = count()
        self._unsettled: dict[int, _Message] = {}
        """By delivery tag, in the order of delivery"""

    def call(self, method: str, body: Buffers = (), /, **arguments: object) -> Reply:
        """From this process, where the sender goes on training in the arrays behind `body`"""
        return self.answer(method, b"".join(body), arguments)

    def answer(self, method: str, body: Body, arguments: Mapping[str, Any]) -> Reply:
        do = getattr(self, f"do_{method}", None)
        if do is None:
            raise MessageRejected("schema", f"there is no method {method!r:.80}")
        with self._broker.changed:
            self._check_open()
            return do(body, **arguments) or (None, b"")

    def _check_open(self) -> None:
        if not self._is_open:
            raise BrokerUnavailable("this connection is closed: open another")

    def close(self) -> None:
        """Returns what the session holds; the message delivered last returns first, which restores the order."""
        broker = self._broker
        with broker.changed:
            self._is_open = False
            while self._unsettled:
                _, message = self._unsettled.popitem()
                if message.deliveries >= DELIVERY_LIMIT and message.queue != DEAD_LETTERS:
                    broker.enqueue(_Message(DEAD_LETTERS, message.body, "delivery_limit"))
                else:
                    broker.put_back(message)
            broker.leaders = {run: leader for run, leader in broker.leaders.items() if leader is not self}
            broker.changed.notify_all()  # also a thread that waits in this session

    def do_disconnect(self, _: Body) -> None:
        self.close()

    def do_declare(self, _: Body, queues: Iterable[str]) -> None:
        self._broker.declare(queues)

    def do_publish(self, body: Body, queue: str) -> None:
        self._broker.enqueue(_Message(queue, body))

    def do_receive(self, _: Body, queues: Sequence[str], timeout_seconds: float) -> Reply | None:
        waiting = [self._broker.queue(queue) for queue in queues]
        self._broker.changed.wait_for(lambda: any(waiting) or not self._is_open, timeout_seconds)
        self._check_open()
        first = next(filter(None, waiting), None)
        if first is None:
            return None
        message, tag = first.popleft(), next(self._tags)
        message.deliveries += 1
        self._unsettled[tag] = message
        properties = {"tag": tag, "queue": message.queue}
        return properties | {"redelivered": message.redelivered, "reason": message.reason}, message.body

    def do_depth(self, _: Body, queue: str) -> Reply:
        stored: Mapping[str, Sized] = self._broker.queues
        if queue.startswith(MODELS.prefix):
            stored, queue = self._broker.logs, queue.removeprefix(MODELS.prefix)
        return len(stored[queue]) if queue in stored else None, b""

    def do_acknowledge(self, _: Body, tag: int) -> None:
        self._settled(tag)

    def do_requeue(self, _: Body, tag: int) -> None:
        message = self._settled(tag)
        message.deliveries -= 1
        self._broker.put_back(message)

    def do_reject(self, _: Body, tag: int, reason: str) -> None:
        self._broker.enqueue(_Message(DEAD_LETTERS, self._settled(tag).body, reason))

    def _settled(self, tag: int) -> _Message:
        if tag not in self._unsettled:
            raise BrokerUnavailable("this delivery was settled before: settle each exactly once")
        return self._unsettled.pop(tag)

    def do_append_model(self, body: Body, run: str, version: int, kept: int, entry: str) -> Reply:
        """Keeps the versions written last, not the highest: a run may continue from an older checkpoint."""
        versions = self._broker.logs.setdefault(run, OrderedDict())
        if not entry:
            versions.pop(version, None)
        versions.setdefault(version, {})[entry] = body
        while len(versions) > kept:
            versions.popitem(last=False)
        self._broker.next_offsets[run] += 1
        return self._broker.next_offsets[run] - 1, b""

    def do_read_model(self, _: Body, **where: Any) -> Reply:
        address = ModelAddress(**where)
        try:
            return None, self._broker.logs[address.run][address.version][address.entry]
        except KeyError:
            raise address.missing() from None

    def do_acquire_leadership(self, _: Body, run: str, timeout_seconds: float) -> Reply:
        def may_lead() -> bool:
            return self._broker.leaders.get(run, self) is self or not self._is_open

        self._broker.changed.wait_for(may_lead, timeout_seconds)
        self._check_open()
        return self._broker.leaders.setdefault(run, self) is self, b""

    def do_retire(self, _: Body, run: str, sites: Iterable[str]) -> None:
        for site in sites:
            self._broker.queues.pop(updates_queue(run, site), None)
        self._broker.logs.pop(run, None)
        self._broker.leaders.pop(run, None)
        self._broker.changed.notify_all()
