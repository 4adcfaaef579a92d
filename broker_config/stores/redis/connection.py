"""A connection to Redis that repeats commands while Redis is unavailable and translates redis-py's errors."""

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis import exceptions

from broker_config.process.retry import Retrier, RetriesExhausted, RetryPolicy
from broker_config.protocol.errors import AddressWrong, BrokerRefused, BrokerUnavailable, FedILError
from broker_config.stores.redis import cluster, sentinel
from broker_config.stores.redis.nodes import Client, KnownNodes, Nodes, OneNode, node_client

_T = TypeVar("_T")
_UNREACHABLE = (
    *(exceptions.ConnectionError, exceptions.TimeoutError, OSError),
    *(exceptions.ReadOnlyError, exceptions.MasterDownError),
)
"""Includes a Redis that is loading its data (redis-py derives that from ConnectionError) and a primary that has just
become a replica: its name will soon resolve to the new primary."""
_WRONG_CREDENTIALS = (
    exceptions.AuthenticationError,
    exceptions.AuthenticationWrongNumberOfArgsError,
    exceptions.AuthorizationError,
)
_IN_PIPELINE = "of pipeline caused error: "
"""Where redis-py puts the command of a pipeline before the text of its error"""
_REPLICAS = "replicas"
"""Our own option in a URL"""
_ANSWERS_OF_CLUSTERS: dict[str, type[Exception]] = {
    "MOVED": exceptions.MovedError,
    "ASK": exceptions.AskError,
    "TRYAGAIN": exceptions.TryAgainError,
    "CLUSTERDOWN": exceptions.ClusterDownError,
}
_OF_CLUSTERS = tuple(_ANSWERS_OF_CLUSTERS.values())
"""A slot that has moved, is being moved or has no node"""
_MAX_CONFLICTS = 1000
"""Concurrent transactions cause a few; more are an attack."""
NAME_THE_CLUSTER = "write redis+cluster://user:password@host1:6379,host2:6379/ in the store's URL"


class UnexpectedValue(FedILError):
    """A key holds a value that FedIL did not write there."""


class NodeOfCluster(BrokerRefused):
    """The address names a node of a cluster as if it were a single Redis."""


class _Unreachable(BrokerUnavailable):
    pass


