"""Administration of Redis: users, and a check of its settings and of a user's permissions."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from redis.exceptions import ResponseError

from broker_config.process.retry import RetryPolicy
from broker_config.protocol.errors import BrokerRefused, FedILError
from broker_config.stores.redis.connection import NodeOfCluster, RedisConnection
from broker_config.stores.redis.nodes import Client, Node
from broker_config.stores.redis.server_check import problems

_RETRY = RetryPolicy(seconds=5.0)
_CLUSTER, _SENTINELS = "of a cluster", "behind Sentinels"


@dataclass(frozen=True)
class AclUser:
    rules: Sequence[str]
    password_hash: str | None
    """None keeps the present password."""


@contextmanager
def open_admin(url: str) -> Iterator["RedisAdmin"]:
    with ExitStack() as stack:

        def connect(node: str) -> RedisConnection:
            return stack.enter_context(closing(RedisConnection(node, _RETRY)))

        nodes = connect(url).known_nodes()
        yield RedisAdmin([connect(node.url) for node in nodes.found], nodes.missing)


class RedisAdmin:
    """Redis does not replicate its users: they are set at each node that the Sentinels or the cluster know."""

    def __init__(self, nodes: Sequence[RedisConnection], missing: Sequence[str]) -> None:
        """`nodes`: first a primary, whose users and passwords count"""
        self._nodes = nodes
        self.missing = missing
        """Addresses of replicas that do not answer"""

    def users(self) -> frozenset[str]:
        """Raises FedILError if a node does not let this administrator in."""
        names = [node.call(lambda redis: redis.execute_command("ACL", "USERS")) for node in self._nodes]
        return frozenset(name.decode() for name in names[0])

    def set_users(self, users: Mapping[str, AclUser]) -> None:
        """One command per user, so that no user has too many permissions in between."""
        for node in self._nodes:
            for name, user in users.items():
                hashes = [user.password_hash] if user.password_hash else []
                if not hashes and node is not self._nodes[0]:
                    hashes = self._present_hashes(name)
                # "reset" would also delete the password.
                password = ["reset", *(f"#{each}" for each in hashes)] if hashes else []
                command = ("ACL", "SETUSER", name, *password, "on", *user.rules)
                node.call(methodcaller("execute_command", *command))

    def _present_hashes(self, name: str) -> list[str]:
        facts = self._nodes[0].call(lambda redis: redis.execute_command("ACL", "GETUSER", name))
        return [found.decode() for found in facts[facts.index(b"passwords") + 1]]

    def save_users(self) -> list[str]:
        """Addresses of the nodes without an aclfile, which forget their users when they restart"""

        def save(redis: Client) -> bool:
            try:
                redis.execute_command("ACL", "SAVE")
            except ResponseError as error:
                if "not configured to use an ACL file" not in str(error):
                    raise
                return False
            return True

        return [node.endpoint for node in self._nodes if not node.call(save)]


@dataclass(frozen=True)
class RedisReport:
    endpoint: str
    product: str
    """Name and version"""
    wrong: tuple[str, ...]
    """One sentence each, with the remedy"""
    unknown: tuple[str, ...]
    """What this user has no permission to see"""
    url: str
    """Of this node"""
    place: str
    """Alone, or a primary or replica of several"""
    clock_ahead_seconds: float


def inspect_redis(url: str, own_key: str, foreign_key: str | None) -> Iterator[RedisReport]:
    """Checks each node as the user in `url`, who must be able to read `own_key` and not `foreign_key`. Raises
    FedILError if one does not answer."""
    with closing(RedisConnection(url, _RETRY)) as connection:
        nodes = connection.known_nodes()
        group = _CLUSTER if connection.is_cluster else _SENTINELS if connection.replaces_primaries else ""
    for node in nodes.found:
        with closing(RedisConnection(node.url, _RETRY)) as connection:
            yield _inspect(node, connection, own_key, foreign_key, group)
    if nodes.missing:
        raise FedILError(f"Redis at {', '.join(nodes.missing)}, a replica, does not answer: start it")


def _inspect(
    node: Node, connection: RedisConnection, own_key: str, foreign_key: str | None, group: str
) -> RedisReport:
    info: dict[str, Any] = connection.call(lambda redis: redis.info())
    found = problems(info, is_replica=node.is_replica, in_cluster=group == _CLUSTER)
    wrong = [f"it {problem.text}" for problem in found]
    if node.lacks_replica:
        wrong.append("it has no replica that could take over: start one")
    forgets, may_forget = _forgotten_users(connection, info)
    wrong += [
        *_late_writes(connection, info),
        *forgets,
        *_wrong_permissions(connection, own_key, foreign_key, node.is_replica),
    ]
    place = f"{'replica' if node.is_replica else 'primary'} {group}" if group else "alone"
    return RedisReport(
        connection.endpoint,
        _product(info),
        tuple(wrong),
        tuple(may_forget),
        node.url,
        place,
        _clock_ahead(connection),
    )


def _clock_ahead(connection: RedisConnection) -> float:
    def ahead(redis: Client) -> float:
        seconds, microseconds = redis.time()
        return float(seconds + microseconds / 1e6 - time.time())

    return connection.call(ahead)


def accepts_anonymous(url: str) -> bool:
    """`url` has no credentials."""
    with closing(RedisConnection(url, RetryPolicy(seconds=0.0))) as connection:
        try:
            return bool(connection.call(lambda redis: redis.ping()))
        except FedILError:
            return False


def _product(info: Mapping[str, Any]) -> str:
    """Valkey reports in `redis_version` the version of Redis that it is compatible with."""
    valkey = info.get("valkey_version")
    return f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"


def _forgotten_users(connection: RedisConnection, info: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Problems, and possible problems, with users after a restart."""

    def read_aclfile(redis: Client) -> str | None:
        try:
            if set(redis.acl_users()) <= {"default", b"default"}:
                return "not needed"
            return str(redis.config_get("aclfile").get("aclfile", ""))
        except ResponseError:  # only an administrator may read it
            return None

    aclfile, remedy = connection.call(read_aclfile), "give it an aclfile, then run fedil broker init again"
    if aclfile is None:
        return [], ["it must have an aclfile, else it forgets its users when it restarts"]
    if aclfile:
        return [], []
    if info.get("config_file"):
        return [], [f"when it restarts it forgets all users that its redis.conf does not name: {remedy}"]
    return [f"it forgets its users when it restarts: {remedy}"], []


