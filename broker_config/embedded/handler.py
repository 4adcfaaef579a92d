"""Handles the requests of one client of the embedded broker and store."""

import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from broker_config.embedded.frames import receive_frame, send_frame, set_buffer_sizes
from broker_config.protocol.errors import BrokerUnavailable, FedILError, MessageRejected
from broker_config.stores.interface import Store
from broker_config.transports.interface import Buffers, ModelAddress
from broker_config.transports.memory.broker import EmbeddedBroker
from broker_config.transports.memory.transport import MemoryDelivery, MemoryTransport

_log = logging.getLogger(__name__)
_Reply = tuple[object, Buffers]
"""A result of plain values, and a body"""


class ConnectionHandler:
    def __init__(self, sock: socket.socket, broker: EmbeddedBroker, store: Store) -> None:
        set_buffer_sizes(sock)
        self._socket, self._broker, self._store = sock, broker, store
        self._transport = transport = MemoryTransport(broker)
        self._unsettled: dict[int, MemoryDelivery] = {}
        self._tags = count()
        self._methods: Mapping[str, Callable[..., object]] = {
            "declare": lambda queues: transport.declare(*queues),
            "acknowledge": lambda tag: self._settle(tag).acknowledge(),
            "requeue": lambda tag: self._settle(tag).requeue(),
            "reject": lambda tag, reason: self._settle(tag).reject(reason),
            "depth": transport.depth,
            "acquire_leadership": transport.acquire_leadership,
            "retire": transport.retire,
            "disconnect": transport.close,
            "begin": store.begin,
            "check_begun": store.check_begun,
            "open_activation": store.open_activation,
            "clients": store.clients,
            "announce": store.announce,
            "withdraw": store.withdraw,
            "notices": store.notices,
            "health": lambda: dict(store.health()),
        }
        self._body_methods: Mapping[str, Callable[[dict[str, Any], memoryview], _Reply]] = {
            "publish": self._publish,
            "receive": self._receive,
            "append_model": self._append_model,
            "read_model": self._read_model,
            "read": self._read,
            "commit": self._commit,
            "latest": self._latest,
            "ledgers": self._ledgers,
        }
        """Those that take or return a body"""

    def run(self) -> None:
        try:
            while True:
                request, body = receive_frame(self._socket)
                send_frame(self._socket, *self._reply(request, body))
        except (EOFError, OSError):
            pass  # the client closed its connection or died
        except Exception:
            # A client that violates the protocol loses its connection; the broker continues.
            _log.exception("closing a connection after an unexpected error")
        finally:
            self._transport.close()
            self._socket.close()

    def stop(self) -> None:
        self._transport.close()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _reply(self, request: dict[str, Any], body: memoryview) -> tuple[dict[str, object], Buffers]:
        method, arguments = request["method"], request["arguments"]
        try:
            if method in self._methods:
                return {"result": self._methods[method](**arguments)}, ()
            if method not in self._body_methods:
                raise MessageRejected("schema", f"there is no method {method!r:.80}")
            result, reply_body = self._body_methods[method](arguments, body)
            return {"result": result}, reply_body
        except FedILError as error:
            return {"error": type(error).__name__, "arguments": list(error.args)}, ()

    # The bodies of requests are passed on without a copy: no one else has a reference to them.

    def _publish(self, arguments: dict[str, Any], body: memoryview) -> _Reply:
        self._broker.publish(arguments["queue"], body)
        return None, ()

    def _receive(self, arguments: dict[str, Any], _: memoryview) -> _Reply:
        delivery = self._transport.receive(arguments["queue"], arguments["timeout_seconds"])
        if delivery is None:
            return None, ()
        if self._client_has_disconnected():
            # While it waited: the message did not kill it, so this delivery must not count.
            delivery.requeue()
            raise EOFError
        tag = next(self._tags)
        self._unsettled[tag] = delivery
        return {"tag": tag, "redelivered": delivery.redelivered, "reason": delivery.reason}, [delivery.body]

    def _client_has_disconnected(self) -> bool:
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False

    def _settle(self, tag: int) -> MemoryDelivery:
        if tag not in self._unsettled:
            raise BrokerUnavailable("this delivery was settled before: settle each exactly once")
        return self._unsettled.pop(tag)

    def _append_model(self, arguments: dict[str, Any], body: memoryview) -> _Reply:
        return self._broker.append_model(**arguments, body=body).offset, ()

    def _read_model(self, arguments: dict[str, Any], _: memoryview) -> _Reply:
        return None, [self._transport.read_model(ModelAddress(**arguments))]

    def _read(self, arguments: dict[str, Any], _: memoryview) -> _Reply:
        ledger = self._store.read(**arguments)
        return ledger is not None, [ledger or b""]

    def _commit(self, arguments: dict[str, Any], body: memoryview) -> _Reply:
        return self._store.commit(**arguments, ledger=bytes(body)), ()

    def _latest(self, arguments: dict[str, Any], _: memoryview) -> _Reply:
        found = self._store.latest(**arguments)
        sizes = [[client, activation, len(ledger)] for client, (activation, ledger) in found.items()]
        return sizes, [ledger for _, ledger in found.values()]

    def _ledgers(self, arguments: dict[str, Any], _: memoryview) -> _Reply:
        activations = dict(arguments["activations"])
        found = self._store.ledgers(arguments["run"], activations)
        sizes = [[client, activations[client], len(ledger)] for client, ledger in found.items()]
        return sizes, list(found.values())
