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
            "count": store.count,
            "open_activation": store.open_activation,
            "clients": store.clients,
            "announce": store.announce,
            "withdraw": store.withdraw,
            "notices": store.notices,
            "health": lambda: dict(store.health()),
        }
        # These take or return a body. That of a request is passed on without a copy: nothing else refers to it.
        self._body_methods: Mapping[str, Callable[..., _Reply]] = {
            "publish": self._publish,
            "receive": self._receive,
            "append_model": lambda body, **entry: (broker.append_model(**entry, body=body).offset, ()),
            "read_model": lambda _, **address: (None, [transport.read_model(ModelAddress(**address))]),
            "read": self._read,
            "commit": lambda body, **names: (store.commit(**names, ledger=bytes(body)), ()),
            "latest": self._latest,
            "ledgers": self._ledgers,
        }

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
            result, reply_body = self._body_methods[method](body, **arguments)
            return {"result": result}, reply_body
        except FedILError as error:
            return {"error": type(error).__name__, "arguments": list(error.args)}, ()

    def _publish(self, body: memoryview, queue: str) -> _Reply:
        self._broker.publish(queue, body)
        return None, ()

    def _receive(self, _: memoryview, queue: str, timeout_seconds: float) -> _Reply:
        delivery = self._transport.receive(queue, timeout_seconds)
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

    def _read(self, _: memoryview, **arguments: Any) -> _Reply:
        ledger = self._store.read(**arguments)
        return ledger is not None, [ledger or b""]

    def _latest(self, _: memoryview, **arguments: Any) -> _Reply:
        found = self._store.latest(**arguments)
        sizes = [[client, activation, len(ledger)] for client, (activation, ledger) in found.items()]
        return sizes, [ledger for _, ledger in found.values()]

    def _ledgers(self, _: memoryview, run: str, activations: list[tuple[int, int]]) -> _Reply:
        wanted = dict(activations)
        found = self._store.ledgers(run, wanted)
        sizes = [[client, wanted[client], len(ledger)] for client, ledger in found.items()]
        return sizes, list(found.values())
