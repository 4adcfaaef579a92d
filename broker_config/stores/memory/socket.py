"""The memory store for other processes than the one that keeps it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broker_config.embedded.frames import Link


class SocketStore:
    away_seconds = 0.0
    """Who keeps it goes only with the run."""

    def __init__(self, path: Path) -> None:
        self._link = Link(path)

    def begin(self, run: str) -> None:
        self._link.ask("begin", {"run": run})

    def check_begun(self, run: str) -> None:
        self._link.ask("check_begun", {"run": run})

    def open_activation(self, run: str, client: int, activation: int) -> None:
        self._link.ask("open_activation", {"run": run, "client": client, "activation": activation})

    def read(self, run: str, client: int, before_activation: int, at_least: int = 0) -> bytes | None:
        fields = {"run": run, "client": client, "before_activation": before_activation, "at_least": at_least}
        answer, body = self._link.ask("read", fields)
        return bytes(body) if answer["found"] else None

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool:
        fields = {"run": run, "client": client, "activation": activation}
        answer, _ = self._link.ask("commit", fields, [ledger])
        return bool(answer["written"])

    def clients(self, run: str) -> list[int]:
        clients: list[int] = self._link.ask("clients", {"run": run})[0]["clients"]
        return clients

    def latest(self, run: str, clients: Sequence[int] | None = None) -> dict[int, tuple[int, bytes]]:
        asked = None if clients is None else list(clients)
        return self._ask_for_ledgers("latest", {"run": run, "clients": asked})

    def ledgers(self, run: str, activations: Mapping[int, int]) -> dict[int, bytes]:
        found = self._ask_for_ledgers("ledgers", {"run": run, "activations": list(activations.items())})
        return {client: ledger for client, (_, ledger) in found.items()}

    def _ask_for_ledgers(self, question: str, fields: dict[str, Any]) -> dict[int, tuple[int, bytes]]:
        answer, body = self._link.ask(question, fields)
        found: dict[int, tuple[int, bytes]] = {}
        start = 0
        for client, activation, num_bytes in answer["ledgers"]:
            found[client] = (activation, bytes(body[start : start + num_bytes]))
            start += num_bytes
        return found

    def announce(self, topic: str, name: str, facts: Mapping[str, object], seconds: float) -> None:
        fields = {"topic": topic, "name": name, "facts": dict(facts), "seconds": seconds}
        self._link.ask("announce", fields)

    def withdraw(self, topic: str, name: str) -> None:
        self._link.ask("withdraw", {"topic": topic, "name": name})

    def notices(self, topic: str) -> dict[str, dict[str, Any]]:
        notices: dict[str, dict[str, Any]] = self._link.ask("notices", {"topic": topic})[0]["notices"]
        return notices

    def health(self) -> Mapping[str, float]:
        health: dict[str, float] = self._link.ask("health", {})[0]["health"]
        return health

    def close(self) -> None:
        self._link.close()
