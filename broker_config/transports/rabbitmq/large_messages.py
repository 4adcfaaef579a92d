"""Bodies that exceed the message size of the broker.

The body is split into chunks in a queue of its own, and a small reference to that queue is published instead (the
claim-check pattern). So a consumer needs memory only for the bodies that it reads.
"""

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from broker_config.brokers.topology import BODIES, body_queue
from broker_config.protocol.buffers import size
from broker_config.protocol.chunks import assembled, split
from broker_config.protocol.errors import (
    BrokerRefused,
    BrokerUnavailable,
    FedILError,
    MessageRejected,
    QueueFull,
    QueueMissing,
)
from broker_config.transports.interface import Buffers
from broker_config.transports.rabbitmq.connection import Connection
from broker_config.transports.rabbitmq.pika_errors import channel_error
from broker_config.transports.rabbitmq.queue_admin import queue_kind
from broker_config.transports.rabbitmq.session import RabbitSession

BODY_HEADER = "x-fedil-body"
"""In a reference: the queue that holds the body"""
_BODY_QUEUE = re.compile(rf"{re.escape(BODIES.prefix)}.+\.[0-9a-f]{{32}}")
_MAX_NAME_BYTES = 255
"""Of a queue in AMQP"""
_LAZY_BEFORE = (3, 12)
_RESOURCE_LOCKED, _NOT_IMPLEMENTED = 405, 540


def publish(session: RabbitSession, queue: str, body: Buffers) -> None:
    """As one message if the broker accepts that size."""
    session.publisher.with_chunk_size(lambda chunk_bytes: _publish(session, queue, body, chunk_bytes))


def _publish(session: RabbitSession, queue: str, body: Buffers, chunk_bytes: int) -> None:
    publisher, queues = session.publisher, session.queues
    if size(body) <= chunk_bytes:
        publisher.publish(queue, b"".join(body))
        return
    body_id = uuid.uuid4()
    holder = body_queue(publisher.connection.address.user or "nobody", body_id.hex)
    try:
        # Before 3.12, classic queues also keep their messages in memory unless they are lazy.
        is_lazy = publisher.connection.broker_version < _LAZY_BEFORE and not queues.replicated
        queues.declare(holder, arguments={"x-queue-mode": "lazy"} if is_lazy else None)
        publisher.publish_all(holder, split(body, chunk_bytes, body_id.bytes), queue_kind(queue).name)
    except BaseException:
        with suppress(FedILError):
            queues.delete(holder)
        raise
    try:
        publisher.publish(queue, b"", {BODY_HEADER: holder})
    except (QueueMissing, QueueFull, BrokerRefused):
        # Only after these: after a lost confirm, a consumer may have the reference and need the body.
        with suppress(FedILError):
            queues.delete(holder)
        raise


def body_queue_in(headers: Mapping[str, Any]) -> str | None:
    """The queue that a reference names; None if the body is inline, "" if the header is not a string."""
    name = headers.get(BODY_HEADER)
    return name if name is None or isinstance(name, str) else ""


def is_body_queue(name: str) -> bool:
    """The name comes from the sender, and must not make us read or delete other queues. The random id in it keeps a
    sender from naming the body of another one."""
    return _BODY_QUEUE.fullmatch(name) is not None and len(name.encode()) <= _MAX_NAME_BYTES


def fetch(connection: Connection, queue: str, max_bytes: int) -> memoryview:
    """Reads a body and leaves it in its queue; `discard` deletes it. The sender may have declared that queue as a
    stream: then the broker closes the whole connection."""
    if not is_body_queue(queue):
        raise MessageRejected("schema", f"a reference to a body in {queue!r:.200}")
    try:
        return _fetch(connection, queue, max_bytes)
    except BrokerUnavailable as error:
        cause = error.__cause__
        if isinstance(cause, ChannelClosedByBroker | ConnectionClosedByBroker) and cause.reply_code in (
            _RESOURCE_LOCKED,
            _NOT_IMPLEMENTED,
        ):
            raise MessageRejected("body_missing", f"{queue} holds no body: {cause.reply_text}") from error
        raise


def _fetch(connection: Connection, queue: str, max_bytes: int) -> memoryview:
    with connection.exclusive() as pika_connection:
        channel = pika_connection.channel()
        try:
            body = assembled(_frames(channel, queue), max_bytes)
            if body is None:
                raise MessageRejected("body_missing", f"a part of the body in {queue} is missing")
            return body
        except ChannelClosedByBroker as error:
            translated = channel_error(connection.address, error, queue)
            if isinstance(translated, QueueMissing):
                raise MessageRejected("body_missing", f"the body in {queue} is missing") from error
            raise translated from error
        finally:
            if channel.is_open:
                channel.close()  # unacknowledged, the chunks return to their queue


def _frames(channel: BlockingChannel, queue: str) -> Iterator[bytes]:
    """Endless if the sender goes on sending."""
    while (frame := channel.basic_get(queue)[2]) is not None:
        yield frame


def discard(connection: Connection, queue: str) -> None:
    """Deletes a body. If that fails, its queue expires."""
    if not is_body_queue(queue):
        return
    with suppress(FedILError), connection.exclusive() as pika_connection:
        channel = pika_connection.channel()
        channel.queue_delete(queue)
        channel.close()


def discard_all(connection: Connection, queue: str) -> None:
    """Deletes the bodies of the references in a queue, which will not be read any more. Those of references that arrive
    meanwhile expire."""
    with suppress(QueueMissing), connection.exclusive() as pika_connection:
        channel = pika_connection.channel()
        for _ in range(channel.queue_declare(queue, passive=True).method.message_count):
            method, properties, _ = channel.basic_get(queue, auto_ack=True)
            if method is None or properties is None:
                break
            discard(connection, body_queue_in(properties.headers or {}) or "")
        channel.close()
