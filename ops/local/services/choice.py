"""Services for tests: containers where a Docker engine answers, else programs of this machine."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ops.local.services.docker import contained_rabbitmq, contained_redis, engine_answers
from ops.local.services.process import Service, ServiceMissing
from ops.local.services.rabbitmq import SETTINGS, private_rabbitmq, read_settings, write_settings
from ops.local.services.redis import DURABLE, private_redis

CHOICE = "FEDIL_SERVICES"


@dataclass(frozen=True)
class Services:
    rabbitmq: Service
    redis: Service


@contextmanager
def services(directory: Path) -> Iterator[Services]:
    with (
        rabbitmq_service(directory / "rabbitmq") as rabbitmq,
        redis_service(directory / "redis") as redis,
    ):
        yield Services(rabbitmq, redis)


def rabbitmq_service(directory: Path, *, config: str = "") -> Service:
    if uses_docker():
        return contained_rabbitmq(write_settings(SETTINGS | read_settings(config)))
    return _or_docker(lambda: private_rabbitmq(directory, config=config))


def redis_service(directory: Path, *, options: Sequence[str] = ()) -> Service:
    if uses_docker():
        return contained_redis([*DURABLE, *options])
    return _or_docker(lambda: private_redis(directory, options=options))


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
