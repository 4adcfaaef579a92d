"""A connection to Redis that repeats commands while Redis is unavailable and translates redis-py's errors."""

import inspect
import ssl
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry

from broker_config.process.retry import Retrier, RetriesExhausted, RetryPolicy
from broker_config.protocol.errors import AddressWrong, BrokerRefused, BrokerUnavailable, FedILError
from broker_config.stores.redis import sentinel
from broker_config.stores.redis.sentinel import SentinelAddress, is_sentinel_url, parse_sentinel_url

_T = TypeVar("_T")
Client = Any
"""redis.Redis; its annotations differ from version to version, so it is not typed."""

_UNREACHABLE = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError, OSError)
"""Includes a Redis that is loading its data (redis-py derives that from ConnectionError) and a primary that has just
become a replica: its name will soon resolve to the new primary."""
_WRONG_CREDENTIALS = (
    exceptions.AuthenticationError,
    exceptions.AuthenticationWrongNumberOfArgsError,
    exceptions.AuthorizationError,
)
_REPLICAS = "replicas"
"""Our own option in a URL"""
_CLUSTER_NODE = (exceptions.MovedError, exceptions.AskError, exceptions.ClusterError)
_MAX_CONFLICTS = 1000
"""Concurrent transactions cause a few; more are an attack."""


class UnexpectedValue(FedILError):
    """A key holds a value that FedIL did not write there."""


class _Unreachable(BrokerUnavailable):
    pass


class RedisConnection:
    def __init__(self, url: str, retry: RetryPolicy | None = None) -> None:
        """Connects at the first call. `url` may carry redis-py's own options (socket_timeout, ssl_ca_certs, …) and
        `replicas`: how many of them must have a write before it counts as done."""
        url, self.replicas = _take_replicas(url)
        self._sentinels = parse_sentinel_url(url) if is_sentinel_url(url) else None
        self._client = _client_for(url, self._sentinels)
        options = self._client.connection_pool.connection_kwargs
        self.endpoint = (
            str(self._sentinels or "") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
        )
        self._user = options.get("username") or "default"
        self._has_password = bool(options.get("password"))
        self._uses_tls = url.startswith("rediss")
        self._retrier = Retrier(f"Redis at {self.endpoint}", retry or RetryPolicy(seconds=10.0))

    @property
    def outage_seconds(self) -> float:
        return self._retrier.outage_seconds

    def call(self, command: Callable[[Client], _T]) -> _T:
        """Repeats `command` while Redis is unavailable. It must be idempotent: its reply may have been lost."""
        try:
            return self._retrier.call(lambda: self._attempt(command))
        except RetriesExhausted as exhausted:
            if not isinstance(exhausted.__cause__, _Unreachable):
                raise
            # A server that rejects our certificate, or expects TLS, may close the connection without a reason.
            hint = "speaks TLS and accepts ssl_certfile" if self._uses_tls else "needs no TLS (rediss://)"
            raise RetriesExhausted(f"{exhausted}: see that it runs and {hint}, then try again") from exhausted

    @property
    def follows_failovers(self) -> bool:
        return self._sentinels is not None

    def known_replicas(self) -> sentinel.Replicas:
        """As the Sentinels tell; none without Sentinels."""
        address = self._sentinels
        if address is None:
            return sentinel.Replicas((), ())
        return self.call(lambda _: sentinel.replicas(address, _common_options()))

    def close(self) -> None:
        self._retrier.close()
        self._client.close()
        if self._sentinels is not None:
            self._client.connection_pool.sentinel_manager.close()

    def _attempt(self, command: Callable[[Client], _T]) -> _T:
        for _ in range(_MAX_CONFLICTS):
            try:
                return command(self._client)
            except (exceptions.RedisError, OSError) as raised:
                error = _underlying(raised)
                # After a conflict the next attempt reads the changed value.
                if not isinstance(error, exceptions.WatchError):
                    raise self._translate(error) from raised
        raise UnexpectedValue(
            f"Redis at {self.endpoint}: {_MAX_CONFLICTS} transactions in a row had conflicts"
        )

    def _translate(self, error: Exception) -> FedILError:
        where, text = f"Redis at {self.endpoint}", str(error)
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
        if isinstance(error, _CLUSTER_NODE):
            return BrokerRefused(f"{where} is one node of a cluster: FedIL needs a single primary")
        if isinstance(error, exceptions.OutOfMemoryError):
            return BrokerUnavailable(
                f"{where} is full: raise maxmemory, or delete keys of old runs. Nothing committed is lost"
            )
        brief = f"{text.rstrip('.'):.200}"
        if "MISCONF " in text:
            return BrokerUnavailable(f"{where} cannot write to its disk: free space ({brief})")
        if "NOREPLICAS " in text:
            return BrokerUnavailable(f"{where} has fewer replicas than its min-replicas-to-write: start them")
        if isinstance(error, _UNREACHABLE) or text.startswith("BUSY "):
            if isinstance(error, exceptions.ReadOnlyError):
                # A new connection may reach the new primary; the open ones stay with this one.
                self._client.connection_pool.disconnect(inuse_connections=False)
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


def _client_for(url: str, sentinels: SentinelAddress | None) -> Client:
    try:
        client: Client = (
            redis.Redis.from_url(url, **_common_options())
            if sentinels is None
            else sentinel.sentinel_client(sentinels, _common_options())
        )
        client.connection_pool.make_connection()
    except (ValueError, TypeError) as error:
        # Other ValueErrors may quote a part of a password that contains a "/".
        is_harmless = isinstance(error, TypeError) or "Invalid value for" in str(error)
        cause = f" ({error})" if is_harmless else ""
        raise AddressWrong(
            f"the store's URL cannot be read{cause}: write redis://user:password@host:6379/0, or rediss:// "
            "for TLS, with %2F for a / in the password"
        ) from None
    return client


def _no_client_info() -> dict[str, Any]:
    """Keeps redis-py from sending CLIENT SETINFO, which our ACL denies: from 7.2 on Redis would log every connection
    as a violation. Newer versions of redis-py have `driver_info` instead of the other two."""
    known = inspect.signature(AbstractConnection.__init__).parameters
    return dict.fromkeys(["driver_info"] if "driver_info" in known else ["lib_name", "lib_version"])


def _common_options() -> dict[str, Any]:
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


def _underlying(error: Exception) -> Exception:
    """redis-py raises WatchError also for a connection that was lost during a transaction."""
    if isinstance(error, exceptions.WatchError) and isinstance(error.__context__, _UNREACHABLE):
        return error.__context__
    return error


def _tls_error(error: Exception) -> Exception | None:
    """A TLS problem that waiting does not solve: certificates that do not match, or files that do not exist."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        return None  # the other side disconnected during the handshake
    return cause if isinstance(cause, ssl.SSLError | FileNotFoundError | PermissionError) else None
