"""Bodies too big for one message. Each lies in a queue of its own and a small notice of it goes where the body was
to go: a reader needs memory for the bodies that it asks for, and not for all that are under way at once."""

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
    QueueMissing,
)
from broker_config.transports.interface import Buffers
from broker_config.transports.rabbitmq.connection import Line
from broker_config.transports.rabbitmq.publisher import Outlet, family_of

BODY_HEADER = "x-fedil-body"
"""The queue that holds the body"""
_NAME = re.compile(rf"{re.escape(BODIES.prefix)}.+\.[0-9a-f]{{32}}")
_LONGEST_NAME_BYTES = 255
"""Of a queue; AMQP has no room for more"""
_LAZY_UNTIL = (3, 12)
_LOCKED, _NOT_IMPLEMENTED = 405, 540
_NO_BODY = (_LOCKED, _NOT_IMPLEMENTED)


def send(outlet: Outlet, queue: str, body: Buffers) -> None:
    outlet.fitting(lambda chunk_bytes: _send(outlet, queue, body, chunk_bytes))


def _send(outlet: Outlet, queue: str, body: Buffers, chunk_bytes: int) -> None:
    if size(body) <= chunk_bytes:
        outlet.put(queue, b"".join(body))
        return
    body_id = uuid.uuid4()
    place = body_queue(outlet.line.account.user or "nobody", body_id.hex)
    try:
        _fill(outlet, place, body, chunk_bytes, body_id.bytes, family_of(queue).name)
    except BaseException:
        with suppress(FedILError):
            outlet.delete(place)
        raise
    try:
        outlet.put(queue, b"", {BODY_HEADER: place})
    except (QueueMissing, BrokerRefused):
        # Only these are certain: after a lost confirm somebody may have the notice and want the body.
        with suppress(FedILError):
            outlet.delete(place)
        raise


def _fill(outlet: Outlet, place: str, body: Buffers, chunk_bytes: int, body_id: bytes, kind: str) -> None:
    # Before 3.12 classic queues keep what they hold in memory too, unless they are told not to.
    outlet.declare(place, extra={"x-queue-mode": "lazy"} if outlet.line.version < _LAZY_UNTIL else None)
    outlet.put_all(place, split(body, chunk_bytes, body_id), kind)


def place_in(headers: Mapping[str, Any]) -> str | None:
    """Where the body is, as its sender says; None if it has come along, "" if what is said is no name at all."""
    place = headers.get(BODY_HEADER)
    return place if place is None or isinstance(place, str) else ""


def is_place(name: str) -> bool:
    """The name comes from whoever sent the notice: it must not make us read and delete any other queue. That of
    somebody else's body holds a random id which only sender and receiver know."""
    return _NAME.fullmatch(name) is not None and len(name.encode()) <= _LONGEST_NAME_BYTES


def fetch(line: Line, place: str, max_bytes: int) -> memoryview:
    """Nothing is acknowledged, so that the chunks go back where they were; `discard` ends them. The queue is the
    sender's, who may have made a stream of it: then the broker closes the whole connection, not only a channel."""
    if not is_place(place):
        raise MessageRejected("schema", f"a notice of a body at {place!r:.200}")
    try:
        return _fetch(line, place, max_bytes)
    except BrokerUnavailable as error:
        cause = error.__cause__
        if (
            isinstance(cause, ChannelClosedByBroker | ConnectionClosedByBroker)
            and cause.reply_code in _NO_BODY
        ):
            raise MessageRejected("body_missing", f"{place} holds no body: {cause.reply_text}") from error
        raise


def _fetch(line: Line, place: str, max_bytes: int) -> memoryview:
    with line.talk() as connection:
        channel = connection.channel()
        try:
            body = assembled(_frames(channel, place), max_bytes)
            if body is None:
                raise MessageRejected("body_missing", f"a part of the body at {place} is gone")
            return body
        except ChannelClosedByBroker as error:
            translated = line.translated(error, place)
            if isinstance(translated, QueueMissing):
                raise MessageRejected("body_missing", f"the body at {place} is gone") from error
            raise translated from error
        finally:
            if channel.is_open:
                channel.close()


def _frames(channel: BlockingChannel, place: str) -> Iterator[bytes]:
    """Until there are no more; with a sender that goes on and on, for ever."""
    while (frame := channel.basic_get(place)[2]) is not None:
        yield frame


def discard(line: Line, place: str) -> None:
    """One that stays, because we may not delete it or the broker is gone, expires."""
    if not is_place(place):
        return
    with suppress(FedILError), line.talk() as connection:
        channel = connection.channel()
        channel.queue_delete(place)
        channel.close()


def discard_all(line: Line, queue: str) -> None:
    """Nobody will read the notices that are left in a queue; it may be gone, too. Those that come meanwhile are not
    waited for: their bodies expire."""
    with suppress(QueueMissing), line.talk() as connection:
        channel = connection.channel()
        for _ in range(channel.queue_declare(queue, passive=True).method.message_count):
            method, properties, _ = channel.basic_get(queue, auto_ack=True)
            if method is None or properties is None:
                break
            discard(line, place_in(properties.headers or {}) or "")
        channel.close()
