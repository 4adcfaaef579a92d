"""The memory store of another process, over its Unix socket."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from broker_config.embedded.client import RpcClient
from broker_config.process.retry import Retrier, RetryPolicy
from broker_config.transports.interface import Buffers


class SocketStore:
    server_id = ""

    def __init__(self, path: Path, retry: RetryPolicy | None = None) -> None:
        self._retrier = Retrier("the store", retry or RetryPolicy(seconds=0.0))
        self._connect = partial(RpcClient, path)
        self._client = self._retrier.call(self._connect)

    @property
    def outage_seconds(self) -> float:
        return self._retrier.outage_seconds

    def begin(self, run: str, site: str) -> None:
        self._call("begin", run=run, site=site)

    def count(self, run: str, site: str, counted: int) -> int:
        return int(self._call("count", run=run, site=site, counted=counted)[0])

    def open_activation(self, run: str, client: int, activation: int) -> None:
        self._call("open_activation", run=run, client=client, activation=activation)

    def read(self, run: str, client: int, before_activation: int, at_least: int = 0) -> bytes | None:
        limits = {"before_activation": before_activation, "at_least": at_least}
        found, ledger = self._call("read", run=run, client=client, **limits)
        return bytes(ledger) if found else None

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool:
        return bool(self._call("commit", [ledger], run=run, client=client, activation=activation)[0])

    def clients(self, run: str) -> list[int]:
        return list(self._call("clients", run=run)[0])

    def latest(self, run: str, clients: Sequence[int] | None = None) -> dict[int, tuple[int, bytes]]:
        wanted = None if clients is None else list(clients)
        found, body = self._call("latest", run=run, clients=wanted)
        ledgers = _cut(body, found)
        return {client: (activation, next(ledgers)) for client, activation, _ in found}

    def ledgers(self, run: str, activations: Mapping[int, int]) -> dict[int, bytes]:
        found, body = self._call("ledgers", run=run, activations=list(activations.items()))
        ledgers = _cut(body, found)
        return {client: next(ledgers) for client, _ in found}

    def announce(self, topic: str, name: str, facts: Mapping[str, object], ttl_seconds: float) -> None:
        self._call("announce", topic=topic, name=name, facts=dict(facts), ttl_seconds=ttl_seconds)

    def withdraw(self, topic: str, name: str) -> None:
        self._call("withdraw", topic=topic, name=name)

    def notices(self, topic: str) -> dict[str, dict[str, Any]]:
        return dict(self._call("notices", topic=topic)[0])

    def health(self) -> Mapping[str, float]:
        return dict(self._call("health")[0])

    def close(self) -> None:
        self._retrier.close()
        self._client.close()

    def _call(self, method: str, body: Buffers = (), /, **arguments: object) -> tuple[Any, memoryview]:
        def attempt() -> tuple[Any, memoryview]:
            if self._client.is_closed:
                self._client = self._connect()
            return self._client.call(method, body, **arguments)

        return self._retrier.call(attempt)


def _cut(body: memoryview, found: Iterable[Sequence[int]]) -> Iterator[bytes]:
    """The ledgers of which `found` says the sizes, last in each entry"""
    for *_, size in found:
        yield bytes(body[:size])
        body = body[size:]
