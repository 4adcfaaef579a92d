"""What we receive: one message at a time, so that nobody who is busy hoards what others could do."""

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

from broker_config.protocol.errors import BrokerUnavailable, FedILError, QueueMissing
from broker_config.transports.rabbitmq.connection import Line

_LONGEST_SLICE_SECONDS = 1.0
"""Between slices others may use the connection, to close it for example."""
RENEWED_SECONDS = 10.0
"""RabbitMQ 3.10 hands a subscription over to a quorum queue that was deleted and made again, and then loses on the way
what is delivered to it. On a channel of its own it comes again, so one that hears nothing is replaced now and then."""


@dataclass(frozen=True)
class Letter:
    """A message as pika hands it out."""

    tag: int
    redelivered: bool
    properties: BasicProperties
    body: bytes


class Inlet:
    """A queue on a channel of its own: the broker closes a whole channel over one mistake or one missing queue, and
    what was delivered on it goes back.

    What is there is fetched; only an empty queue is subscribed to. A subscription ends with its first message and
    has room for no second; if none came, it stays for the next call, and what comes meanwhile is kept for that.
    """

    def __init__(self, line: Line, queue: str) -> None:
        self._line, self.queue = line, queue
        self._kept: deque[Letter] = deque()
        self._subscription: str | None = None
        self._cancelled = False
        self._unsettled: set[int] = set()
        with line.talk() as connection:
            self._channel = self._open(connection)

    def _open(self, connection: pika.BlockingConnection) -> BlockingChannel:
        self._heard = time.monotonic()
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        channel.add_on_cancel_callback(self._on_cancel)
        return channel

    def take(self, timeout_seconds: float) -> Letter | None:
        deadline = time.monotonic() + timeout_seconds
        with self._line.talk() as connection:
            self._check_open()
            if self._is_stale():
                self._renew(connection)
            if self._subscription is None and not self._kept:
                letter = self._fetch()
                if letter is not None or timeout_seconds <= 0:
                    return letter
                self._subscription = self._channel.basic_consume(self.queue, self._on_message)
        while True:
            left = deadline - time.monotonic()
            with self._line.talk() as connection:
                if not self._kept:
                    connection.process_data_events(min(max(left, 0.0), _LONGEST_SLICE_SECONDS))
                if self._kept:
                    self._unsubscribe()
                    return self._handed_out(self._kept.popleft())
                self._check_open()
            if left <= 0:
                return None

    def acknowledge(self, tag: int) -> None:
        with self._line.talk() as connection:
            self._check_open()
            self._unsettled.discard(tag)
            self._channel.basic_ack(tag)
            # A connection that is gone without our knowledge shows itself only when it is read from.
            connection.process_data_events(0)

    def give_back(self, tag: int) -> None:
        with self._line.talk():
            self._check_open()
            self._unsettled.discard(tag)
            self._channel.basic_nack(tag, requeue=True)

    def unwanted(self) -> list[Letter]:
        """Ends the subscription: the letters that came and that nobody has asked for. They can still be settled."""
        with suppress(FedILError), self._line.talk() as connection:
            if self._subscription is not None and self._channel.is_open:
                connection.process_data_events(0)
                self._unsubscribe()
                return list(self._kept)
        return []

    def abandon(self) -> None:
        """What we hold of it goes back, if there is still a queue."""
        with suppress(FedILError), self._line.talk():
            if self._channel.is_open:
                self._channel.close()

    @property
    def is_open(self) -> bool:
        return bool(self._channel.is_open) and not self._cancelled

    def _check_open(self) -> None:
        if self._cancelled:
            # Its queue was deleted, or is moving to another node of a cluster: who asks again learns which.
            raise BrokerUnavailable(
                f"RabbitMQ at {self._line.account.place} gives nothing more of {self.queue!r}: ask again"
            )
        if not self._channel.is_open:
            raise self._line.why_closed(self._channel, self.queue)

    def _fetch(self) -> Letter | None:
        method, properties, body = self._channel.basic_get(self.queue)
        if method is None:
            return None
        return self._handed_out(Letter(method.delivery_tag, method.redelivered, properties, body or b""))

    def _handed_out(self, letter: Letter) -> Letter:
        self._unsettled.add(letter.tag)
        self._heard = time.monotonic()
        return letter

    def _is_stale(self) -> bool:
        """Nothing came for a while, and nothing would go back with the channel."""
        return (
            self._subscription is not None
            and not self._unsettled
            and time.monotonic() - self._heard >= RENEWED_SECONDS
        )

    def _renew(self, connection: pika.BlockingConnection) -> None:
        connection.process_data_events(0)
        if self._kept:
            return
        self._unsubscribe()
        if not self._kept:  # something may have come at the last moment
            self._channel.close()
            self._channel = self._open(connection)

    def _unsubscribe(self) -> None:
        if self._subscription is not None:
            self._channel.basic_cancel(self._subscription)
            self._subscription = None

    def _on_message(
        self, _channel: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes
    ) -> None:
        self._kept.append(Letter(method.delivery_tag, method.redelivered, properties, body))

    def _on_cancel(self, _frame: object) -> None:
        self._cancelled = True


class Plumb:
    """How many messages wait. A channel for this alone, since the broker closes it over every missing queue; and on a
    connection that publishes nothing, which answers also while an alarm blocks the others."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._channel: BlockingChannel | None = None

    def depth(self, queue: str) -> int | None:
        with suppress(QueueMissing), self._line.talk() as connection:
            if (
                self._channel is None
                or self._channel.connection is not connection
                or not self._channel.is_open
            ):
                self._channel = connection.channel()
            return int(self._channel.queue_declare(queue, passive=True).method.message_count)
        return None