def _late_writes(connection: RedisConnection, info: Mapping[str, Any]) -> Iterator[str]:
    def read_fsync(redis: Client) -> str:
        try:
            return str(redis.config_get("appendfsync").get("appendfsync", ""))
        except ResponseError:  # only an administrator may read it
            return ""

    if info.get("aof_enabled") and connection.call(read_fsync) in ("everysec", "no"):
        yield (
            "it may lose what it has confirmed in a power failure: redis-cli CONFIG SET appendfsync always, and in "
            "redis.conf"
        )


def _wrong_permissions(
    connection: RedisConnection, own_key: str, foreign_key: str | None, is_replica: bool
) -> Iterator[str]:
    if (refusal := _refusal(connection, lambda redis: redis.hmget(own_key, "opened"))) is not None:
        yield refusal
    # A replica is waited for with this command, which only a primary accepts.
    if not is_replica and (refusal := _refusal(connection, lambda redis: redis.wait(0, 1))) is not None:
        yield refusal
    if (
        foreign_key is not None
        and _refusal(connection, lambda redis: redis.hmget(foreign_key, "opened")) is None
    ):
        yield "this user may read the ledgers of other sites: run fedil broker init for its site"


def _refusal(connection: RedisConnection, command: Callable[[Client], object]) -> str | None:
    try:
        connection.call(command)
    except NodeOfCluster:
        return None  # another node has the key: permissions are looked at first
    except BrokerRefused as error:
        return str(error)
    return None
