"""The memory transport for other processes than the broker's own."""

import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker_config.brokers.topology import MODELS, kind_name
from broker_config.embedded.frames import Link
from broker_config.protocol.buffers import check_size, size
from broker_config.protocol.errors import BrokerUnavailable
from broker_config.transports.interface import MAX_BODY_BYTES, Buffers, ModelAddress

_LONGEST_WAIT_SECONDS = 1.0
"""A longer time-out asks again, so that neither side waits long for one that died."""


class SocketDelivery:
    def __init__(self, link: Link, about: dict[str, Any], body: memoryview, max_body_bytes: int) -> None:
        self._link, self._body, self._max_body_bytes = link, body, max_body_bytes
        self._tag: int = about["tag"]
        self.redelivered: bool = about["redelivered"]
        self.reason: str | None = about["reason"]
        self.sender: str | None = None
        self.is_at_hand = True

    @property
    def body(self) -> memoryview:
        check_size(len(self._body), self._max_body_bytes)
        return self._body

    def release_body(self) -> None:
        self._body = memoryview(b"")

    def acknowledge(self) -> None:
        self._settle("acknowledge")

    def requeue(self) -> None:
        self._settle("requeue")

    def reject(self, reason: str) -> None:
        self._settle("reject", reason)

    def _settle(self, how: str, reason: str | None = None) -> None:
        self._link.ask("settle", {"tag": self._tag, "how": how, "reason": reason})


class SocketTransport:
    def __init__(self, path: Path) -> None:
        self._link = Link(path)
        self.max_body_bytes = MAX_BODY_BYTES
        self.bytes_sent: Counter[str] = Counter()
        self.bytes_received: Counter[str] = Counter()

    def declare(self, *queues: str) -> None:
        self._link.ask("declare", {"queues": queues})

    def publish(self, queue: str, body: Buffers) -> None:
        self._link.ask("publish", {"queue": queue}, body)
        self.bytes_sent[kind_name(queue)] += size(body)

    def receive(self, queue: str, timeout_seconds: float) -> SocketDelivery | None:
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            wait_seconds = min(left, _LONGEST_WAIT_SECONDS)
            about, body = self._link.ask("receive", {"queue": queue, "timeout_seconds": wait_seconds})
            if about["tag"] is not None:
                self.bytes_received[kind_name(queue)] += len(body)
                return SocketDelivery(self._link, about, body, self.max_body_bytes)
            if left <= _LONGEST_WAIT_SECONDS:
                return None

    def depth(self, queue: str) -> int | None:
        depth: int | None = self._link.ask("depth", {"queue": queue})[0]["depth"]
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
        fields = {"run": run, "version": version, "kept": kept, "entry": entry}
        answer, _ = self._link.ask("append_model", fields, body)
        self.bytes_sent[MODELS.name] += size(body)
        return ModelAddress(run, version, answer["offset"], entry)

    def read_model(self, address: ModelAddress) -> memoryview:
        body = self._link.ask("read_model", vars(address))[1]
        self.bytes_received[MODELS.name] += len(body)
        return body

    def take_lead(self, run: str, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            wait_seconds = min(left, _LONGEST_WAIT_SECONDS)
            answer, _ = self._link.ask("take_lead", {"run": run, "timeout_seconds": wait_seconds})
            if answer["leads"] or left <= _LONGEST_WAIT_SECONDS:
                return bool(answer["leads"])

    def retire(self, run: str) -> None:
        self._link.ask("retire", {"run": run})

    def concerns(self, longest_task_seconds: float) -> tuple[str, ...]:  # noqa: ARG002 - it waits for ever
        return ()

    def close(self) -> None:
        # The broker would notice the closed socket, but only a moment later; asking makes it certain.
        with suppress(BrokerUnavailable):
            self._link.ask("release", {})
        self._link.close()
