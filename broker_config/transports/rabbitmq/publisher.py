"""Publishes messages: persistent, mandatory, confirmed, and with the user id that the broker validates."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from broker_config.protocol.errors import (
    BrokerRefused,
    BrokerUnavailable,
    FedILError,
    QueueFull,
    QueueMissing,
)
from broker_config.transports.rabbitmq.connection import Connection, is_usable
from broker_config.transports.rabbitmq.pika_errors import MessageTooLarge, channel_error, publish_error
from broker_config.transports.rabbitmq.pipelined_publisher import PipelinedPublisher
from broker_config.transports.rabbitmq.queue_admin import queue_kind, route

CHUNK_BYTES = 4 << 20
"""Every RabbitMQ accepts messages of this size by default (4.x up to 16 MiB), and larger ones are no faster."""
_MIN_CHUNK_BYTES = 16 << 10

Headers = Mapping[str, str | int | bool]
_T = TypeVar("_T")


class Publisher:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.bytes_sent: Counter[str] = Counter()
        """By kind of queue"""
        self._channel: BlockingChannel | None = None
        self._pipeline: PipelinedPublisher | None = None
        self.chunk_bytes = CHUNK_BYTES
        """The largest message that the broker has not refused"""

    def publish(self, queue: str, body: bytes, headers: Headers | None = None) -> None:
        """Returns when the broker has confirmed the message."""
        exchange, key = route(queue)
        with (
            self.connection.exclusive() as connection,
            self.connection.logged_if_slow(),
            self._translated_errors(queue),
        ):
            channel = self._confirming_channel(connection)
            channel.basic_publish(exchange, key, body, self._properties(headers), mandatory=True)
        self.bytes_sent[queue_kind(queue).name] += len(body)

    def publish_all(self, queue: str, bodies: Iterable[bytes], kind: str) -> None:
        """Publishes in this order and returns when the broker has confirmed all. After an error it has some of them.
        `kind` is what the bytes are counted as."""
        (exchange, key), properties = route(queue), self._properties(None)
        with (
            self.connection.exclusive() as connection,
            self._pipelined(connection) as pipeline,
            self._translated_errors(queue),
        ):
            for body in bodies:
                with self.connection.logged_if_slow():
                    pipeline.publish(exchange, key, body, properties)
                self.bytes_sent[kind] += len(body)
            with self.connection.logged_if_slow():
                pipeline.wait_for_confirms()

    def with_chunk_size(self, send: Callable[[int], _T]) -> _T:
        """Calls `send` with the largest message size, and again with half of it as long as the broker refuses."""
        while True:
            try:
                return send(self.chunk_bytes)
            except MessageTooLarge as error:
                if self.chunk_bytes <= _MIN_CHUNK_BYTES:
                    raise BrokerRefused(
                        f"RabbitMQ accepts only tiny messages ({error}): raise max_message_size"
                    ) from None
                self.chunk_bytes //= 2

    def _properties(self, headers: Headers | None) -> pika.BasicProperties:
        return pika.BasicProperties(
            delivery_mode=pika.DeliveryMode.Persistent.value,
            user_id=self.connection.address.user or None,
            headers=dict(headers) if headers else None,
        )

    def _confirming_channel(self, connection: pika.BlockingConnection) -> BlockingChannel:
        if self._channel is None or not is_usable(self._channel, connection):
            self._channel = connection.channel()
            self._channel.confirm_delivery()
        return self._channel

    @contextmanager
    def _pipelined(self, connection: pika.BlockingConnection) -> Iterator[PipelinedPublisher]:
        # Taken out while it is in use: after an error it must not be used again.
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is None or not is_usable(pipeline.channel, connection):
            pipeline = PipelinedPublisher(connection.channel())
        try:
            yield pipeline
        except (FedILError, MessageTooLarge):
            if pipeline.channel.is_open:
                pipeline.channel.close()
            raise
        self._pipeline = pipeline

    def _unroutable(self, queue: str) -> FedILError:
        """RabbitMQ 3 returns messages also while the node of their queue is down."""
        with self.connection.exclusive() as connection:
            channel = connection.channel()
            try:
                channel.queue_declare(queue, passive=True)
                channel.close()
            except ChannelClosedByBroker as error:
                translated = channel_error(self.connection.address, error, queue)
                if isinstance(translated, BrokerUnavailable):
                    return translated
        return QueueMissing(f"the queue {queue!r} does not exist: declare it first")

    @contextmanager
    def _translated_errors(self, queue: str) -> Iterator[None]:
        try:
            yield
        except UnroutableError:
            raise self._unroutable(queue) from None
        except NackError:
            raise QueueFull(
                f"RabbitMQ at {self.connection.address.endpoint} takes no message for {queue} now: it is full until "
                "its reader has taken some, or its node is down"
            ) from None
        except ChannelClosedByBroker as error:
            raise publish_error(self.connection.address, error, queue) from error
