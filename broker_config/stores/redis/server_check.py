"""Whether a Redis server is set up to keep ledgers, judged by its INFO."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from redis import exceptions

from broker_config.protocol.errors import BrokerRefused
from broker_config.stores.redis.connection import NAME_THE_CLUSTER, RedisConnection
from broker_config.stores.redis.nodes import Client

_log = logging.getLogger(__name__)
MIN_VERSION = "7.0"
"""Earlier versions may lose ledgers when they restart: see stores/redis/store.py."""


@dataclass(frozen=True)
class Problem:
    text: str
    """Continues a sentence about the server, and ends with the remedy"""
    is_fatal: bool = False
    """The server cannot keep ledgers at all."""


def check_server(connection: RedisConnection) -> None:
    """Raises BrokerRefused for a server that cannot keep ledgers, and logs its other problems."""

    def read_info(redis: Client) -> dict[str, Any]:
        redis.ping()  # unlike INFO, refused while Redis is loading its data: so its start is waited for
        info: dict[str, Any] = redis.info()
        if connection.replaces_primaries and info.get("role") == "slave":
            raise exceptions.ReadOnlyError("it is a replica, which is being promoted")
        return info

    found = [
        (problem.is_fatal, f"Redis at {endpoint} {problem.text}")
        for endpoint, info in connection.call_each(read_info).items()
        for problem in problems(info, in_cluster=connection.is_cluster)
    ]
    for is_fatal, text in sorted(found, key=lambda each: not each[0]):
        if is_fatal:
            raise BrokerRefused(text)
        _log.warning("%s", text)


def problems(
    info: Mapping[str, Any], *, is_replica: bool = False, in_cluster: bool = False
) -> Iterator[Problem]:
    """`is_replica`, `in_cluster`: it is meant to be one, and in one."""
    if _version(info["redis_version"]) < _version(MIN_VERSION):
        yield Problem(
            f"is version {info['redis_version']}, and may lose ledgers when it restarts: use {MIN_VERSION} or later"
        )
    if info.get("cluster_enabled") and not in_cluster:
        yield Problem(f"is a node of a cluster: {NAME_THE_CLUSTER}", is_fatal=True)
    if is_replica and info.get("master_link_status") == "down":
        yield Problem(
            "has lost its primary and falls behind: see that it can connect and log in (masterauth)"
        )
    if info.get("role") == "slave" and not is_replica:
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        yield Problem(f"is a replica (replica-read-only): use its primary, {primary}", is_fatal=True)
    if not info.get("aof_enabled"):
        yield Problem(
            "has no append-only file and loses ledgers when it dies: redis-cli CONFIG SET appendonly yes, and in "
            "redis.conf"
        )
    elif info.get("aof_last_write_status") != "ok":
        yield Problem("cannot write its append-only file: free space on its disk")
    policy, maxmemory = str(info.get("maxmemory_policy", "")), info.get("maxmemory", 0)
    # The volatile-… policies evict only keys that expire, and ledgers never do.
    if policy.startswith("allkeys"):
        yield Problem(
            f"may evict ledgers (maxmemory-policy {policy}): redis-cli CONFIG SET maxmemory-policy noeviction, and in "
            "redis.conf",
            is_fatal=bool(maxmemory),
        )
    elif 0 < maxmemory <= info["used_memory"]:
        yield Problem(
            "is full and refuses to write: redis-cli CONFIG SET maxmemory BYTES, or fedil "
            "broker retire RUN --ledgers for old runs"
        )


def _version(text: object) -> tuple[int, ...]:
    return tuple(map(int, str(text).split(".")[:2]))
