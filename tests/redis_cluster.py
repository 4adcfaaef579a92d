"""A private Redis Cluster: some primaries, each with a replica that takes over when it is gone."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from redis.crc import key_slot

from ops.local.services import Redis
from ops.local.services.process import LOOPBACK, free_ports, wait_until
from tests.replicas import SETTLE_SECONDS, Replicated, client_of

PRIMARIES = 3
_SLOTS = 16384
_NEVER_MS = 60_000


class ClusterNode(Redis):
    name = "Redis Cluster node"
    port_names = ("redis", "bus")

    def __init__(
        self, directory: Path, options: Sequence[str] = (), node_timeout_ms: int = _NEVER_MS
    ) -> None:
        """`node_timeout_ms`: after which a node that does not answer is replaced by its replica"""
        self._node_timeout_ms = node_timeout_ms
        super().__init__(directory, options)

    def _command(self) -> Sequence[str]:
        cluster = {
            "cluster-enabled": "yes",
            "cluster-port": str(self.ports["bus"]),
            "cluster-node-timeout": str(self._node_timeout_ms),
            "repl-diskless-sync-delay": "0",
            "repl-ping-replica-period": "1",
        }
        return [
            *super()._command(),
            *(word for name, value in cluster.items() for word in (f"--{name}", value)),
        ]


@dataclass(frozen=True, kw_only=True)
class Shard(Replicated):
    """With the primary and the replica that it began with"""

    slots: range


@dataclass(frozen=True)
class Cluster:
    shards: Sequence[Shard]
    login: str = ""

    @property
    def nodes(self) -> list[Redis]:
        """Primaries first"""
        return [shard.primary for shard in self.shards] + [shard.replica for shard in self.shards]

    def url(self, login: str = "", options: str = "") -> str:
        """A node that is gone for ever is named first, and not all of the others are."""
        places = [free_ports(["gone"])["gone"], *(node.port for node in self.nodes[1:3])]
        return f"redis+cluster://{login}{','.join(f'{LOOPBACK}:{port}' for port in places)}/{options}"

    def shard_of(self, key: str) -> Shard:
        slot = key_slot(key.encode())
        return next(shard for shard in self.shards if slot in shard.slots)

    def until(self, condition: Callable[[Any], bool], nodes: Sequence[Redis] = ()) -> None:
        """Waits until it holds at each of these nodes, or at all. It is called with a client."""
        for node in nodes or self.nodes:
            with client_of(node, self.login) as client:
                assert wait_until(partial(condition, client), SETTLE_SECONDS)


@contextmanager
def redis_cluster(directory: Path, login: str = "", node_timeout_ms: int = _NEVER_MS) -> Iterator[Cluster]:
    """`login`: `user:password` of an administrator. With one, each node has an ACL file in which the user `default` is
    off."""
    user, _, password = login.partition(":")
    with ExitStack() as stack:

        def start(name: str) -> ClusterNode:
            options: list[str] = []
            if login:
                acl = directory / f"{name}.acl"
                acl.write_text(f"user default off\nuser {user} on >{password} ~* &* +@all\n")
                options = ["--aclfile", str(acl), "--masteruser", user, "--masterauth", password]
            return stack.enter_context(ClusterNode(directory / name, options, node_timeout_ms))

        ends = [_SLOTS * number // PRIMARIES for number in range(PRIMARIES + 1)]
        shards = [
            Shard(
                slots=range(*ends[number : number + 2]),
                primary=start(f"primary-{number}"),
                replica=start(f"replica-{number}"),
                login=login,
            )
            for number in range(PRIMARIES)
        ]
        cluster = Cluster(shards, login)
        _join(cluster)
        yield cluster


def _join(cluster: Cluster) -> None:
    for number, shard in enumerate(cluster.shards):
        with client_of(shard.primary, cluster.login) as client:
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", shard.slots[0], shard.slots[-1])
    first, *others = cluster.nodes
    with client_of(first, cluster.login) as client:
        for node in others:
            client.execute_command("CLUSTER", "MEET", LOOPBACK, node.port, node.ports["bus"])
    cluster.until(lambda client: f"cluster_known_nodes:{len(cluster.nodes)}" in cluster_info(client))
    for shard in cluster.shards:
        with (
            client_of(shard.primary, cluster.login) as primary,
            client_of(shard.replica, cluster.login) as replica,
        ):
            primary_id = primary.execute_command("CLUSTER", "MYID")
            replica.execute_command("CLUSTER", "REPLICATE", primary_id)
    cluster.until(lambda client: known_nodes(client).count("slave") == len(cluster.shards))
    cluster.until(lambda client: "cluster_state:ok" in cluster_info(client))
    replicas = [shard.replica for shard in cluster.shards]
    cluster.until(lambda client: client.info("replication").get("master_link_status") == "up", replicas)


def cluster_info(client: Any) -> str:
    return str(client.execute_command("CLUSTER", "INFO"))


def known_nodes(client: Any) -> str:
    return str(client.execute_command("CLUSTER", "NODES"))
