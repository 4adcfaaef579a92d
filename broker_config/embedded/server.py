"""Serves this process's embedded broker and store to other processes on a Unix socket.

One thread per connection, so a waiting `receive` blocks no other client. When a connection ends, for whatever reason,
its unacknowledged messages return to their queues.
"""

import logging
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from broker_config.embedded.frames import url_of
from broker_config.embedded.handler import ConnectionHandler
from broker_config.protocol.errors import FedILError
from broker_config.stores.interface import Store
from broker_config.transports.memory.broker import EmbeddedBroker

_log = logging.getLogger(__name__)


def _remove_stale_socket(path: Path) -> None:
    """A killed server leaves its socket file. Raises FedILError if a server answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            if path.is_socket():
                path.unlink()
        except OSError:
            pass  # no file, or no socket of ours: bind() reports it
        else:
            raise FedILError(f"another broker answers at {path}: stop it or choose another path")


class BrokerServer:
    """Accepts connections from its construction until `close`. Only this user may connect."""

    def __init__(self, broker: EmbeddedBroker, store: Store, path: Path) -> None:
        _remove_stale_socket(path)
        self.url = url_of(path)
        self._broker, self._store, self._path = broker, store, path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(path))
            path.chmod(0o600)
            self._listener.listen(128)
        except OSError as error:
            self._listener.close()
            raise FedILError(f"cannot serve at {path} ({error}): choose another, shorter path") from error
        self._connections: dict[ConnectionHandler, threading.Thread] = {}
        self._stopping = False
        self._acceptor = threading.Thread(target=self._accept, name="fedil-accept", daemon=True)
        self._acceptor.start()

    def _accept(self) -> None:
        while not self._stopping:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # too many open files, for example: some connections will close
                _log.exception("cannot accept a new connection yet")
                time.sleep(0.1)
                continue
            handler = ConnectionHandler(sock, self._broker, self._store)
            thread = threading.Thread(target=handler.run, name="fedil-connection", daemon=True)
            self._connections = {c: t for c, t in self._connections.items() if t.is_alive()}
            self._connections[handler] = thread
            thread.start()

    def close(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        # Closing the listener does not wake a thread in accept(); one more connection does.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last, suppress(OSError):
            last.connect(str(self._path))
        self._acceptor.join()
        self._listener.close()
        self._path.unlink(missing_ok=True)
        for handler, thread in self._connections.items():
            handler.stop()
            thread.join()

    def __enter__(self) -> "BrokerServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
