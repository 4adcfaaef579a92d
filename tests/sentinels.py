"""A private Redis with a replica, and a Sentinel that replaces it by the replica."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from redis import Redis as Client

from ops.local.services import Redis
from ops.local.services.brokers_root import broker_command
from ops.local.services.process import LOOPBACK, PrivateService, free_ports, wait_until
from ops.local.services.redis import redis_answers
from tests.replicas import SETTLE_SECONDS, Replicated, client_of

SERVICE = "ledgers"


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


@dataclass(frozen=True, kw_only=True)
class Pair(Replicated):
    sentinel: Sentinel

    def url(self, login: str = "", options: str = "") -> str:
        """A Sentinel that is gone for ever is named first."""
        gone = free_ports(["gone"])["gone"]
        places = f"{LOOPBACK}:{gone},{LOOPBACK}:{self.sentinel.ports['sentinel']}"
        return f"redis+sentinel://{login}{places}/{SERVICE}/0{options}"


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
            with client_of(replica, login) as client:
                is_up = wait_until(
                    lambda: client.info("replication")["master_link_status"] == "up", SETTLE_SECONDS
                )
            assert is_up
            with Sentinel(directory / "sentinel", primary, primary.port, lines) as sentinel:
                with Client.from_url(sentinel.url) as client:
                    assert wait_until(lambda: bool(client.sentinel_slaves(SERVICE)), SETTLE_SECONDS)
                yield Pair(primary=primary, replica=replica, sentinel=sentinel, login=login)
