"""Real services for tests, benchmarks and chaos scripts: containers where a Docker engine answers, else programs of
this machine. A test without its service is skipped by plain pytest, and fails in `ops/scripts/test` and in CI."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeVar

from ops.local.services import Redis, ServiceFailed, ServiceMissing, rabbitmq
from ops.local.services.brokers_root import broker_command
from ops.local.services.process import LOOPBACK
from ops.local.services.rabbitmq import SETTINGS, find_script, write_settings
from ops.local.services.redis import DURABLE
from tests.containers import contained_rabbitmq, contained_redis, engine_answers

CHOICE = "FEDIL_SERVICES"
Started = TypeVar("Started")


class Service(Protocol):
    """A broker or store that tests may kill. As a context manager it is killed on exit."""

    @property
    def url(self) -> str: ...

    def start(self) -> None:
        """Starts it again with the same ports and data; returns when it answers."""

    def kill(self) -> None:
        """Ends it like a power failure: SIGKILL, data as it is on disk."""

    def stop(self) -> None:
        """Ends it with SIGTERM."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class RabbitMQ(rabbitmq.RabbitMQ):
    """With access for administrators"""

    def url_of(self, user: str, password: str, vhost: str = "%2F") -> str:
        return f"amqp://{user}:{password}@{LOOPBACK}:{self.port}/{vhost}"

    @property
    def management_url(self) -> str:
        """Of a node with `management`."""
        return f"http://{LOOPBACK}:{self.ports['management']}"

    def ctl(self, *arguments: str) -> str:
        """Runs rabbitmqctl and returns its output."""
        command = rabbitmqctl("--quiet", *arguments)
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServiceFailed(f"rabbitmqctl {' '.join(arguments)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout


def rabbitmqctl(*arguments: str) -> list[str]:
    """The command that runs rabbitmqctl of the same release as the node."""
    return broker_command(find_script("rabbitmqctl"), *arguments)


def private_rabbitmq(
    directory: Path,
    *,
    config: str = "",
    definitions: Path | None = None,
    management: bool = False,
    metrics: bool = False,
) -> RabbitMQ:
    """`config` is text for rabbitmq.conf, which overrides the default settings. With `definitions` there is no user
    guest, unless they contain it."""
    plugins = [plugin for plugin, wanted in (("management", management), ("prometheus", metrics)) if wanted]
    settings = SETTINGS | read_settings(config)
    if definitions:
        settings["load_definitions"] = str(definitions.resolve())
    return RabbitMQ(directory, settings, plugins)


def read_settings(config: str) -> dict[str, str]:
    lines = [line.strip() for line in config.splitlines()]
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {key.strip(): value.strip() for key, _, value in pairs}


@dataclass(frozen=True)
class Services:
    rabbitmq: Service
    redis: Service


@contextmanager
def services(directory: Path) -> Iterator[Services]:
    with (
        rabbitmq_service(directory / "rabbitmq") as broker,
        redis_service(directory / "redis") as store,
    ):
        yield Services(broker, store)


def rabbitmq_service(directory: Path, *, config: str = "") -> Service:
    if uses_docker():
        return contained_rabbitmq(write_settings(SETTINGS | read_settings(config)))
    return _or_docker(lambda: private_rabbitmq(directory, config=config))


def redis_service(directory: Path, *, options: Sequence[str] = ()) -> Service:
    if uses_docker():
        return contained_redis([*DURABLE, *options])
    return _or_docker(lambda: Redis(directory, options=options))


def _or_docker(start: Callable[[], Service]) -> Service:
    try:
        return start()
    except ServiceMissing as missing:
        raise ServiceMissing(f"{missing}, or start Docker") from missing


def uses_docker() -> bool:
    choice = os.environ.get(CHOICE, "")
    if choice not in ("", "docker", "native"):
        raise ServiceMissing(f"{CHOICE}={choice}: it may be docker or native, or not set")
    if choice == "docker" and not engine_answers():
        raise ServiceMissing(
            f"{CHOICE}=docker, but no engine answers: pip install testcontainers, start Docker"
        )
    return choice == "docker" or (not choice and engine_answers())


@contextmanager
def temporary_services() -> Iterator[Services]:
    """RabbitMQ and Redis in a temporary folder, for use outside of pytest."""
    with tempfile.TemporaryDirectory(prefix="fedil-") as folder, services(Path(folder)) as both:
        yield both


def needed(start: Callable[[], Started]) -> Started:
    """Starts a service; without its program the test is skipped, or fails if all tests must run."""
    import pytest

    try:
        return start()
    except ServiceMissing as missing:
        if must_run_everything():
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


def must_run_everything() -> bool:
    """Set by `ops/scripts/test` and by CI systems."""
    values = (os.environ.get(name, "") for name in ("CI", "FEDIL_REQUIRE_SERVICES"))
    return any(value.lower() not in ("", "0", "false", "no") for value in values)
