"""The memory store for other processes than the one that keeps it."""

from pathlib import Path

from broker_config.link import Link


class SocketStore:
    def __init__(self, path: Path) -> None:
        self._link = Link(path)

    def open_activation(self, run: str, client: int, activation: int) -> None:
        self._link.ask("open_activation", {"run": run, "client": client, "activation": activation})

    def read(self, run: str, client: int, before_activation: int) -> bytes | None:
        fields = {"run": run, "client": client, "before_activation": before_activation}
        answer, body = self._link.ask("read", fields)
        return bytes(body) if answer["found"] else None

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool:
        fields = {"run": run, "client": client, "activation": activation}
        answer, _ = self._link.ask("commit", fields, [ledger])
        return bool(answer["written"])

    def latest(self, run: str) -> dict[int, tuple[int, bytes]]:
        answer, body = self._link.ask("latest", {"run": run})
        newest: dict[int, tuple[int, bytes]] = {}
        start = 0
        for client, activation, num_bytes in answer["ledgers"]:
            newest[client] = (activation, bytes(body[start : start + num_bytes]))
            start += num_bytes
        return newest

    def close(self) -> None:
        self._link.close()
