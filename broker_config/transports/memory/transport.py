"""A connection to an embedded broker, in this process or over the Unix socket of another."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker_config.brokers.topology import MODELS, kind_name
from broker_config.embedded.client import RpcClient
from broker_config.protocol.buffers import check_size, size
from broker_config.protocol.errors import BrokerUnavailable
from broker_config.transports.interface import MAX_BODY_BYTES, Buffers, ModelAddress, Unwanted
from broker_config.transports.memory.broker import Body, EmbeddedBroker, Reply, Session

_MAX_WAIT_SECONDS = 1.0
"""A longer wait is several requests, so that neither side waits long for one that died."""


class MemoryDelivery:
    sender: str | None = None
    body_is_inline = True

    def __init__(
        self, call: Callable[..., Reply], properties: dict[str, Any], body: Body, max_body_bytes: int
    ) -> None:
        self._call, self._body, self._max_body_bytes = call, memoryview(body), max_body_bytes
        self._tag: int = properties["tag"]
        self.queue: str = properties["queue"]
        self.redelivered: bool = properties["redelivered"]
        self.reason: str | None = properties["reason"]

    @property
    def body(self) -> memoryview:
        check_size(len(self._body), self._max_body_bytes)
        return self._body

    def release_body(self) -> None:
        self._body = memoryview(b"")

    def acknowledge(self) -> None:
        self._call("acknowledge", tag=self._tag)

    def requeue(self) -> None:
        self._call("requeue", tag=self._tag)

    def reject(self, reason: str) -> None:
        self._call("reject", tag=self._tag, reason=reason)


class MemoryTransport:
    def __init__(self, broker: EmbeddedBroker | Path) -> None:
        """`broker`: itself, or the socket on which another process serves it"""
        self._client = RpcClient(broker) if isinstance(broker, Path) else Session(broker)
        self._call: Callable[..., Reply] = self._client.call
        self.max_body_bytes = MAX_BODY_BYTES
        self.bytes_sent: Counter[str] = Counter()
        self.bytes_received: Counter[str] = Counter()

    def declare(self, *queues: str) -> None:
        self._call("declare", queues=queues)

    def publish(self, queue: str, body: Buffers) -> None:
        self._call("publish", body, queue=queue)
        self.bytes_sent[kind_name(queue)] += size(body)

    def receive(self, queue: str | Sequence[str], timeout_seconds: float) -> MemoryDelivery | None:
        queues = [queue] if isinstance(queue, str) else list(queue)
        properties, body = self._call_in_turns("receive", timeout_seconds, queues=queues)
        if properties is None:
            return None
        self.bytes_received[kind_name(properties["queue"])] += len(body)
        return MemoryDelivery(self._call, properties, body, self.max_body_bytes)

    def discard_while(self, queue: str, is_unwanted: Unwanted, most: int) -> int:
        for number in range(most):
            delivery = self.receive(queue, 0.0)
            if delivery is None:
                return number
            if not is_unwanted(delivery.body, delivery.sender):
                delivery.requeue()
                return number
            delivery.acknowledge()
        return most

    def depth(self, queue: str) -> int | None:
        depth: int | None = self._call("depth", queue=queue)[0]
        return depth

    def append_model(
        self,
        run: str,
        version: int,
        body: Buffers,
        kept: int = 2,
        entry: str = "",
        entries: int = 1,  # noqa: ARG002
    ) -> ModelAddress:
        offset, _ = self._call("append_model", body, run=run, version=version, kept=kept, entry=entry)
        self.bytes_sent[MODELS.name] += size(body)
        return ModelAddress(run, version, offset, entry)

    def read_model(self, address: ModelAddress) -> memoryview:
        _, body = self._call("read_model", **vars(address))
        self.bytes_received[MODELS.name] += len(body)
        return memoryview(body)

    def acquire_leadership(self, run: str, timeout_seconds: float) -> bool:
        return bool(self._call_in_turns("acquire_leadership", timeout_seconds, run=run)[0])

    def retire(self, run: str, sites: Iterable[str]) -> None:
        self._call("retire", run=run, sites=list(sites))

    def timeout_warnings(self, longest_task_seconds: float) -> tuple[str, ...]:  # noqa: ARG002 - it has no time-outs
        return ()

    def close(self) -> None:
        # The broker would notice a closed socket a moment later; after this call it has.
        with suppress(BrokerUnavailable):
            self._call("disconnect")
        self._client.close()

    def _call_in_turns(self, method: str, timeout_seconds: float, **arguments: object) -> Reply:
        """Repeats the call with short waits until it has a result or the timeout has passed."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            reply = self._call(method, timeout_seconds=min(left, _MAX_WAIT_SECONDS), **arguments)
            if reply[0] or left <= _MAX_WAIT_SECONDS:
                return reply
