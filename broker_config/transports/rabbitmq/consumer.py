"""Receives from queues, one message at a time: a busy worker holds no message that another could process."""

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.frame import Method
from pika.spec import Basic, BasicProperties

from broker_config.protocol.errors import FedILError
from broker_config.transports.rabbitmq.connection import Connection

_MAX_SLICE_SECONDS = 1.0
"""Between slices of waiting, other threads may use the connection, for example to close it."""
RESUBSCRIBE_SECONDS = 10.0
"""RabbitMQ 3.10 moves a subscription to a quorum queue that was deleted and declared again, and then loses what it
delivers there. Such messages are redelivered when the channel is closed, so a silent channel is replaced."""


@dataclass(frozen=True)
class Message:
    """A message as pika delivers it."""

    tag: int
    redelivered: bool
    properties: BasicProperties
    body: bytes


class Consumer:
    """Has a channel of its own, because the broker closes a whole channel after one error and requeues its messages.

    Fetches a message that is ready, and subscribes only to an empty queue. A subscription delivers one message and ends
    when that is settled. If none arrives it stays for the next call, and a message that arrives meanwhile is buffered
    for that call.
    """

    def __init__(self, connection: Connection, queue: str) -> None:
        self._connection, self.queue = connection, queue
        self._buffered: deque[Message] = deque()
        self._subscription: str | None = None
        self._delivered_by: dict[int, str] = {}
        """Unsettled message → its subscription. Not cancelled before: when a node of a cluster is lost, a quorum queue
        of RabbitMQ 3.10 does not redeliver what it delivered there to a cancelled subscription."""
        self._cancelled = False
        self._unsettled: set[int] = set()
        with connection.exclusive() as pika_connection:
            self._channel = self._open_channel(pika_connection)

    def _open_channel(self, connection: pika.BlockingConnection) -> BlockingChannel:
        self._last_delivery = time.monotonic()
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        channel.add_on_cancel_callback(self._on_cancel)
        return channel

    def take_ready(self, connection: pika.BlockingConnection, subscribes: bool) -> Message | None:
        """A message that is there now. `subscribes`: what comes later is buffered."""
        self._check_open()
        if self._is_silent():
            self._replace_channel(connection)
        if self._subscription is not None or self._buffered:
            return self.take_buffered()
        message = self._get()
        if message is None and subscribes:
            self._subscription = self._channel.basic_consume(self.queue, self._on_message)
        return message

    def take_buffered(self) -> Message | None:
        if not self._buffered:
            self._check_open()
            return None
        message = self._buffered.popleft()
        if self._subscription is not None:
            self._delivered_by[message.tag], self._subscription = self._subscription, None
        return self._delivered(message)

    def acknowledge(self, tag: int) -> None:
        with self._connection.exclusive() as connection:
            self._begin_to_settle(tag)
            self._channel.basic_ack(tag)
            # Reading detects a connection that was lost before.
            connection.process_data_events(0)

    def requeue(self, tag: int) -> None:
        with self._connection.exclusive():
            self._begin_to_settle(tag)
            self._channel.basic_nack(tag, requeue=True)

    def unsubscribe(self) -> list[Message]:
        """Returns the messages that arrived after the last call of `receive`. They can still be settled."""
        with suppress(FedILError), self._connection.exclusive() as connection:
            if self._subscription is not None and self._channel.is_open:
                connection.process_data_events(0)
                self._unsubscribe()
                return list(self._buffered)
        return []

    def close(self) -> None:
        """Unacknowledged messages return to the queue, if it still exists."""
        with suppress(FedILError), self._connection.exclusive():
            if self._channel.is_open:
                self._channel.close()

    @property
    def is_open(self) -> bool:
        return bool(self._channel.is_open) and not self._cancelled

    def _check_open(self) -> None:
        if self._cancelled:
            raise self._connection.cancelled_error(self.queue)
        if not self._channel.is_open:
            raise self._connection.closed_channel_error(self._channel, self.queue)

    def _begin_to_settle(self, tag: int) -> None:
        self._check_open()
        self._unsettled.discard(tag)
        subscription = self._delivered_by.pop(tag, None)
        if subscription is not None:
            self._channel.basic_cancel(subscription)  # it would deliver the next message

    def _get(self) -> Message | None:
        method, properties, body = self._channel.basic_get(self.queue)
        if method is None:
            return None
        return self._delivered(Message(method.delivery_tag, method.redelivered, properties, body or b""))

    def _delivered(self, message: Message) -> Message:
        self._unsettled.add(message.tag)
        self._last_delivery = time.monotonic()
        return message

    def _is_silent(self) -> bool:
        """Without unsettled messages, which would be requeued with the channel."""
        return (
            self._subscription is not None
            and not self._unsettled
            and time.monotonic() - self._last_delivery >= RESUBSCRIBE_SECONDS
        )

    def _replace_channel(self, connection: pika.BlockingConnection) -> None:
        connection.process_data_events(0)
        if self._buffered:
            return
        self._unsubscribe()
        if not self._buffered:  # a message may have arrived in the meantime
            self._channel.close()
            self._channel = self._open_channel(connection)

    def _unsubscribe(self) -> None:
        if self._subscription is not None:
            self._channel.basic_cancel(self._subscription)
            self._subscription = None

    def _on_message(
        self, _channel: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes
    ) -> None:
        self._buffered.append(Message(method.delivery_tag, method.redelivered, properties, body))

    def _on_cancel(self, frame: Method) -> None:
        if frame.method.consumer_tag == self._subscription:
            self._cancelled = True


def receive_first(
    connection: Connection, consumers: Sequence[Consumer], timeout_seconds: float
) -> tuple[Consumer, Message] | None:
    """From the first of these consumers that has a message"""
    deadline = time.monotonic() + timeout_seconds
    with connection.exclusive() as pika_connection:
        for consumer in consumers:
            message = consumer.take_ready(pika_connection, subscribes=timeout_seconds > 0)
            if message is not None:
                return consumer, message
    while True:
        left = deadline - time.monotonic()
        with connection.exclusive() as pika_connection:
            pika_connection.process_data_events(min(max(left, 0.0), _MAX_SLICE_SECONDS))
            for consumer in consumers:
                message = consumer.take_buffered()
                if message is not None:
                    return consumer, message
        if left <= 0:
            return None
