"""A private Redis, or Valkey with FEDIL_STORE=valkey, that does not lose confirmed writes."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ops.local.services.brokers_root import broker_command, find_broker_program
from ops.local.services.process import LOOPBACK, PrivateService, ServiceMissing, Tls, ask, listens

# Not everysec, with which a confirmed write may be lost on a kill.
DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")

STORE = "FEDIL_STORE"
_PROGRAMS = {"redis": "redis-server", "valkey": "valkey-server"}


class Redis(PrivateService):
    name = "Redis"
    port_names = ("redis", "tls")

    def __init__(self, directory: Path, options: Sequence[str], tls: Tls | None) -> None:
        self._program = _find_store()
        self._options, self._tls = tuple(options), tls
        super().__init__(directory)

    @property
    def port(self) -> int:
        return self.ports["redis"]

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def tls_url(self) -> str:
        return f"rediss://localhost:{self.ports['tls']}/0"

    def _command(self) -> Sequence[str]:
        listener = ("--port", str(self.port), "--bind", LOOPBACK, "--dir", str(self.directory))
        return broker_command(self._program, *listener, *DURABLE, *self._tls_options(), *self._options)

    def _tls_options(self) -> list[str]:
        if self._tls is None:
            return []
        options = {
            "port": self.ports["tls"],
            "auth-clients": "yes" if self._tls.ask_clients else "no",
            "cert-file": self._tls.certificate,
            "key-file": self._tls.key,
            "ca-cert-file": self._tls.authority,
        }
        return [word for name, value in options.items() for word in (f"--tls-{name}", str(value))]

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    def _answers(self) -> bool:
        return redis_answers(self.port) and (self._tls is None or listens(self.ports["tls"]))


def _find_store() -> str:
    choice = os.environ.get(STORE) or "redis"
    if choice not in _PROGRAMS:
        raise ServiceMissing(f"{STORE}={choice}: it may be redis or valkey, or not set")
    program = _PROGRAMS[choice]
    return find_broker_program(
        program, missing=f"{choice.capitalize()} is not installed: apt install {program}"
    )


def redis_answers(port: int, host: str = LOOPBACK) -> bool:
    # While it loads its data it answers -LOADING.
    return ask(b"PING\r\n", port, host).startswith((b"+PONG", b"-NOAUTH"))


def private_redis(directory: Path, *, options: Sequence[str] = (), tls: Tls | None = None) -> Redis:
    """`options` are arguments of redis-server such as `"--appendfsync", "always"`, which override the defaults."""
    return Redis(directory, options, tls)
