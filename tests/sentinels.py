"""A private Redis with a replica, and a Sentinel that replaces it by the replica."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from redis import Redis as Client
from redis.exceptions import RedisError

from ops.local.services import Redis
from ops.local.services.brokers_root import broker_command
from ops.local.services.process import LOOPBACK, PrivateService, free_ports, wait_until
from ops.local.services.redis import redis_answers

SERVICE = "ledgers"
_SETTLE_SECONDS = 60.0


class Sentinel(PrivateService):
    name = "Sentinel"
    port_names = ("sentinel",)

    def __init__(self, directory: Path, primary: Redis, port: int, lines: Sequence[str] = ()) -> None:
        """`port`: of `primary`, where this Sentinel finds it; `lines`: more of its configuration"""
        self._program, self._primary_port, self._lines = primary._program, port, lines
        super().__init__(directory)

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.ports['sentinel']}"

    def _command(self) -> Sequence[str]:
        configuration = self.directory / "sentinel.conf"
        lines = (
            f"port {self.ports['sentinel']}",
            f"bind {LOOPBACK}",
            f"dir {self.directory}",
            f"sentinel monitor {SERVICE} {LOOPBACK} {self._primary_port} 1",
            f"sentinel down-after-milliseconds {SERVICE} 1000",
            f"sentinel failover-timeout {SERVICE} 5000",
            *self._lines,
        )
        configuration.write_text("".join(f"{line}\n" for line in lines))
        return broker_command(self._program, str(configuration), "--sentinel")

    def _answers(self) -> bool:
        return redis_answers(self.ports["sentinel"])


@dataclass(frozen=True)
class Pair:
    primary: Redis
    replica: Redis
    sentinel: Sentinel
    login: str = ""

    def url(self, login: str = "", options: str = "") -> str:
        """A Sentinel that is gone for ever is named first."""
        gone = free_ports(["gone"])["gone"]
        places = f"{LOOPBACK}:{gone},{LOOPBACK}:{self.sentinel.ports['sentinel']}"
        return f"redis+sentinel://{login}{places}/{SERVICE}/0{options}"

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
        """From now on it falls behind. Kill the primary within seconds: Sentinel does not promote a replica that has
        been cut off for ten times down-after-milliseconds."""
        with Client.from_url(self.replica.url) as client:
            client.config_set("masterauth", "which the primary does not know")
        with Client.from_url(self.primary.url) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")
            assert wait_until(lambda: client.info("replication")["connected_slaves"] == 0, _SETTLE_SECONDS)

    def fail_over(self) -> None:
        """The primary is gone for ever; returns when its replica is the primary."""
        self.primary.kill()
        with Client.from_url(with_login(self.replica, self.login)) as client:

            def is_primary() -> bool:
                try:
                    return bool(client.info("replication")["role"] == "master")
                except RedisError:  # it ends all connections when it is promoted
                    return False

            assert wait_until(is_primary, _SETTLE_SECONDS)


def with_login(redis: Redis, login: str) -> str:
    return redis.url.replace("//", f"//{login}@") if login else redis.url


@contextmanager
def redis_pair(
    directory: Path, options: Sequence[str] = (), replica_options: Sequence[str] = (), login: str = ""
) -> Iterator[Pair]:
    """`login`: `user:password` with which replica and Sentinel log in, if users must."""
    user, _, password = login.partition(":")
    at_once = ("--repl-diskless-sync-delay", "0")
    with Redis(directory / "primary", options=[*at_once, *options]) as primary:
        follow = ["--replicaof", LOOPBACK, str(primary.port), *options, *replica_options]
        lines: tuple[str, ...] = ()
        if login:
            follow += ["--masteruser", user, "--masterauth", password]
            lines = (f"sentinel auth-user {SERVICE} {user}", f"sentinel auth-pass {SERVICE} {password}")
        with Redis(directory / "replica", options=follow) as replica:
            with Client.from_url(with_login(replica, login)) as client:
                is_up = wait_until(
                    lambda: client.info("replication")["master_link_status"] == "up", _SETTLE_SECONDS
                )
            assert is_up
            with Sentinel(directory / "sentinel", primary, primary.port, lines) as sentinel:
                with Client.from_url(sentinel.url) as client:
                    assert wait_until(lambda: bool(client.sentinel_slaves(SERVICE)), _SETTLE_SECONDS)
                yield Pair(primary, replica, sentinel, login)
