"""All uses of pika's private names. Each works without its private name too: more slowly, or with a less precise error.

tests/unit/broker_config/test_pika_private.py fails when pika changes one of these names, and when a pika release has
the public feature that replaces a function ("Until" below). Delete a function then, and this file with the last one.
"""

import struct
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import pika.data
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.adapters.utils import io_services_utils

READ_BYTES = 256 << 10
"""Two frames: pika moves the rest of its buffer for each frame that it takes out."""
READ_LIMITS = ("_MAX_RECV_BYTES", "_MAX_CONSUME_BYTES")


def read_large_pieces() -> None:
    """Lets pika read 256 KiB per system call instead of 4, which doubles its speed.

    Until pika has a public setting for this, or a larger default."""
    base = getattr(io_services_utils, "_AsyncTransportBase", None)
    for limit in READ_LIMITS:
        if isinstance(getattr(base, limit, None), int):
            setattr(base, limit, READ_BYTES)


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
