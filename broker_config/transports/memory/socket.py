"""The embedded broker of another process, over its Unix socket."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from broker_config.brokers.topology import MODELS, kind_name
from broker_config.embedded.client import RpcClient
from broker_config.protocol.buffers import check_size, size
from broker_config.protocol.errors import BrokerUnavailable
from broker_config.transports.interface import MAX_BODY_BYTES, Buffers, ModelAddress

_T = TypeVar("_T")
_MAX_WAIT_SECONDS = 1.0
"""A longer wait is several requests, so that neither side waits long for one that died."""


class SocketDelivery:
    def __init__(
        self, client: RpcClient, properties: dict[str, Any], body: memoryview, max_body_bytes: int
    ) -> None:
        self._client, self._body, self._max_body_bytes = client, body, max_body_bytes
        self._tag: int = properties["tag"]
        self.redelivered: bool = properties["redelivered"]
        self.reason: str | None = properties["reason"]
        self.sender: str | None = None
        self.body_is_inline = True

    @property
    def body(self) -> memoryview:
        check_size(len(self._body), self._max_body_bytes)
        return self._body

    def release_body(self) -> None:
        self._body = memoryview(b"")

    def acknowledge(self) -> None:
        self._client.call("acknowledge", tag=self._tag)

    def requeue(self) -> None:
        self._client.call("requeue", tag=self._tag)

    def reject(self, reason: str) -> None:
        self._client.call("reject", tag=self._tag, reason=reason)


class SocketTransport:
    def __init__(self, path: Path) -> None:
        self._client = RpcClient(path)
        self.max_body_bytes = MAX_BODY_BYTES
        self.bytes_sent: Counter[str] = Counter()
        self.bytes_received: Counter[str] = Counter()

    def declare(self, *queues: str) -> None:
        self._client.call("declare", queues=queues)

    def publish(self, queue: str, body: Buffers) -> None:
        self._client.call("publish", body, queue=queue)
        self.bytes_sent[kind_name(queue)] += size(body)

    def receive(self, queue: str, timeout_seconds: float) -> SocketDelivery | None:
        def request(wait_seconds: float) -> SocketDelivery | None:
            properties, body = self._client.call_for_body(
                "receive", queue=queue, timeout_seconds=wait_seconds
            )
            if properties is None:
                return None
            self.bytes_received[kind_name(queue)] += len(body)
            return SocketDelivery(self._client, properties, body, self.max_body_bytes)

        return _in_turns(request, timeout_seconds)

    def depth(self, queue: str) -> int | None:
        depth: int | None = self._client.call("depth", queue=queue)
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
        offset = self._client.call("append_model", body, run=run, version=version, kept=kept, entry=entry)
        self.bytes_sent[MODELS.name] += size(body)
        return ModelAddress(run, version, offset, entry)

    def read_model(self, address: ModelAddress) -> memoryview:
        _, body = self._client.call_for_body("read_model", **vars(address))
        self.bytes_received[MODELS.name] += len(body)
        return body

    def acquire_leadership(self, run: str, timeout_seconds: float) -> bool:
        def request(wait_seconds: float) -> bool | None:
            return self._client.call("acquire_leadership", run=run, timeout_seconds=wait_seconds) or None

        return bool(_in_turns(request, timeout_seconds))

    def retire(self, run: str) -> None:
        self._client.call("retire", run=run)

    def timeout_warnings(self, longest_task_seconds: float) -> tuple[str, ...]:  # noqa: ARG002 - it has no time-outs
        return ()

    def close(self) -> None:
        # The broker would notice the closed socket a moment later; after this call it has.
        with suppress(BrokerUnavailable):
            self._client.call("disconnect")
        self._client.close()


def _in_turns(request: Callable[[float], _T | None], timeout_seconds: float) -> _T | None:
    """Repeats `request` with short waits until it has a result or the timeout has passed."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        left = max(0.0, deadline - time.monotonic())
        result = request(min(left, _MAX_WAIT_SECONDS))
        if result is not None or left <= _MAX_WAIT_SECONDS:
            return result