class RedisConnection:
    def __init__(self, url: str, retry: RetryPolicy | None = None) -> None:
        """Connects at the first call. `url` may carry redis-py's own options (socket_timeout, ssl_ca_certs, …) and
        `replicas`: how many of them must have a write before it counts as done."""
        url, self.replicas = _take_replicas(url)
        self._nodes = _open_nodes(url)
        self.endpoint = self._nodes.endpoint
        self.replaces_primaries, self.is_cluster = self._nodes.replaces_primaries, self._nodes.is_cluster
        self._user = self._nodes.options.get("username") or "default"
        self._has_password = bool(self._nodes.options.get("password"))
        self._uses_tls = url.startswith("rediss")
        self._retrier = Retrier(f"Redis at {self.endpoint}", retry or RetryPolicy(seconds=10.0))

    @property
    def outage_seconds(self) -> float:
        return self._retrier.outage_seconds

    def call(self, command: Callable[[Client], _T], key: str | None = None) -> _T:
        """Repeats `command` while Redis is unavailable. It must be idempotent: its reply may have been lost. In a
        cluster it gets the node that has `key`: its other keys must have the same hash tag."""

        def attempt() -> _T:
            with self._translated():
                ((endpoint, client),) = self._nodes.keeping(key).items()
            return self._at(endpoint, client, command)

        return self._repeat(attempt)

    def call_each(self, command: Callable[[Client], _T]) -> dict[str, _T]:
        """At each primary, by its address"""

        def attempt() -> dict[str, _T]:
            with self._translated():
                nodes = self._nodes.primaries()
            return {endpoint: self._at(endpoint, client, command) for endpoint, client in nodes.items()}

        return self._repeat(attempt)

    def endpoint_of(self, key: str) -> str:
        """The node that has `key`, as far as it is known now: for messages"""
        try:
            return next(iter(self._nodes.keeping(key)))
        except (exceptions.RedisError, OSError):
            return self.endpoint

    def known_nodes(self) -> KnownNodes:
        def attempt() -> KnownNodes:
            with self._translated():
                return self._nodes.known()

        return self._repeat(attempt)

    def close(self) -> None:
        self._retrier.close()
        self._nodes.close()

    def _repeat(self, attempt: Callable[[], _T]) -> _T:
        try:
            return self._retrier.call(attempt)
        except RetriesExhausted as exhausted:
            if not isinstance(exhausted.__cause__, _Unreachable):
                raise
            # A server that rejects our certificate, or expects TLS, may close the connection without a reason.
            hint = "speaks TLS and accepts ssl_certfile" if self._uses_tls else "needs no TLS (rediss://)"
            raise RetriesExhausted(f"{exhausted}: see that it runs and {hint}, then try again") from exhausted

    def _at(self, endpoint: str, client: Client, command: Callable[[Client], _T]) -> _T:
        with self._translated(endpoint):
            for _ in range(_MAX_CONFLICTS):
                try:
                    return command(client)
                except exceptions.WatchError as raised:
                    # After a conflict the next attempt reads the changed value.
                    if _underlying(raised) is not raised:
                        raise
        raise UnexpectedValue(f"Redis at {endpoint}: {_MAX_CONFLICTS} transactions in a row had conflicts")

    @contextmanager
    def _translated(self, endpoint: str | None = None) -> Iterator[None]:
        try:
            yield
        except (exceptions.RedisError, OSError) as raised:
            translated = self._translate(_underlying(raised), f"Redis at {endpoint or self.endpoint}")
            if isinstance(translated, BrokerUnavailable):
                self._nodes.look_again()
            raise translated from raised

    def _translate(self, error: Exception, where: str) -> FedILError:
        text = str(error)
        if isinstance(error, _WRONG_CREDENTIALS):
            if not self._has_password:
                return BrokerRefused(f"{where} wants a password: put it into the store's URL")
            return BrokerRefused(
                f"{where} does not let in user {self._user!r} ({text.rstrip('.')}): "
                "check name and password in the store's URL. A Redis without an aclfile forgets its users when it "
                "restarts: then run fedil broker init again"
            )
        if (tls_error := _tls_error(error)) is not None:
            return BrokerRefused(
                f"no TLS with {where} ({tls_error}): check ssl_ca_certs, ssl_certfile and "
                "ssl_keyfile in the store's URL"
            )
        if isinstance(error, exceptions.NoPermissionError):
            return BrokerRefused(
                f"user {self._user!r} has too few rights in {where} ({text}): extend its ACL"
            )
        if isinstance(error, sentinel.SentinelRefuses):
            return BrokerRefused(f"{where}: {text}")
        of_cluster = isinstance(error, _OF_CLUSTERS) and not isinstance(error, _UNREACHABLE)
        if of_cluster and not self.is_cluster:
            return NodeOfCluster(f"{where} is one node of a cluster: {NAME_THE_CLUSTER}")
        if "cluster support disabled" in text or "Cluster mode is not enabled" in text:
            return BrokerRefused(f"{where} is in no cluster: write redis:// in the store's URL")
        if isinstance(error, exceptions.OutOfMemoryError):
            return BrokerUnavailable(
                f"{where} is full: raise maxmemory, or delete keys of old runs. Nothing committed is lost"
            )
        brief = f"{text.rpartition(_IN_PIPELINE)[2].rstrip('.'):.200}"
        if "MISCONF " in text:
            return BrokerUnavailable(f"{where} cannot write to its disk: free space ({brief})")
        if "NOREPLICAS " in text:
            return BrokerUnavailable(f"{where} has fewer replicas than its min-replicas-to-write: start them")
        if isinstance(error, exceptions.AskError):  # also MovedError
            moves = "has moved" if isinstance(error, exceptions.MovedError) else "is being moved"
            return BrokerUnavailable(f"{where}: slot {error.slot_id} {moves} to {error.host}:{error.port}")
        if of_cluster:
            return BrokerUnavailable(
                f"{where} is down or has slots without a node ({brief}): see that its nodes run, and what redis-cli "
                "--cluster check says"
            )
        if isinstance(error, _UNREACHABLE) or text.startswith("BUSY "):
            return _Unreachable(f"{where} is away ({brief})")
        if "WRONGTYPE" in text:
            return UnexpectedValue(f"{where}: {text:.200}")
        return BrokerRefused(f"{where} refuses what FedIL asks: {text:.300}")


def _take_replicas(url: str) -> tuple[str, int]:
    """The URL without our own option, and its value"""
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    values = [value for name, value in options if name == _REPLICAS]
    if not values:
        return url, 1
    if not values[0].isdecimal() or int(values[0]) > 9:
        raise AddressWrong("the store's URL has a wrong option: write replicas=1, or 0 to wait for none")
    others = urlencode([option for option in options if option[0] != _REPLICAS])
    return parts._replace(query=others).geturl(), int(values[0])


def _open_nodes(url: str) -> Nodes:
    kind = urlsplit(url).scheme
    try:
        if kind.endswith(cluster.SUFFIX):
            return cluster.ClusterNodes(url)
        if kind.endswith(sentinel.SUFFIX):
            return sentinel.NodesBehindSentinels(url)
        return OneNode(url, node_client(url))
    except (ValueError, TypeError) as error:
        # Other ValueErrors may quote a part of a password that contains a "/".
        is_harmless = isinstance(error, TypeError) or "Invalid value for" in str(error)
        cause = f" ({error})" if is_harmless else ""
        raise AddressWrong(
            f"the store's URL cannot be read{cause}: write redis://user:password@host:6379/0, or rediss:// "
            "for TLS, with %2F for a / in the password"
        ) from None


def _underlying(error: Exception) -> Exception:
    """redis-py raises WatchError also for a connection that was lost during a transaction, and up to version 5
    ResponseError for what nodes of clusters answer."""
    if isinstance(error, exceptions.WatchError) and isinstance(error.__context__, _UNREACHABLE):
        return error.__context__
    answer, _, details = str(error).rpartition(_IN_PIPELINE)[2].partition(" ")
    if isinstance(error, exceptions.ResponseError) and answer in _ANSWERS_OF_CLUSTERS:
        return _ANSWERS_OF_CLUSTERS[answer](details)
    return error


def _tls_error(error: Exception) -> Exception | None:
    """A TLS problem that waiting does not solve: certificates that do not match, or files that do not exist."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        return None  # the other side disconnected during the handshake
    return cause if isinstance(cause, ssl.SSLError | FileNotFoundError | PermissionError) else None
