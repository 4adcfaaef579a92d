"""Lets other processes use this process's embedded broker and store, over a Unix socket.

One thread per connection, so a waiting `receive` holds up nobody. When a connection ends, for whatever
reason, what it held unacknowledged returns to its queues.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

from broker_config.embedded.frames import describe, receive_frame, send_frame, tune, url_of
from broker_config.protocol.errors import BrokerUnavailable, FedILError, MessageRejected
from broker_config.stores.interface import Store
from broker_config.transports.interface import Buffers, ModelAddress
from broker_config.transports.memory.transport import (
    EmbeddedBroker,
    MemoryDelivery,
    MemoryTransport,
    Pieces,
    own,
)

_log = logging.getLogger(__name__)
_Answer = tuple[dict[str, object], Buffers]


def serve(broker: EmbeddedBroker, store: Store, socket_path: Path) -> "BrokerServer":
    """Answers from the moment this returns until `close`. Only this user may connect."""
    _clear_the_way(socket_path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(socket_path))
        socket_path.chmod(0o600)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise FedILError(f"cannot serve at {socket_path} ({error}): choose another, shorter path") from error
    return BrokerServer(broker, store, socket_path, listener)


def _clear_the_way(path: Path) -> None:
    """A server that was killed leaves its socket file; a living one must not be pushed aside."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            if path.is_socket():
                path.unlink()
        except OSError:
            pass  # nothing there, or not ours: bind will tell
        else:
            raise FedILError(f"another broker answers at {path}: stop it or choose another path")


