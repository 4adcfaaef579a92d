"""Bodies too big for one message. Each lies in a queue of its own and a small notice of it goes where the body was
to go: a reader needs memory for the bodies that it asks for, and not for all that are under way at once."""

import re
import uuid
from contextlib import suppress

from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from broker_config.buffers import size
from broker_config.chunks import Assembler, split
from broker_config.errors import BrokerRefused, BrokerUnavailable, FedILError, MessageRejected, QueueMissing
from broker_config.topology import BODIES, body_queue
from broker_config.transports.interface import Buffers
from broker_config.transports.rabbitmq_line import Line
from broker_config.transports.rabbitmq_outlet import Outlet, family_of

BODY_HEADER = "x-fedil-body"
"""The queue that holds the body"""
_NAME = re.compile(rf"{re.escape(BODIES.prefix)}.+\.[0-9a-f]{{32}}")
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


def is_place(name: object) -> bool:
    """The name comes from whoever sent the notice: it must not make us read and delete any other queue. That of
    somebody else's body holds a random id which only sender and receiver know."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


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
    assembler = Assembler(max_bytes)
    with line.talk() as connection:
        channel = connection.channel()
        try:
            while True:
                method, _, frame = channel.basic_get(place)
                if method is None or frame is None:
                    raise MessageRejected("body_missing", f"a part of the body at {place} is gone")
                body = assembler.add(frame)
                if body is not None:
                    return body
        except ChannelClosedByBroker as error:
            translated = line.translated(error, place)
            if isinstance(translated, QueueMissing):
                raise MessageRejected("body_missing", f"the body at {place} is gone") from error
            raise translated from error
        finally:
            if channel.is_open:
                channel.close()


def discard(line: Line, place: str) -> None:
    """One that stays, because we may not delete it or the broker is gone, expires."""
    if not is_place(place):
        return
    with suppress(FedILError), line.talk() as connection:
        channel = connection.channel()
        channel.queue_delete(place)
        channel.close()


def discard_all(line: Line, queue: str) -> None:
    """Nobody will read the notices that are left in a queue; it may be gone, too."""
    with suppress(QueueMissing), line.talk() as connection:
        channel = connection.channel()
        while True:
            method, properties, _ = channel.basic_get(queue, auto_ack=True)
            if method is None or properties is None:
                break
            discard(line, (properties.headers or {}).get(BODY_HEADER, ""))
        channel.close()
