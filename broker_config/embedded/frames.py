"""Frames on a Unix socket: two sizes, a msgpack header, a raw body. Bodies are neither joined nor copied."""

import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from broker_config.protocol.buffers import aligned_buffer, size
from broker_config.protocol.errors import AddressWrong, MessageRejected
from broker_config.protocol.wire import MAX_HEADER_BYTES, pack_fields, unpack_fields
from broker_config.transports.interface import Buffers

_SIZES = struct.Struct("<IQ")
_SOCKET_BUFFER_BYTES = 4 << 20


def url_of(socket_path: Path) -> str:
    return f"memory://{quote(str(socket_path.absolute()))}"


def path_of(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc or not parts.path:
        raise AddressWrong(
            f"{url!r} names no socket: write memory:///path/to.sock for a broker in another process"
        )
    return Path(unquote(parts.path))


def set_buffer_sizes(sock: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)


def send_frame(sock: socket.socket, fields: Mapping[str, object], body: Buffers = ()) -> None:
    header = pack_fields(fields)
    sock.sendall(_SIZES.pack(len(header), size(body)) + header)
    for piece in body:
        sock.sendall(piece)


def receive_frame(sock: socket.socket) -> tuple[dict[str, Any], memoryview]:
    """Raises EOFError when the other side has disconnected, MessageRejected for a malformed frame."""
    header_size, body_size = _SIZES.unpack(_receive(sock, _SIZES.size))
    if header_size > MAX_HEADER_BYTES:
        raise MessageRejected("too_large", f"a frame header of {header_size} bytes")
    fields = unpack_fields(_receive(sock, header_size))
    return fields, _receive(sock, body_size)


def _receive(sock: socket.socket, num_bytes: int) -> memoryview:
    buffer = aligned_buffer(num_bytes)
    filled = 0
    while filled < num_bytes:
        received = sock.recv_into(buffer[filled:], 0, socket.MSG_WAITALL)
        if not received:
            raise EOFError("the other side closed the connection")
        filled += received
    return buffer.toreadonly()
