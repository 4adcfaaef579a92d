"""The nodes of a Redis: one, or those that Sentinels or a cluster know."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry

Client = Any
"""redis.Redis; its annotations differ from version to version, so it is not typed."""


@dataclass(frozen=True)
class Node:
    url: str
    is_replica: bool = False
    lacks_replica: bool = False
    """None could take over from it, but one should."""


@dataclass(frozen=True)
class KnownNodes:
    found: Sequence[Node]
    """Primaries first"""
    missing: Sequence[str] = ()
    """Addresses of replicas that do not answer"""


class Nodes(Protocol):
    """`keeping` and `primaries` return clients of single nodes, by their addresses. The methods raise redis-py's
    errors, all of them derived from RedisError or OSError."""

    endpoint: str
    """All of them, for messages"""
    options: Mapping[str, Any]
    """Of the connections to a node"""
    replaces_primaries: bool
    """By a replica, when one is gone"""
    is_cluster: bool

    def keeping(self, key: str | None, /) -> Mapping[str, Client]:
        """The primary that has the key; without one, any."""

    def primaries(self) -> Mapping[str, Client]: ...

    def known(self) -> KnownNodes: ...

    def look_again(self) -> None:
        """Called when a command has failed that may succeed at another node"""

    def close(self) -> None: ...


class OneNode:
    """A primary at a fixed address, or the one that the connection pool of `client` finds"""

    replaces_primaries = is_cluster = False

    def __init__(self, url: str, client: Client, endpoint: str | None = None) -> None:
        self._url, self._client = url, client
        self.options: Mapping[str, Any] = client.connection_pool.connection_kwargs
        self.endpoint = (
            endpoint or f"{self.options.get('host', 'localhost')}:{self.options.get('port', 6379)}"
        )

    def keeping(self, _: str | None) -> Mapping[str, Client]:
        return self.primaries()

    def primaries(self) -> Mapping[str, Client]:
        return {self.endpoint: self._client}

    def known(self) -> KnownNodes:
        return KnownNodes([Node(self._url)])

    def look_again(self) -> None:
        # A new connection may reach the new primary; the open ones stay with this one.
        self._client.connection_pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        self._client.close()


def node_client(url: str) -> Client:
    """Raises ValueError or TypeError for a wrong URL."""
    client: Client = redis.Redis.from_url(url, **common_options())
    client.connection_pool.make_connection()
    return client


def common_options() -> dict[str, Any]:
    return {
        # Replies have the same shape in all versions of redis-py, and old servers understand it.
        "protocol": 2,
        "socket_timeout": 20.0,
        "socket_connect_timeout": 5.0,
        "socket_keepalive": True,
        # Our retries have a deadline, report what they wait for and can be stopped.
        "retry": Retry(NoBackoff(), 0),
        **_no_client_info(),
    }


def _no_client_info() -> dict[str, Any]:
    """Keeps redis-py from sending CLIENT SETINFO, which our ACL denies: from 7.2 on Redis would log every connection
    as a violation. Newer versions of redis-py have `driver_info` instead of the other two."""
    known = inspect.signature(AbstractConnection.__init__).parameters
    return dict.fromkeys(["driver_info"] if "driver_info" in known else ["lib_name", "lib_version"])
