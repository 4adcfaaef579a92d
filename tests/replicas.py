"""A private Redis with a replica that something makes the primary when that is gone."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from redis import Redis as Client
from redis.exceptions import RedisError

from ops.local.services import Redis
from ops.local.services.process import wait_until

SETTLE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Replicated:
    primary: Redis
    replica: Redis
    login: str = ""
    """`user:password` of an administrator, if users must log in"""

    @contextmanager
    def frozen_replica(self) -> Iterator[None]:
        """It does not answer, and its connection stays."""
        process = self.replica._process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def cut_replica_off(self) -> None:
        """From now on it falls behind. Kill the primary within seconds: a replica that has been cut off for ten times
        as long as it takes to notice that a primary is gone does not become one."""
        with client_of(self.replica, self.login) as client:
            client.config_set("masterauth", "which the primary does not know")
        with client_of(self.primary, self.login) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")
            assert wait_until(lambda: client.info("replication")["connected_slaves"] == 0, SETTLE_SECONDS)

    def fail_over(self) -> None:
        """The primary is gone for ever; returns when its replica is the primary."""
        self.primary.kill()
        with client_of(self.replica, self.login) as client:

            def is_primary() -> bool:
                try:
                    return bool(client.info("replication")["role"] == "master")
                except RedisError:  # it ends all connections when it is promoted
                    return False

            assert wait_until(is_primary, SETTLE_SECONDS)


def client_of(redis: Redis, login: str = "") -> Any:
    return Client.from_url(redis.url.replace("//", f"//{login}@") if login else redis.url)