class BrokerServer:
    def __init__(self, broker: EmbeddedBroker, store: Store, path: Path, listener: socket.socket) -> None:
        self.url = url_of(path)
        self._broker, self._store, self._path, self._listener = broker, store, path, listener
        self._connections: dict[_Connection, threading.Thread] = {}
        self._stopping = False
        self._acceptor = threading.Thread(target=self._accept, name="fedil-accept", daemon=True)
        self._acceptor.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # too many open files, say; those connected go on and some will leave
                _log.exception("cannot take a new connection yet")
                time.sleep(0.1)
                continue
            if self._stopping:
                sock.close()
                return
            connection = _Connection(sock, self._broker, self._store)
            thread = threading.Thread(target=connection.run, name="fedil-connection", daemon=True)
            self._connections = {c: t for c, t in self._connections.items() if t.is_alive()}
            self._connections[connection] = thread
            thread.start()

    def close(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        # Closing a listener does not wake who waits in accept(); a last connection does.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last, suppress(OSError):
            last.connect(str(self._path))
        self._acceptor.join()
        self._listener.close()
        self._path.unlink(missing_ok=True)
        for connection, thread in self._connections.items():
            connection.stop()
            thread.join()

    def __enter__(self) -> "BrokerServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Connection:
    """Answers one client's questions, one after the other."""

    def __init__(self, sock: socket.socket, broker: EmbeddedBroker, store: Store) -> None:
        tune(sock)
        self._socket, self._broker, self._store = sock, broker, store
        self._transport = MemoryTransport(broker)
        self._held: dict[int, MemoryDelivery] = {}
        self._tags = count()
        self._answers: Mapping[str, Callable[[dict[str, Any], memoryview], _Answer]] = {
            "declare": self._declare,
            "publish": self._publish,
            "receive": self._receive,
            "settle": self._settle,
            "depth": self._depth,
            "append_model": self._append_model,
            "read_model": self._read_model,
            "take_lead": self._take_lead,
            "retire": self._retire,
            "begin": self._begin,
            "check_begun": self._check_begun,
            "open_activation": self._open_activation,
            "read": self._read,
            "commit": self._commit,
            "clients": self._clients,
            "latest": self._latest,
            "ledgers": self._ledgers,
            "announce": self._announce,
            "withdraw": self._withdraw,
            "notices": self._notices,
            "health": self._health,
            "release": self._release,
        }

    def run(self) -> None:
        try:
            while True:
                fields, body = receive_frame(self._socket)
                send_frame(self._socket, *self._answer(fields, body))
        except (EOFError, OSError):
            pass  # the usual end: the client closed or died
        except Exception:
            # A client that breaks the protocol loses its connection; the broker lives on.
            _log.exception("closing a connection that went wrong")
        finally:
            self._transport.close()
            self._socket.close()

    def stop(self) -> None:
        self._transport.close()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _answer(self, fields: dict[str, Any], body: memoryview) -> _Answer:
        try:
            question = fields.pop("question")
            if question not in self._answers:
                raise MessageRejected("schema", f"nobody here answers {question!r:.80}")
            return self._answers[question](fields, body)
        except FedILError as error:
            return describe(error), ()

    def _declare(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        self._transport.declare(*fields["queues"])
        return {}, ()

    def _publish(self, fields: dict[str, Any], body: memoryview) -> _Answer:
        self._broker.publish(fields["queue"], self._pieces(body))
        return {}, ()

    def _pieces(self, body: memoryview) -> Pieces:
        """What came through the socket is nobody else's: unlike a caller's buffers it needs no copy."""
        limit = self._broker.max_message_bytes
        return (body,) if limit is None else own([body], limit)

    def _receive(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        delivery = self._transport.receive(fields["queue"], fields["timeout_seconds"])
        if delivery is None:
            return {"tag": None}, ()
        if self._client_is_gone():
            # It died waiting, so the message did not kill it and must not be blamed.
            delivery.requeue()
            raise EOFError
        tag = next(self._tags)
        self._held[tag] = delivery
        return {"tag": tag, "redelivered": delivery.redelivered, "reason": delivery.reason}, [delivery.body]

    def _client_is_gone(self) -> bool:
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def _settle(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        delivery = self._held.pop(fields["tag"], None)
        match delivery, fields["how"]:
            case None, _:
                raise BrokerUnavailable("this delivery was settled before: settle each exactly once")
            case MemoryDelivery(), "acknowledge":
                delivery.acknowledge()
            case MemoryDelivery(), "requeue":
                delivery.requeue()
            case MemoryDelivery(), "reject":
                delivery.reject(fields["reason"])
        return {}, ()

    def _depth(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        return {"depth": self._transport.depth(**fields)}, ()

    def _append_model(self, fields: dict[str, Any], body: memoryview) -> _Answer:
        address = self._broker.append_model(
            fields["run"], fields["version"], self._pieces(body), fields["kept"], fields["entry"]
        )
        return {"offset": address.offset}, ()

    def _read_model(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        return {}, [self._transport.read_model(ModelAddress(**fields))]

    def _take_lead(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        return {"leads": self._transport.take_lead(**fields)}, ()

    def _retire(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        self._transport.retire(**fields)
        return {}, ()

    def _begin(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        self._store.begin(**fields)
        return {}, ()

    def _check_begun(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        self._store.check_begun(**fields)
        return {}, ()

    def _open_activation(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        self._store.open_activation(**fields)
        return {}, ()

    def _read(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        ledger = self._store.read(**fields)
        return {"found": ledger is not None}, [ledger or b""]

    def _commit(self, fields: dict[str, Any], body: memoryview) -> _Answer:
        return {"written": self._store.commit(**fields, ledger=bytes(body))}, ()

    def _clients(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        return {"clients": self._store.clients(**fields)}, ()

    def _latest(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        newest = self._store.latest(**fields)
        about = [[client, activation, len(ledger)] for client, (activation, ledger) in newest.items()]
        return {"ledgers": about}, [ledger for _, ledger in newest.values()]

    def _ledgers(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        activations = dict(fields["activations"])
        found = self._store.ledgers(fields["run"], activations)
        about = [[client, activations[client], len(ledger)] for client, ledger in found.items()]
        return {"ledgers": about}, list(found.values())

    def _announce(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        self._store.announce(**fields)
        return {}, ()

    def _withdraw(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        self._store.withdraw(**fields)
        return {}, ()

    def _notices(self, fields: dict[str, Any], _: memoryview) -> _Answer:
        return {"notices": self._store.notices(**fields)}, ()

    def _health(self, fields: dict[str, Any], _: memoryview) -> _Answer:  # noqa: ARG002 - one shape for all
        return {"health": dict(self._store.health())}, ()

    def _release(self, fields: dict[str, Any], _: memoryview) -> _Answer:  # noqa: ARG002 - one shape for all
        self._transport.close()
        return {}, ()
