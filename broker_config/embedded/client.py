"""The client side of a broker and store that another process serves on a Unix socket."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker_config.embedded.frames import receive_frame, send_frame, set_buffer_sizes
from broker_config.protocol import errors
from broker_config.protocol.errors import BrokerUnavailable, FedILError
from broker_config.transports.interface import Buffers

_TIMEOUT_SECONDS = 120
"""A server that does not reply for so long counts as dead. `receive` waits in shorter turns."""


class RpcClient:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        set_buffer_sizes(self._socket)
        # Not settimeout(): it makes the socket non-blocking, and then a large read takes many system calls.
        timeout = struct.pack("ll", _TIMEOUT_SECONDS, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        with self._closed_on_error():
            self._socket.connect(str(path))

    def call(self, method: str, body: Buffers = (), /, **arguments: object) -> tuple[Any, memoryview]:
        """The result of a method of the broker or store, and a body."""
        with self._lock, self._closed_on_error():
            send_frame(self._socket, {"method": method, "arguments": arguments}, body)
            reply, reply_body = receive_frame(self._socket)
        if "error" in reply:
            kind: type[FedILError] = getattr(errors, reply["error"], FedILError)
            raise kind(*reply["arguments"])
        return reply["result"], reply_body

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() == -1

    def close(self) -> None:
        self._socket.close()

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """A connection with half a frame on it cannot be used again."""
        try:
            yield
        except BaseException as error:
            self._socket.close()
            if isinstance(error, OSError | EOFError):
                raise BrokerUnavailable(
                    f"no broker answers at {self._path} ({error}): see that it runs, then connect again"
                ) from error
            raise
