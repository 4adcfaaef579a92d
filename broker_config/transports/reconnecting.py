"""A transport that outlives its broker: when a connection is lost it makes another, and asks again.

Every effect of ours may be asked for twice, so repeating is safe. What was held unacknowledged on a lost
connection goes back to its queue and comes again; settling it then changes nothing.
"""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from broker_config.protocol.errors import BrokerBlocked, BrokerUnavailable, QueueMissing
from broker_config.transports.interface import MAX_BODY_BYTES, Buffers, Delivery, ModelAddress, Transport

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

LONGEST_PAUSE_SECONDS = 5.0


class GivenUp(BrokerUnavailable):
    """The broker did not come back within the patience, or nobody wants to wait any more."""


@dataclass(frozen=True)
class Patience:
    seconds: float = float("inf")
    """How long one call goes on trying"""
    stop: Callable[[], bool] = lambda: False
    """Asked between tries: whoever wants to stop does not wait for a broker"""
    tell: Callable[[str], None] = lambda _: None
    """Told between tries what is waited for; it names no password"""


class PatientTransport:
    def __init__(self, connect: Callable[[], Transport], patience: Patience) -> None:
        """`connect` also does what a new connection needs before anything else, such as taking the lead."""
        self._connect, self._patience = connect, patience
        self._closed = threading.Event()
        self._transport: Transport | None = None
        self._max_body_bytes = MAX_BODY_BYTES
        self._sent: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        """Of connections that are gone"""
        self._counting = threading.Lock()
        self.away_seconds = 0.0
        """For how long there was no broker, in all"""
        self._call(lambda _: None)

    @property
    def max_body_bytes(self) -> int:
        return self._max_body_bytes

    @max_body_bytes.setter
    def max_body_bytes(self, num_bytes: int) -> None:
        """Holds for all connections from now on."""
        self._max_body_bytes = num_bytes
        if self._transport is not None:
            self._transport.max_body_bytes = num_bytes

    def declare(self, *queues: str) -> None:
        self._call(lambda transport: transport.declare(*queues))

    def publish(self, queue: str, body: Buffers) -> None:
        self._call(lambda transport: transport.publish(queue, body))

    def receive(self, queue: str, timeout_seconds: float) -> "PatientDelivery | None":
        delivery = self._call(lambda transport: transport.receive(queue, timeout_seconds))
        return None if delivery is None else PatientDelivery(delivery)

    def append_model(
        self, run: str, version: int, body: Buffers, kept: int = 2, entry: str = "", entries: int = 1
    ) -> ModelAddress:
        return self._call(lambda transport: transport.append_model(run, version, body, kept, entry, entries))

    def depth(self, queue: str) -> int | None:
        return self._call(lambda transport: transport.depth(queue))

    @property
    def bytes_sent(self) -> Mapping[str, int]:
        return self._total(self._sent, lambda transport: transport.bytes_sent)

    @property
    def bytes_received(self) -> Mapping[str, int]:
        return self._total(self._received, lambda transport: transport.bytes_received)

    def _total(self, before: Counter[str], of: Callable[[Transport], Mapping[str, int]]) -> Counter[str]:
        """May be asked by another thread, while connections come and go."""
        with self._counting:
            return before + Counter(of(self._transport) if self._transport else {})

    def read_model(self, address: ModelAddress) -> memoryview:
        return self._call(lambda transport: transport.read_model(address))

    def take_lead(self, run: str, timeout_seconds: float) -> bool:
        return self._call(lambda transport: transport.take_lead(run, timeout_seconds))

    def retire(self, run: str) -> None:
        self._call(lambda transport: transport.retire(run))

    def concerns(self, longest_task_seconds: float) -> tuple[str, ...]:
        return self._call(lambda transport: transport.concerns(longest_task_seconds))

    def close(self) -> None:
        self._closed.set()
        if self._transport is not None:
            self._transport.close()

    def _call(self, question: Callable[[Transport], _T]) -> _T:
        began = time.monotonic()
        deadline = began + self._patience.seconds
        tries = 0
        while True:
            if self._closed.is_set():
                raise BrokerUnavailable("this connection is closed: open another")
            try:
                answer = question(self._connected())
            except BrokerUnavailable as error:
                # Dropping a good connection would give back what is held, and count against it.
                if not isinstance(error, BrokerBlocked):
                    self._drop()
                tries += 1
                self._pause(error, tries, deadline)
            else:
                if tries:
                    self.away_seconds += time.monotonic() - began
                    _log.info("the broker is back")
                return answer

    def _connected(self) -> Transport:
        if self._transport is None:
            self._transport = self._connect()
            self._transport.max_body_bytes = self._max_body_bytes
        return self._transport

    def _drop(self) -> None:
        with self._counting:
            transport, self._transport = self._transport, None
            if transport is not None:
                self._sent.update(transport.bytes_sent)
                self._received.update(transport.bytes_received)
        if transport is not None:
            with suppress(BrokerUnavailable):
                transport.close()

    def _pause(self, error: BrokerUnavailable, tries: int, deadline: float) -> None:
        if self._patience.stop() or time.monotonic() >= deadline:
            raise GivenUp(str(error)) from error
        if tries == 1:
            _log.warning("%s; trying again", error)
        self._patience.tell(str(error))
        # Jitter, so that a thousand workers do not come back in the same instant.
        seconds = min(LONGEST_PAUSE_SECONDS, 0.1 * 2 ** min(tries, 10)) * random.uniform(0.5, 1.0)
        self._closed.wait(min(seconds, max(0.0, deadline - time.monotonic())))


class PatientDelivery:
    """Settling it after its connection was lost is harmless: it goes back to its queue anyway."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self.redelivered = delivery.redelivered
        self.reason = delivery.reason
        self.sender = delivery.sender
        self.is_at_hand = delivery.is_at_hand

    @property
    def body(self) -> memoryview:
        return self._delivery.body

    def release_body(self) -> None:
        self._delivery.release_body()

    def acknowledge(self) -> None:
        # Somebody may have deleted the queue, and this message with it: it is gone, as it should be.
        with suppress(QueueMissing):
            self._settle(self._delivery.acknowledge)

    def requeue(self) -> None:
        with suppress(QueueMissing):  # its server sends it again when it has made the queue again
            self._settle(self._delivery.requeue)

    def reject(self, reason: str) -> None:
        self._settle(lambda: self._delivery.reject(reason))

    def _settle(self, settle: Callable[[], None]) -> None:
        try:
            settle()
        except BrokerUnavailable as error:
            _log.info("a message goes back to its queue: %s", error)
