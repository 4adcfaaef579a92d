"""Frames on a Unix socket: sizes, a msgpack header, a raw body. Bodies are neither joined nor copied here."""

import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from broker_config.protocol import errors
from broker_config.protocol.buffers import room_for
from broker_config.protocol.errors import AddressWrong, BrokerUnavailable, FedILError, MessageRejected
from broker_config.protocol.wire import MAX_HEADER_BYTES, pack_fields, size, unpack_fields
from broker_config.transports.interface import Buffers

_SIZES = struct.Struct("<IQ")
_MAX_PIECES = 512
"""Pieces per system call; Linux takes 1024."""
_SOCKET_BUFFER_BYTES = 4 << 20
_SILENCE_SECONDS = 120
"""A broker that does not answer for so long is taken for dead; `receive` asks more often than that."""


def url_of(socket_path: Path) -> str:
    return f"memory://{quote(str(socket_path.absolute()))}"


def path_of(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc or not parts.path:
        raise AddressWrong(
            f"{url!r} names no socket: write memory:///path/to.sock for a broker in another process"
        )
    return Path(unquote(parts.path))


def send_frame(sock: socket.socket, fields: Mapping[str, object], body: Buffers = ()) -> None:
    header = pack_fields(fields)
    pieces = [memoryview(_SIZES.pack(len(header), size(body)) + header)]
    pieces += [memoryview(piece).cast("B") for piece in body]
    for batch in _batches(iter(pieces)):
        _send_all(sock, batch)


def _batches(pieces: Iterator[memoryview]) -> Iterator[list[memoryview]]:
    while batch := list(islice(pieces, _MAX_PIECES)):
        yield batch


def _send_all(sock: socket.socket, pieces: list[memoryview]) -> None:
    pieces.reverse()
    while pieces:
        sent = sock.sendmsg(reversed(pieces))
        while pieces and sent >= len(pieces[-1]):
            sent -= len(pieces.pop())
        if sent:
            pieces[-1] = pieces[-1][sent:]


def receive_frame(sock: socket.socket) -> tuple[dict[str, Any], memoryview]:
    """Raises EOFError when the other side is gone, MessageRejected when it talks nonsense."""
    header_size, body_size = _SIZES.unpack(_receive(sock, _SIZES.size))
    if header_size > MAX_HEADER_BYTES:
        raise MessageRejected("too_large", f"a frame header of {header_size} bytes")
    fields = unpack_fields(_receive(sock, header_size))
    return fields, _receive(sock, body_size)


def _receive(sock: socket.socket, num_bytes: int) -> memoryview:
    buffer = room_for(num_bytes)
    filled = 0
    while filled < num_bytes:
        got = sock.recv_into(buffer[filled:], 0, socket.MSG_WAITALL)
        if not got:
            raise EOFError("the other side closed the connection")
        filled += got
    return buffer.toreadonly()


def tune(sock: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)


def describe(error: FedILError) -> dict[str, object]:
    """An error as fields of an answer."""
    return {"error": type(error).__name__, "arguments": list(error.args)}


def _raise_described(fields: Mapping[str, Any]) -> None:
    if "error" in fields:
        # One that is not among ours, of a store or transport say, is none the less what was said.
        kind: type[FedILError] = getattr(errors, fields["error"], FedILError)
        raise kind(*fields["arguments"])


class Link:
    """A client's connection to a broker in another process: one question, one answer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._one_at_a_time = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        tune(self._socket)
        # Not settimeout(): that would make the socket non-blocking and every large read many small ones.
        patience = struct.pack("ll", _SILENCE_SECONDS, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        with self._broken_when_it_fails():
            self._socket.connect(str(path))

    def ask(
        self, question: str, fields: Mapping[str, object], body: Buffers = ()
    ) -> tuple[dict[str, Any], memoryview]:
        with self._one_at_a_time, self._broken_when_it_fails():
            send_frame(self._socket, {"question": question, **fields}, body)
            answer, answer_body = receive_frame(self._socket)
        _raise_described(answer)
        return answer, answer_body

    def close(self) -> None:
        self._socket.close()

    @contextmanager
    def _broken_when_it_fails(self) -> Iterator[None]:
        """Half a frame cannot be taken back, so a connection that failed once is never used again."""
        try:
            yield
        except BaseException as error:
            self._socket.close()
            if isinstance(error, OSError | EOFError):
                raise BrokerUnavailable(
                    f"no broker answers at {self._path} ({error}): see that it runs, then connect again"
                ) from error
            raise
