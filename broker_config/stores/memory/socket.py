"""The memory store of another process, over its Unix socket."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broker_config.embedded.client import RpcClient


class SocketStore:
    outage_seconds = 0.0
    """The process that serves the store ends only with the run."""
    server_id = ""

    def __init__(self, path: Path) -> None:
        self._client = RpcClient(path)

    def begin(self, run: str) -> None:
        self._client.call("begin", run=run)

    def count(self, run: str, counted: int) -> int:
        return int(self._client.call("count", run=run, counted=counted))

    def open_activation(self, run: str, client: int, activation: int) -> None:
        self._client.call("open_activation", run=run, client=client, activation=activation)

    def read(self, run: str, client: int, before_activation: int, at_least: int = 0) -> bytes | None:
        limits = {"before_activation": before_activation, "at_least": at_least}
        found, ledger = self._client.call_for_body("read", run=run, client=client, **limits)
        return bytes(ledger) if found else None

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool:
        return bool(self._client.call("commit", [ledger], run=run, client=client, activation=activation))

    def clients(self, run: str) -> list[int]:
        return list(self._client.call("clients", run=run))

    def latest(self, run: str, clients: Sequence[int] | None = None) -> dict[int, tuple[int, bytes]]:
        wanted = None if clients is None else list(clients)
        return self._read_many("latest", run=run, clients=wanted)

    def ledgers(self, run: str, activations: Mapping[int, int]) -> dict[int, bytes]:
        found = self._read_many("ledgers", run=run, activations=list(activations.items()))
        return {client: ledger for client, (_, ledger) in found.items()}

    def _read_many(self, method: str, **arguments: object) -> dict[int, tuple[int, bytes]]:
        sizes, body = self._client.call_for_body(method, **arguments)
        found: dict[int, tuple[int, bytes]] = {}
        start = 0
        for client, activation, num_bytes in sizes:
            found[client] = (activation, bytes(body[start : start + num_bytes]))
            start += num_bytes
        return found

    def announce(self, topic: str, name: str, facts: Mapping[str, object], ttl_seconds: float) -> None:
        self._client.call("announce", topic=topic, name=name, facts=dict(facts), ttl_seconds=ttl_seconds)

    def withdraw(self, topic: str, name: str) -> None:
        self._client.call("withdraw", topic=topic, name=name)

    def notices(self, topic: str) -> dict[str, dict[str, Any]]:
        return dict(self._client.call("notices", topic=topic))

    def health(self) -> Mapping[str, float]:
        return dict(self._client.call("health"))

    def close(self) -> None:
        self._client.close()
