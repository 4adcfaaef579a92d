"""Reads messages of a stream from an offset, without consuming them."""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

from broker_config.transports.rabbitmq.connection import Connection
from broker_config.transports.rabbitmq.pika_private import close_without_reject

_OFFSET = "x-stream-offset"


@dataclass(frozen=True)
class StreamMessage:
    tag: int
    offset: int
    headers: dict[str, Any]
    body: bytes


class StreamReader:
    """Requests exactly as many messages as its caller will take. pika rejects pending messages when a consumer is
    cancelled, and RabbitMQ answers a reject on a stream by closing the whole connection."""

    def __init__(self, connection: Connection, channel: BlockingChannel, prefetch: int) -> None:
        self.channel = channel
        self._connection, self._prefetch = connection, prefetch
        self._queue = self._subscription = ""
        self._arrived: deque[StreamMessage] = deque()
        self._requested = 0
        """Messages that are requested and not yet taken"""
        self._taken_tag = self._acknowledged_tag = 0
        """A channel numbers its deliveries without gaps."""
        self._cancelled = False
        channel.add_on_cancel_callback(self._on_cancel)
        channel.basic_qos(prefetch_count=prefetch)

    def subscribe(self, queue: str, offset: int | str) -> None:
        """`offset` is a number, "first" or "last"."""
        self._queue, self._requested = queue, self._prefetch
        self._subscription = self.channel.basic_consume(queue, self._on_message, arguments={_OFFSET: offset})

    def unsubscribe(self) -> bool:
        """False if messages are pending: then the channel is closed and cannot be used again."""
        if self._requested:
            self.close()
            return False
        self.channel.basic_cancel(self._subscription)
        # Unacknowledged messages would exceed the consumer_timeout, and the broker would close the channel.
        self._acknowledge(self._taken_tag)
        return True

    def close(self) -> None:
        close_without_reject(self.channel)

    def next(self, timeout_seconds: float) -> StreamMessage | None:
        deadline = time.monotonic() + timeout_seconds
        while not self._arrived:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self.channel.connection.process_data_events(left)
            if self._cancelled:
                raise self._connection.cancelled_error(self._queue)
            if not self.channel.is_open:
                raise self._connection.closed_channel_error(self.channel, self._queue)
        self._requested -= 1
        message = self._arrived.popleft()
        self._taken_tag = message.tag
        return message

    def request(self, num_left: int) -> None:
        """Requests more messages if the caller needs more than are pending: several at a time, since every request is a
        system call and wakes the broker. Acknowledging a message of a stream has no other effect."""
        more = min(num_left - self._requested, self._taken_tag - self._acknowledged_tag)
        if more > 0 and self._requested <= self._prefetch // 2:
            self._acknowledge(self._acknowledged_tag + more)
            self._requested += more

    def _acknowledge(self, tag: int) -> None:
        self.channel.basic_ack(tag, multiple=True)
        self._acknowledged_tag = tag

    def _on_message(
        self, _channel: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes
    ) -> None:
        headers = properties.headers or {}
        self._arrived.append(StreamMessage(method.delivery_tag, int(headers[_OFFSET]), headers, body))

    def _on_cancel(self, _frame: object) -> None:
        self._cancelled = True
