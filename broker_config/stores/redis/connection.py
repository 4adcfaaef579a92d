"""The connection to Redis: it waits for a Redis that is away, and says in one line what is wrong with one that is
there. Whatever is asked through it must be harmless when asked twice: replies get lost."""

import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    ClusterError,
    ConnectionError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
    WatchError,
)
from redis.retry import Retry

from broker_config.protocol.errors import AddressWrong, BrokerRefused, BrokerUnavailable, FedILError
from broker_config.transports.reconnecting import LONGEST_PAUSE_SECONDS, GivenUp, Patience

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
Client = Any
"""redis.Redis; its annotations differ from version to version, so nothing is typed by them."""

_AWAY = (ConnectionError, TimeoutError, ReadOnlyError, OSError)
"""Loading its data counts as away (redis-py derives it from ConnectionError), and so does a primary that has just
become a replica: its name will soon lead to the new one."""
_WRONG_CREDENTIALS = (AuthenticationError, AuthenticationWrongNumberOfArgsError, AuthorizationError)
_ONE_OF_A_CLUSTER = (MovedError, AskError, ClusterError)
_MOST_LOST_RACES = 1000
"""Honest ones are a few; who loses more is kept from writing on purpose."""
OLDEST = "7.0"
"""Earlier ones may lose ledgers when they restart: see stores/redis.py."""


class NotOurs(FedILError):
    """A key holds another kind of value than we write: somebody else has been there."""


