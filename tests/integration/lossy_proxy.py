"""A TCP proxy that can drop a reply: the request has had its effect, and the client does not know."""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Forwards connections to `port`. After `drop_reply_to(word)`, the next request that contains `word` is forwarded
    too, but its connection is closed instead of forwarding the reply."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.drops = 0
        self._word: bytes | None = None
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def drop_reply_to(self, word: bytes) -> None:
        self._word = word

    def close(self) -> None:
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join()
        for each in self._sockets:
            each.close()

    def _start(self, target: object, *args: socket.socket) -> None:
        thread = threading.Thread(target=target, args=args)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, server = self._listener.accept()[0], socket.create_connection(self._target)
                self._sockets += [client, server]
                self._start(self._forward, client, server)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, suppress(OSError):
            while True:
                readable, _, _ = select.select([client, server], [], [])
                source, target = (client, server) if client in readable else (server, client)
                data = source.recv(1 << 20)
                if not data:
                    return
                target.sendall(data)
                if source is client and self._word is not None and self._word in data:
                    self._word = None
                    self.drops += 1
                    server.recv(1 << 20)
                    return


@contextmanager
def proxy_to(host: str, port: int) -> Iterator[Proxy]:
    proxy = Proxy(host, port)
    try:
        yield proxy
    finally:
        proxy.close()
