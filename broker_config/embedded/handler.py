"""Handles the requests of one client of the embedded broker and store."""

import logging
import socket
from contextlib import suppress
from typing import Any

from broker_config.embedded.frames import receive_frame, send_frame, set_buffer_sizes
from broker_config.protocol.errors import FedILError
from broker_config.stores.interface import Store
from broker_config.transports.interface import Buffers
from broker_config.transports.memory.broker import EmbeddedBroker, Session

_log = logging.getLogger(__name__)
_Reply = tuple[object, Buffers]
"""A result of plain values, and a body"""
_PLAIN_STORE_CALLS = frozenset(
    (
        "begin",
        "count",
        "open_activation",
        "clients",
        "announce",
        "withdraw",
        "notices",
        "health",
    )
)


class ConnectionHandler:
    def __init__(self, sock: socket.socket, broker: EmbeddedBroker, store: Store) -> None:
        set_buffer_sizes(sock)
        self._socket, self._session, self._store = sock, Session(broker), store

    def run(self) -> None:
        try:
            while True:
                request, body = receive_frame(self._socket)
                send_frame(self._socket, *self._reply(request["method"], request["arguments"], body))
        except (EOFError, OSError):
            pass  # the client closed its connection or died
        except Exception:
            # A client that violates the protocol loses its connection; the broker continues.
            _log.exception("closing a connection after an unexpected error")
        finally:
            self._session.close()
            self._socket.close()

    def stop(self) -> None:
        self._session.close()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _reply(
        self, method: str, arguments: dict[str, Any], body: memoryview
    ) -> tuple[dict[str, object], Buffers]:
        try:
            result, reply_body = self._answer(method, arguments, body)
        except FedILError as error:
            return {"error": type(error).__name__, "arguments": list(error.args)}, ()
        return {"result": result}, reply_body

    def _answer(self, method: str, arguments: dict[str, Any], body: memoryview) -> _Reply:
        store = self._store
        if method in _PLAIN_STORE_CALLS:
            return getattr(store, method)(**arguments), ()
        match method:
            case "read":
                ledger = store.read(**arguments)
                return ledger is not None, [ledger or b""]
            case "commit":
                return store.commit(**arguments, ledger=bytes(body)), ()
            case "latest":
                newest = store.latest(**arguments)
                about = [[client, activation, len(ledger)] for client, (activation, ledger) in newest.items()]
                return about, [ledger for _, ledger in newest.values()]
            case "ledgers":
                found = store.ledgers(arguments["run"], dict(arguments["activations"]))
                return [[client, len(ledger)] for client, ledger in found.items()], list(found.values())
        # The body is passed on without a copy: nothing else refers to it.
        result, reply_body = self._session.answer(method, body, arguments)
        if method == "receive" and result is not None and self._client_has_disconnected():
            # While it waited: the message did not kill it, so this delivery must not count.
            self._session.call("requeue", tag=result["tag"])
            raise EOFError
        return result, [reply_body]

    def _client_has_disconnected(self) -> bool:
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
