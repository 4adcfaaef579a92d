"""A wire that can be cut at the worst moment: the question has arrived, the answer has not."""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Wire:
    """Forwards what goes to `port` and back. After `cut_after(word)`, the next question with that word in it is
    forwarded and answered, but the answer is thrown away with the connection."""

    def __init__(self, host: str, port: int) -> None:
        self._there = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self._word: bytes | None = None
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def cut_after(self, word: bytes) -> None:
        self._word = word

    def close(self) -> None:
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join()
        for each in self._sockets:
            each.close()

    def _begin(self, target: object, *args: socket.socket) -> None:
        thread = threading.Thread(target=target, args=args)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, far = self._listener.accept()[0], socket.create_connection(self._there)
                self._sockets += [near, far]
                self._begin(self._forward, near, far)

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        with near, far, suppress(OSError):
            while True:
                readable, _, _ = select.select([near, far], [], [])
                source, target = (near, far) if near in readable else (far, near)
                data = source.recv(1 << 20)
                if not data:
                    return
                target.sendall(data)
                if source is near and self._word is not None and self._word in data:
                    self._word = None
                    self.cuts += 1
                    far.recv(1 << 20)
                    return


@contextmanager
def wire_to(host: str, port: int) -> Iterator[Wire]:
    wire = Wire(host, port)
    try:
        yield wire
    finally:
        wire.close()
