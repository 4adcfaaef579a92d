"""Real brokers with generated configuration: accounts of a server, an administrator and some sites."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker_config.brokers.definitions import (
    ADMIN_USER,
    VHOST,
    SiteLimits,
    rabbitmq_definitions,
    rabbitmq_password_hash,
    redis_acl,
    redis_password_hash,
    users_of,
)
from ops.broker.management import Management
from ops.local.services import Redis
from tests.services import RabbitMQ, needed, private_rabbitmq


@dataclass(frozen=True)
class Brokers:
    rabbitmq: RabbitMQ
    redis: Redis

    def broker_url(self, user: str) -> str:
        return self.rabbitmq.url_of(user, password_of(user), VHOST)

    def store_url(self, user: str) -> str:
        return self.redis.url.replace("//", f"//{user}:{password_of(user)}@")

    @property
    def management_url(self) -> str:
        return self.rabbitmq.management_url.replace("//", f"//{ADMIN_USER}:{password_of(ADMIN_USER)}@")

    @property
    def management(self) -> Management:
        return Management(self.management_url)


def password_of(user: str) -> str:
    return f"word-of-{user}"


@contextmanager
def configured_brokers(
    directory: Path, *sites: str, limits: SiteLimits | None = None, redis_options: Sequence[str] = ()
) -> Iterator[Brokers]:
    users = (*users_of(sites), ADMIN_USER)
    hashes = {user: rabbitmq_password_hash(user, password_of(user)) for user in users}
    definitions, acl = directory / "definitions.json", directory / "users.acl"
    definitions.write_text(json.dumps(rabbitmq_definitions(sites, hashes, limits=limits)))
    acl.write_text(redis_acl({user: redis_password_hash(password_of(user)) for user in users}))
    with (
        needed(
            lambda: private_rabbitmq(directory / "mq", definitions=definitions, management=True)
        ) as rabbitmq,
        needed(lambda: Redis(directory / "redis", options=["--aclfile", str(acl), *redis_options])) as redis,
    ):
        yield Brokers(rabbitmq, redis)


def put_rabbitmqctl(folder: Path, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a shell script of this name first on the PATH."""
    script = folder / "rabbitmqctl"
    script.write_text(f"#!/bin/sh\n{line}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