class RedisLink:
    def __init__(self, url: str, patience: Patience | None = None) -> None:
        """Connects when first asked. `url` may carry redis-py's own options: socket_timeout, ssl_ca_certs, …"""
        self._patience = patience or Patience(seconds=10.0)
        self._closed = threading.Event()
        self._away, self._lock = False, threading.Lock()
        self.away_seconds = 0.0
        """For how long there was no Redis for somebody who asked, in all"""
        try:
            self._redis: Client = redis.Redis.from_url(
                url,
                # Replies have the same shape in all versions of redis-py, and old servers understand it.
                protocol=2,
                socket_timeout=20.0,
                socket_connect_timeout=5.0,
                socket_keepalive=True,
                # Ours, below: it has a deadline, says what it waits for and can be stopped.
                retry=Retry(NoBackoff(), 0),
            )
            self._redis.connection_pool.make_connection()
        except (ValueError, TypeError) as error:
            # What else a ValueError says may be a piece of a password with a "/" in it.
            tells = isinstance(error, TypeError) or "Invalid value for" in str(error)
            why = f" ({error})" if tells else ""
            raise AddressWrong(
                f"the store's URL cannot be read{why}: write redis://user:password@host:6379/0, or rediss:// "
                "for TLS, with %2F for a / in the password"
            ) from None
        options = self._redis.connection_pool.connection_kwargs
        self.where = f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
        self._user = options.get("username") or "default"
        self._tls = url.startswith("rediss:")
        self._has_password = bool(options.get("password"))

    def ask(self, question: Callable[[Client], _T]) -> _T:
        began = time.monotonic()
        deadline = began + self._patience.seconds
        tries = lost_races = 0
        while True:
            if self._closed.is_set():
                raise BrokerUnavailable(f"this connection to Redis at {self.where} is closed: open another")
            try:
                answer = question(self._redis)
            except (RedisError, OSError) as raised:
                error = _underlying(raised)
                if isinstance(error, WatchError) and lost_races < _MOST_LOST_RACES:
                    lost_races += 1  # somebody changed the key between our look and our write: look again
                    continue
                if not self._is_away(error):
                    raise self._translated(error) from raised
                tries += 1
                self._pause(error, tries, deadline)
            else:
                if tries:
                    with self._lock:
                        self.away_seconds += time.monotonic() - began
                if self._away and self._changes_to(away=False):
                    _log.info("Redis at %s is back", self.where)
                return answer

    def check(self) -> None:
        """Refuses a Redis that would lose ledgers by its settings; needs no more rights than INFO."""

        def look(client: Client) -> dict[str, Any]:
            client.ping()  # unlike INFO not answered while loading, so a Redis that still starts is waited for
            info: dict[str, Any] = client.info()
            return info

        info = self.ask(look)
        if info.get("role") == "slave":
            raise BrokerRefused(
                f"Redis at {self.where} is a replica (replica-read-only): use its primary, "
                f"{info.get('master_host')}:{info.get('master_port')}"
            )
        policy = str(info.get("maxmemory_policy", ""))
        # The volatile-… policies drop only what expires, and ledgers never do.
        if info.get("maxmemory") and policy.startswith("allkeys"):
            raise BrokerRefused(
                f"Redis at {self.where} may evict ledgers (maxmemory-policy {policy}): "
                "set maxmemory-policy noeviction"
            )
        if not info.get("aof_enabled"):
            _log.warning(
                "Redis at %s has no append-only file and loses ledgers when it dies: set appendonly yes",
                self.where,
            )
        if is_too_old(info):
            _log.warning(
                "Redis at %s is version %s, and may lose ledgers when it restarts: use %s or later",
                self.where,
                info["redis_version"],
                OLDEST,
            )

    def close(self) -> None:
        self._closed.set()
        self._redis.close()

    def _is_away(self, error: Exception) -> bool:
        if isinstance(error, _WRONG_CREDENTIALS) or _tls_trouble(error) is not None:
            return False
        return (
            isinstance(error, _AWAY)
            or str(error).startswith("BUSY ")
            or self._cannot_write(error) is not None
        )

    def _cannot_write(self, error: Exception) -> str | None:
        """It is there, and an operator has to make room."""
        if isinstance(error, OutOfMemoryError):
            return (
                f"Redis at {self.where} is full: raise maxmemory, or delete keys of old runs. "
                "Nothing committed is lost"
            )
        if "MISCONF " in str(error):
            return f"Redis at {self.where} cannot write to its disk: free space ({_in_line(error)})"
        return None

    def _translated(self, error: Exception) -> FedILError:
        said = str(error)
        if isinstance(error, _WRONG_CREDENTIALS):
            if not self._has_password:
                return BrokerRefused(f"Redis at {self.where} wants a password: put it into the store's URL")
            return BrokerRefused(
                f"Redis at {self.where} does not let in user {self._user!r} ({said.rstrip('.')}): "
                "check name and password in the store's URL. A Redis without an aclfile forgets its users when it "
                "restarts: then run fedil broker init again"
            )
        if isinstance(error, NoPermissionError):
            return BrokerRefused(
                f"user {self._user!r} has too few rights in Redis at {self.where} ({said}): extend its ACL"
            )
        if isinstance(error, WatchError) or "WRONGTYPE" in said:
            return NotOurs(f"Redis at {self.where}: {said:.200}")
        if isinstance(error, _ONE_OF_A_CLUSTER):
            return BrokerRefused(
                f"Redis at {self.where} is one node of a cluster: FedIL needs a single primary"
            )
        if (trouble := _tls_trouble(error)) is not None:
            return BrokerRefused(
                f"no TLS with Redis at {self.where} ({trouble}): check ssl_ca_certs, ssl_certfile and "
                "ssl_keyfile in the store's URL"
            )
        return BrokerRefused(f"Redis at {self.where} refuses what FedIL asks: {said:.300}")

    def _pause(self, error: Exception, tries: int, deadline: float) -> None:
        full = self._cannot_write(error)
        what = full or f"Redis at {self.where} is away ({_in_line(error)})"
        if self._patience.stop() or time.monotonic() >= deadline:
            if full:
                raise GivenUp(full) from error
            # A server that dislikes our certificate, or speaks TLS and we do not, may hang up before it says so.
            hint = "speaks TLS and accepts ssl_certfile" if self._tls else "needs no TLS (rediss://)"
            raise GivenUp(f"{what}: see that it runs and {hint}, then try again") from error
        if self._changes_to(away=True):
            _log.warning("%s; trying again", what)
        self._patience.tell(what)
        if isinstance(error, ReadOnlyError):
            # A new connection may be led to the new primary; this one never will.
            self._redis.connection_pool.disconnect(inuse_connections=False)
        # Jitter, so that a thousand workers do not come back in the same instant.
        seconds = min(LONGEST_PAUSE_SECONDS, 0.1 * 2 ** min(tries, 10)) * random.uniform(0.5, 1.0)
        self._closed.wait(min(seconds, max(0.0, deadline - time.monotonic())))

    def _changes_to(self, away: bool) -> bool:
        """Many threads may notice; one tells."""
        with self._lock:
            changes, self._away = self._away != away, away
            return changes


def is_too_old(info: Mapping[str, Any]) -> bool:
    version, oldest = (text.split(".")[:2] for text in (str(info["redis_version"]), OLDEST))
    return tuple(map(int, version)) < tuple(map(int, oldest))


def _in_line(error: Exception) -> str:
    return f"{str(error).rstrip('.'):.200}"


def _underlying(error: Exception) -> Exception:
    """redis-py calls a connection that was lost during a transaction a WatchError too."""
    if isinstance(error, WatchError) and isinstance(error.__context__, _AWAY):
        return error.__context__
    return error


def _tls_trouble(error: Exception) -> Exception | None:
    """What time will not heal: certificates that do not fit, or files that are not there."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        return None  # the other side went away in the middle
    return cause if isinstance(cause, ssl.SSLError | FileNotFoundError | PermissionError) else None
