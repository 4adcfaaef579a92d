"""Parses amqp://user:password@host:port/vhost and amqps://…?cafile=…&certfile=…&keyfile=…

Nodes of a cluster are separated by commas: amqp://user:password@a:5672,b:5672/vhost.
"""

import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import pika

from broker_config.protocol.errors import AddressWrong

_PORTS = {"amqp": 5672, "amqps": 5671}
_TLS_KEYS = ("cafile", "certfile", "keyfile")
_KEYS = ("heartbeat", "queues", *_TLS_KEYS)
_QUEUES = ("auto", "single", "replicated")
_AUTHORITY = re.compile(r"([^/?#]*//)([^/?#]*)(.*)", re.DOTALL)

HEARTBEAT_SECONDS = 20
"""The task of a frozen worker is redelivered after three of them."""
BLOCKED_SECONDS = 300.0
"""How long a publish waits for the end of a memory or disk alarm. Long, because giving up wastes the training."""
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class BrokerAddress:
    """One node of a parsed URL. Only `parameters` contains the password."""

    user: str
    """"" if only a certificate names the user"""
    endpoint: str
    """host:port"""
    heartbeat_seconds: int
    replicated: bool | None
    """Whether queues are made to outlive a node; None: as the broker was set up"""
    parameters: pika.ConnectionParameters = field(repr=False)


def parse_url(url: str, blocked_seconds: float = BLOCKED_SECONDS) -> tuple[BrokerAddress, ...]:
    """One address for each node that the URL names."""
    nodes = [_split(node) for node in _nodes(url)]
    if len(nodes) > 1 and not all(node.hostname for node in nodes):
        raise AddressWrong(
            "the RabbitMQ address has a comma without a host: write amqp://user:password@a,b:5672/vhost"
        )
    return tuple(_parse(node, blocked_seconds, of_several=len(nodes) > 1) for node in nodes)


def _nodes(url: str) -> Iterator[str]:
    """The URL with each of its hosts alone."""
    authority = _AUTHORITY.fullmatch(url)
    if authority is None:
        yield url
        return
    scheme, login_and_hosts, rest = authority.groups()
    login, at, hosts = login_and_hosts.rpartition("@")
    for host in hosts.split(","):
        yield f"{scheme}{login}{at}{host}{rest}"


def _parse(parts: SplitResult, blocked_seconds: float, of_several: bool) -> BrokerAddress:
    options = _options(parts)
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    host, port = parts.hostname or "localhost", _port(parts)
    heartbeat_seconds = _seconds(options.get("heartbeat", str(HEARTBEAT_SECONDS)))
    by_certificate = "certfile" in options and not password
    if not by_certificate and not user:
        user = password = "guest"
    context = _tls_context(options) if parts.scheme == "amqps" else None
    parameters = pika.ConnectionParameters(
        host=host,
        port=port,
        virtual_host=unquote(parts.path[1:]) or "/",
        credentials=pika.credentials.ExternalCredentials()
        if by_certificate
        else pika.PlainCredentials(user, password, erase_on_connect=False),
        heartbeat=heartbeat_seconds,
        blocked_connection_timeout=blocked_seconds,
        socket_timeout=_CONNECT_SECONDS,
        stack_timeout=2 * _CONNECT_SECONDS,
        ssl_options=pika.SSLOptions(context, host) if context else None,
    )
    queues = options.get("queues", "auto")
    replicated = {"single": False, "replicated": True}.get(queues, True if of_several else None)
    return BrokerAddress(user, f"{host}:{port}", heartbeat_seconds, replicated, parameters)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")  # as the name lookup does
    except ValueError:
        raise AddressWrong(
            "the RabbitMQ address cannot be read: write amqp://user:password@host:5672/vhost, or amqps:// for TLS"
        ) from None
    return parts


def _options(parts: SplitResult) -> dict[str, str]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - set(_KEYS))
    if unknown:
        raise AddressWrong(f"a RabbitMQ address has no option {unknown[0]!r}: it may have {', '.join(_KEYS)}")
    if options.get("queues", "auto") not in _QUEUES:
        raise AddressWrong(f"queues={options['queues']!r:.20}: it may be {', '.join(_QUEUES)}")
    needless = sorted(set(options) & set(_TLS_KEYS))
    if needless and parts.scheme != "amqps":
        raise AddressWrong(f"{needless[0]} needs TLS: write amqps:// instead of amqp://")
    if "keyfile" in options and "certfile" not in options:
        raise AddressWrong("keyfile is the key of a certificate: name that with certfile")
    return options


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise AddressWrong(
            "the port of the RabbitMQ address is no number from 1 to 65535 (a / in the password is written %2F)"
        )
    return port or _PORTS[parts.scheme]


def _seconds(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 3600:
        raise AddressWrong(f"heartbeat={text!r:.20}: it must be whole seconds from 1 to 3600")
    return int(text)


def _tls_context(options: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("cafile"))
        if "certfile" in options:
            context.load_cert_chain(options["certfile"], options.get("keyfile"))
    except (OSError, ValueError) as error:  # SSLError is an OSError
        files = ", ".join(f"{key}={options[key]}" for key in _TLS_KEYS if key in options)
        raise AddressWrong(f"cannot use {files}: {getattr(error, 'strerror', None) or error}") from error
    return context
