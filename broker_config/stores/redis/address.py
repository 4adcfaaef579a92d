"""Addresses of Redis that name several hosts: `redis+KIND://user:password@host1:port,host2:port/path?options`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis.connection import SSLConnection, parse_url

from broker_config.protocol.errors import AddressWrong

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+)(?::(\d{1,5}))?")

Place = tuple[str, int]
"""Host and port"""


@dataclass(frozen=True)
class Address:
    scheme: str
    """Of one node: redis or rediss"""
    login: str
    """`user:password@`, quoted, or nothing"""
    places: Sequence[Place]
    path: str
    options: Mapping[str, str]

    def __str__(self) -> str:
        return ",".join(name_of(*place) for place in self.places)

    def node_url(self, host: str, port: int, database: str = "0") -> str:
        where = f"{self.login}{name_of(host, port)}"
        return urlunsplit((self.scheme, where, f"/{database}", urlencode(self.options), ""))

    def node_options(self, common: Mapping[str, Any], database: str = "0") -> dict[str, Any]:
        """Those of a client of a node, without its host and port. `common`: options of all connections"""
        parse: Any = parse_url  # redis-py's annotations differ from version to version
        options = {**common, **parse(self.node_url(*self.places[0], database))}
        del options["host"], options["port"]
        if options.pop("connection_class", None) is SSLConnection:
            options["ssl"] = True
        return options


def parse_address(url: str, usual_port: int, hosts_of: str, example: str) -> Address:
    """`hosts_of` and `example` are for the error, which does not contain the URL: that may contain a password."""
    parts = urlsplit(url)
    login, at, hosts = parts.netloc.rpartition("@")
    found = [_HOST.fullmatch(host) for host in hosts.split(",")]
    places = [(host[1].strip("[]"), int(host[2] or usual_port)) for host in found if host]
    if len(places) < len(found):
        raise wrong_address(url, f"has no list of hosts of {hosts_of}", example)
    return Address(
        scheme=parts.scheme.partition("+")[0],
        login=login + at,
        places=places,
        path=parts.path.removeprefix("/"),
        options=dict(parse_qsl(parts.query, keep_blank_values=True)),
    )


def wrong_address(url: str, what: str, example: str) -> AddressWrong:
    return AddressWrong(
        f"the store's URL {what}: write {urlsplit(url).scheme}://user:password@{example}, with %2F for a / in the "
        "password"
    )


def name_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
