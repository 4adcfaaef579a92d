"""A private Redis, or Valkey with FEDIL_STORE=valkey, that does not lose confirmed writes."""

import os
from collections.abc import Sequence
from pathlib import Path

from ops.local.services.brokers_root import broker_command, find_broker_program
from ops.local.services.process import LOOPBACK, PrivateService, ServiceMissing, ask

# Not everysec, with which a confirmed write may be lost on a kill.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")

STORE = "FEDIL_STORE"


class Redis(PrivateService):
    name = "Redis"
    port_names: tuple[str, ...] = ("redis",)

    def __init__(self, directory: Path, options: Sequence[str] = ()) -> None:
        """`options` are arguments of redis-server such as `"--appendfsync", "always"`, which override the defaults."""
        self._program = _find_store()
        self._options = tuple(options)
        super().__init__(directory)

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    def _command(self) -> Sequence[str]:
        listener = ("--port", str(self.port), "--bind", LOOPBACK, "--dir", str(self.directory))
        return broker_command(self._program, *listener, *DURABLE, *self._options)

    def _answers(self) -> bool:
        return redis_answers(self.port)


def _find_store() -> str:
    choice = os.environ.get(STORE) or "redis"
    if choice not in ("redis", "valkey"):
        raise ServiceMissing(f"{STORE}={choice}: it may be redis or valkey, or not set")
    missing = f"{choice.capitalize()} is not installed: apt install {choice}-server"
    return find_broker_program(f"{choice}-server", missing=missing)


def redis_answers(port: int, host: str = LOOPBACK) -> bool:
    # While it loads its data it answers -LOADING.
    return ask(b"PING\r\n", port, host).startswith((b"+PONG", b"-NOAUTH"))
