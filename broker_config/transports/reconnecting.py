"""A transport that reconnects after a lost connection and repeats the interrupted call.

Repeating is safe because every effect in this protocol is idempotent. Messages that were unacknowledged on the lost
connection are redelivered.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from broker_config.process.retry import Retrier, RetryPolicy
from broker_config.protocol.errors import BrokerBlocked, BrokerUnavailable, QueueMissing
from broker_config.transports.interface import (
    MAX_BODY_BYTES,
    Buffers,
    Delivery,
    ModelAddress,
    Transport,
    Unwanted,
)

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class ReconnectingTransport:
    def __init__(self, connect: Callable[[], Transport], retry: RetryPolicy) -> None:
        """`connect` also does what a new connection needs first, such as leader election."""
        self._connect, self._retrier = connect, Retrier("the broker", retry)
        self._transport: Transport | None = None
        self._max_body_bytes = MAX_BODY_BYTES
        # Of the connections before this one.
        self._sent: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._counters_lock = threading.Lock()
        self._call(lambda _: None)

    @property
    def outage_seconds(self) -> float:
        """Total time that calls waited for an unavailable broker"""
        return self._retrier.outage_seconds

    @property
    def max_body_bytes(self) -> int:
        return self._max_body_bytes

    @max_body_bytes.setter
    def max_body_bytes(self, num_bytes: int) -> None:
        """Also applies to later connections."""
        self._max_body_bytes = num_bytes
        if self._transport is not None:
            self._transport.max_body_bytes = num_bytes

    @property
    def bytes_sent(self) -> Mapping[str, int]:
        return self._total(self._sent, lambda transport: transport.bytes_sent)

    @property
    def bytes_received(self) -> Mapping[str, int]:
        return self._total(self._received, lambda transport: transport.bytes_received)

    def _total(self, before: Counter[str], count: Callable[[Transport], Mapping[str, int]]) -> Counter[str]:
        # The metrics thread reads this while connections are replaced.
        with self._counters_lock:
            return before + Counter(count(self._transport) if self._transport else {})

    def declare(self, *queues: str) -> None:
        self._call(lambda transport: transport.declare(*queues))

    def publish(self, queue: str, body: Buffers) -> None:
        self._call(lambda transport: transport.publish(queue, body))

    def receive(self, queue: str | Sequence[str], timeout_seconds: float) -> "ReconnectingDelivery | None":
        delivery = self._call(lambda transport: transport.receive(queue, timeout_seconds))
        return None if delivery is None else ReconnectingDelivery(delivery)

    def discard_while(self, queue: str, is_unwanted: Unwanted, most: int) -> int:
        return self._call(lambda transport: transport.discard_while(queue, is_unwanted, most))

    def depth(self, queue: str) -> int | None:
        return self._call(lambda transport: transport.depth(queue))

    def append_model(
        self, run: str, version: int, body: Buffers, kept: int = 2, entry: str = "", entries: int = 1
    ) -> ModelAddress:
        return self._call(lambda transport: transport.append_model(run, version, body, kept, entry, entries))

    def read_model(self, address: ModelAddress) -> memoryview:
        return self._call(lambda transport: transport.read_model(address))

    def acquire_leadership(self, run: str, timeout_seconds: float) -> bool:
        return self._call(lambda transport: transport.acquire_leadership(run, timeout_seconds))

    def retire(self, run: str, sites: Iterable[str]) -> None:
        self._call(lambda transport: transport.retire(run, sites))

    def timeout_warnings(self, longest_task_seconds: float) -> tuple[str, ...]:
        return self._call(lambda transport: transport.timeout_warnings(longest_task_seconds))

    def close(self) -> None:
        self._retrier.close()
        if self._transport is not None:
            self._transport.close()

    def _call(self, method: Callable[[Transport], _T]) -> _T:
        def attempt() -> _T:
            try:
                if self._transport is None:
                    self._transport = self._connect()
                    self._transport.max_body_bytes = self._max_body_bytes
                return method(self._transport)
            except BrokerBlocked:
                # The connection is good. Dropping it would return unacknowledged messages and count a delivery.
                raise
            except BrokerUnavailable:
                self._drop()
                raise

        return self._retrier.call(attempt)

    def _drop(self) -> None:
        if (transport := self._transport) is not None:
            with self._counters_lock:
                self._transport = None
                self._sent.update(transport.bytes_sent)
                self._received.update(transport.bytes_received)
            with suppress(BrokerUnavailable):
                transport.close()


class ReconnectingDelivery:
    """A delivery that can be settled after its connection was lost: the broker redelivers the message anyway."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self.queue = delivery.queue
        self.redelivered = delivery.redelivered
        self.reason = delivery.reason
        self.sender = delivery.sender
        self.body_is_inline = delivery.body_is_inline

    @property
    def body(self) -> memoryview:
        return self._delivery.body

    def release_body(self) -> None:
        self._delivery.release_body()

    def acknowledge(self) -> None:
        with suppress(QueueMissing):  # the queue was deleted, and the message with it
            self._settle(self._delivery.acknowledge)

    def requeue(self) -> None:
        with suppress(QueueMissing):  # the server sends the task again after it has declared the queue again
            self._settle(self._delivery.requeue)

    def reject(self, reason: str) -> None:
        self._settle(lambda: self._delivery.reject(reason))

    def _settle(self, settle: Callable[[], None]) -> None:
        try:
            settle()
        except BrokerUnavailable as error:
            _log.info("a message returns to its queue: %s", error)
