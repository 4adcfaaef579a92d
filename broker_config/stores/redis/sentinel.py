"""Redis behind Sentinels: its address, and a client that follows the primary.

    redis+sentinel://user:password@host1:26379,host2:26379/service/0?sentinel_username=…&sentinel_password=…

`rediss+sentinel://` uses TLS for Redis and for the Sentinels. The other options are those of redis-py.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis import exceptions
from redis.connection import SSLConnection, parse_url
from redis.sentinel import MasterNotFoundError, Sentinel

from broker_config.protocol.errors import AddressWrong

_SUFFIX = "+sentinel"
_USUAL_PORT = 26379
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+)(?::(\d{1,5}))?")
_SERVICE = re.compile(r"[\w.-]+", re.ASCII)
_LOGIN = {"sentinel_username": "username", "sentinel_password": "password"}
_CONNECT_SECONDS, _ANSWER_SECONDS = 1.0, 2.0
"""Of one Sentinel; the next is asked then."""


class SentinelRefuses(exceptions.RedisError):
    """Asking again does not help."""


@dataclass(frozen=True)
class SentinelAddress:
    sentinels: tuple[tuple[str, int], ...]
    service: str
    database: str
    scheme: str
    """Of one node: redis or rediss"""
    login: str
    """`user:password@`, quoted, or nothing"""
    query: str
    """Options for a node"""
    sentinel_login: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.service} (Sentinel {','.join(_place(*each) for each in self.sentinels)})"

    def node_url(self, host: str, port: int) -> str:
        where = f"{self.login}{_place(host, port)}"
        return urlunsplit((self.scheme, where, f"/{self.database}", self.query, ""))


def is_sentinel_url(url: str) -> bool:
    return urlsplit(url).scheme.endswith(_SUFFIX)


def parse_sentinel_url(url: str) -> SentinelAddress:
    """Raises AddressWrong, without the URL: it may contain a password."""
    parts = urlsplit(url)
    login, at, hosts = parts.netloc.rpartition("@")
    found = [_HOST.fullmatch(host) for host in hosts.split(",")]
    sentinels = tuple((host[1].strip("[]"), int(host[2] or _USUAL_PORT)) for host in found if host)
    service, _, database = parts.path.removeprefix("/").partition("/")
    options = parse_qsl(parts.query, keep_blank_values=True)
    for wrong, what in (
        (len(sentinels) < len(found), "has no list of hosts of Sentinels"),
        (not _SERVICE.fullmatch(service), "names no service of the Sentinels"),
        (database and not database.isdecimal(), "has a database that is no number"),
    ):
        if wrong:
            raise AddressWrong(
                f"the store's URL {what}: write {parts.scheme}://user:password@host1:{_USUAL_PORT},"
                f"host2:{_USUAL_PORT}/service/0, with %2F for a / in the password"
            )
    return SentinelAddress(
        sentinels=sentinels,
        service=service,
        database=database or "0",
        scheme=parts.scheme.removesuffix(_SUFFIX),
        login=login + at,
        query=urlencode([(name, value) for name, value in options if name not in _LOGIN]),
        sentinel_login={_LOGIN[name]: value for name, value in options if name in _LOGIN},
    )


def sentinel_client(address: SentinelAddress, common: Mapping[str, Any]) -> Any:
    """A redis.Redis whose new connections go to the primary of the moment. `common`: options of all connections."""
    sentinels, node = _sentinels(address, common)
    return sentinels.master_for(address.service, **node)


@dataclass(frozen=True)
class Replicas:
    urls: Sequence[str]
    missing: Sequence[str]
    """Addresses of replicas that do not answer"""


def replicas(address: SentinelAddress, common: Mapping[str, Any]) -> Replicas:
    """Raises redis-py's errors."""
    sentinels = _sentinels(address, common)[0]
    try:
        states = sentinels.ask(address.service, lambda one: one.sentinel_slaves(address.service))
    finally:
        sentinels.close()
    places = [(state["ip"], state["port"], state["is_sdown"]) for state in states]
    return Replicas(
        [address.node_url(host, port) for host, port, is_down in places if not is_down],
        [_place(host, port) for host, port, is_down in places if is_down],
    )


def _sentinels(address: SentinelAddress, common: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """With the options of connections to Redis itself"""
    # redis-py's annotations differ from version to version.
    parse_options: Any = parse_url
    make: Any = _Sentinels
    node = {**common, **parse_options(address.node_url(*address.sentinels[0]))}
    del node["host"], node["port"]
    if node.pop("connection_class", None) is SSLConnection:
        node["ssl"] = True
    of_sentinels = {name: value for name, value in node.items() if name.startswith("ssl")}
    patience = {"socket_timeout": _ANSWER_SECONDS, "socket_connect_timeout": _CONNECT_SECONDS}
    kwargs = {**common, **patience, **of_sentinels, **address.sentinel_login}
    return make(address.sentinels, sentinel_kwargs=kwargs), node


class _Sentinels(Sentinel):
    """Finds the primary, or says why not. redis-py's own way reorders a list that threads share, and takes a wrong
    password or name for an outage."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        def primary(sentinel: Any) -> tuple[str, int]:
            state = sentinel.sentinel_master(service_name)
            # A Sentinel that is cut off from the others goes on naming the old one.
            if not state["is_master"] or state["is_sdown"] or state["is_odown"]:
                raise exceptions.ConnectionError("the primary does not answer")
            return state["ip"], state["port"]

        found: tuple[str, int] = self.ask(service_name, primary)
        return found

    def ask(self, service: str, question: Callable[[Any], Any]) -> Any:
        """The first answer"""
        unknown = f"know no service {service!r}: check the name after the hosts in the store's URL"
        failures: list[Exception] = []
        for sentinel in self.sentinels:
            try:
                return question(sentinel)
            except (exceptions.RedisError, OSError) as error:
                if "No such master" not in str(error):
                    failures.append(error)
        for refusal in failures:
            if isinstance(refusal, exceptions.AuthenticationError | exceptions.NoPermissionError):
                raise SentinelRefuses(
                    f"a Sentinel does not let FedIL in ({str(refusal).rstrip('.')}): check sentinel_username and "
                    "sentinel_password in the store's URL"
                ) from refusal
        if not failures:
            raise SentinelRefuses(f"the Sentinels {unknown}")
        if len(failures) < len(self.sentinels):
            raise MasterNotFoundError(f"the Sentinels that answer {unknown}")
        # With its cause: a wrong certificate is told from an outage by it.
        raise MasterNotFoundError(f"no Sentinel names one: {failures[-1]}") from failures[-1].__context__

    def close(self) -> None:
        for sentinel in self.sentinels:
            sentinel.close()


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
