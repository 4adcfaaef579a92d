"""All uses of pika's private names. Each works without its private name too: more slowly, or with a less precise error.

tests/unit/broker_config/test_pika_private.py fails when pika changes one of these names, and when a pika release has
the public feature that replaces a function ("Until" below). Delete a function then, and this file with the last one.
"""

import struct
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import pika.data
from pika import frame, spec
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.adapters.utils import io_services_utils

READ_BYTES = 256 << 10
"""Two frames"""
READ_LIMITS = ("_MAX_RECV_BYTES", "_MAX_CONSUME_BYTES")
_FRAME = struct.Struct(">BHL")
"""Type, channel, and size of what follows; then a byte that ends the frame"""
_USED_TO_DECODE = ("_on_data_available", "_process_frame", "_frame_buffer", "bytes_received")


def read_large_pieces() -> None:
    """Lets pika read 256 KiB per system call instead of 4, which doubles its speed.

    Until pika has a public setting for this, or a larger default."""
    base = getattr(io_services_utils, "_AsyncTransportBase", None)
    for limit in READ_LIMITS:
        if isinstance(getattr(base, limit, None), int):
            setattr(base, limit, READ_BYTES)


def decode_in_place(connection: BlockingConnection) -> None:
    """Lets pika take the contents of messages from where they were received. Otherwise it copies them, and for each
    frame the rest of its buffer.

    Until `Connection._on_data_available` does not copy."""
    inner: Any = getattr(connection, "_impl", None)
    if not all(hasattr(inner, name) for name in _USED_TO_DECODE):
        return

    def take(received: bytes) -> None:
        buffer: bytes = inner._frame_buffer + received
        if buffer.startswith(b"AMQP"):  # not a frame: the broker refuses this version of the protocol
            original(received)
            return
        view, begin = memoryview(buffer), 0
        while (after := begin + _FRAME.size) < len(buffer):
            kind, channel, num_bytes = _FRAME.unpack_from(buffer, begin)
            end = after + num_bytes + 1
            if end > len(buffer):
                break
            if kind == spec.FRAME_BODY and buffer[end - 1] == spec.FRAME_END:
                decoded: Any = frame.Body(channel, view[after : end - 1])
            else:
                _, decoded = frame.decode_frame(buffer[begin:end])
            inner.bytes_received += end - begin
            begin = end
            inner._process_frame(decoded)
        inner._frame_buffer = buffer[begin:]

    original = inner._on_data_available
    inner._on_data_available = take


def accept_unreadable_headers() -> None:
    """Lets pika take a header table that it cannot decode (a date out of range, a thousand nested tables) for an empty
    one. Otherwise it closes the connection, the message stays in its queue, and the next consumer fails too.

    Until `pika.data.decode_table` raises no error that ends the connection."""
    decode = getattr(pika.data, "decode_table", None)
    if decode is None or hasattr(decode, "__wrapped__"):
        return

    @wraps(decode)
    def decode_table(encoded: bytes, offset: int) -> tuple[dict[Any, Any], int]:
        try:
            table, end = decode(encoded, offset)
        except Exception:  # of any kind: the length of the table is known
            (num_bytes,) = struct.unpack_from(">I", encoded, offset)
            return {}, offset + 4 + num_bytes
        return table, end

    pika.data.decode_table = decode_table


def server_properties(connection: BlockingConnection) -> Mapping[str, Any]:
    """The properties that the broker sent at connect.

    Until BlockingConnection has `server_properties`, like pika's other connections."""
    return getattr(getattr(connection, "_impl", None), "server_properties", None) or {}


def closing_reason(channel: BlockingChannel) -> Exception | None:
    """Why the broker closed a channel. pika raises it only in a call during which the channel is closed.

    Until BlockingChannel has `closing_reason` or `add_on_close_callback`, like pika's other channels."""
    return getattr(channel, "_closing_reason", None)


def close_without_reject(channel: BlockingChannel) -> None:
    """Closes a channel without rejecting its pending messages first: RabbitMQ does not implement reject for streams,
    and closes the whole connection.

    Until `BlockingChannel.close` does not reject, or has an option for it."""
    inner = getattr(channel, "_impl", None)
    if inner is not None and inner.is_open:
        inner.close()


def start_confirms(
    channel: BlockingChannel, on_confirm: Callable[..., None], on_return: Callable[..., None]
) -> Callable[[Callable[[], bool]], None] | None:
    """Turns on publisher confirms with callbacks, so that a publish need not wait for its confirm. Returns a function
    that handles network events until a condition is true; None if this pika has no such names.

    Until `BlockingChannel.confirm_delivery` takes a callback, like that of pika's other channels."""
    inner, flush = getattr(channel, "_impl", None), getattr(channel, "_flush_output", None)
    if inner is None or flush is None:
        return None
    inner.add_on_return_callback(on_return)
    inner.confirm_delivery(on_confirm)
    return flush  # type: ignore[no-any-return]
