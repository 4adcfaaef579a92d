"""Configuration of the brokers, generated from the topology: RabbitMQ definitions, Redis ACLs, configuration files.

A site has only the permissions that its workers need: it reads its own tasks and the models; it writes dead letters,
bodies under its own name, and updates and returned tasks to its own queues.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from broker_config.brokers.topology import (
    BODIES,
    BODIES_EXCHANGE,
    DEAD,
    DEAD_EXCHANGE,
    DEAD_LETTERS,
    EXCHANGES,
    MODELS,
    REPLICATED,
    TASKS,
    UPDATES,
    Exchange,
    QueueKind,
    site_user,
    tasks_queue,
)
from broker_config.protocol.errors import FedILError
from broker_config.stores.redis.keys import server_rules, site_rules

SERVER_USER, ADMIN_USER = "server", "admin"
_ALL_RULES = ("~*", "&*", "+@all")
VHOST = "fedil"

_HERE = Path(__file__).parent
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_ANY_NAME = ".*"
DEFAULT_CONSUMER_TIMEOUT_SECONDS = 1800.0
"""RabbitMQ's default"""
DEADLINE_POLICY, BODIES_POLICY = "fedil-deadline", "fedil-bodies"
_CONSUMER_TIMEOUT_POLICY_FROM = (3, 12)
MOST_SITE_BYTES, _MOST_DEAD_BYTES = 512 << 20, 1 << 30
"""Of a site's tasks, and of its updates of a run; of all dead letters: sites write to each of these queues."""
_CONNECTIONS_PER_WORKER, _CHANNELS_PER_WORKER = 6, 20
"""Twice what a worker has open: after an outage RabbitMQ still counts its lost connections for a minute."""
MOST_QUEUES = 1000
"""Of the virtual host: RabbitMQ cannot count the queues of one user. It counts all whenever one is declared, so a site
that declares as many as it may keeps the broker busy for a time that grows with the square of this number."""

Definitions = dict[str, list[dict[str, Any]]]
"""As RabbitMQ exports and imports them"""


def check_sites(sites: Iterable[str]) -> tuple[str, ...]:
    """Refuses names with characters that have a meaning in permission patterns. Removes duplicates."""
    names = tuple(dict.fromkeys(sites))
    for name in names:
        if not _SITE.fullmatch(name):
            raise FedILError(
                f"{name!r} is not a valid name of a site: 1 to 40 of A-Z a-z 0-9 _ - beginning with a letter or digit"
            )
    return names


def consumer_timeout_seconds(deadline_seconds: float) -> float:
    """How long a worker may hold a task and the server an update, neither of which is useful long after the deadline.
    RabbitMQ's default is enough for deadlines up to it; twice a longer deadline leaves room for the end of a round."""
    if deadline_seconds <= DEFAULT_CONSUMER_TIMEOUT_SECONDS:
        return DEFAULT_CONSUMER_TIMEOUT_SECONDS
    return 2 * deadline_seconds


@dataclass(frozen=True)
class SiteLimits:
    """What one site may take of RabbitMQ, which it shares with the others."""

    workers: int = 50
    """Processes"""
    update_bytes: int = 1 << 30
    """Of one update"""

    @property
    def of_user(self) -> dict[str, int]:
        return {
            "max-connections": _CONNECTIONS_PER_WORKER * self.workers,
            "max-channels": _CHANNELS_PER_WORKER * self.workers,
        }


@dataclass(frozen=True)
class Rights:
    """A user's permissions in RabbitMQ: patterns of names to create or delete, write to, and read from."""

    configure: str
    write: str
    read: str
    topics: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Topic exchange → patterns of routing keys to publish with, and to bind with"""


def site_rights(site: str) -> Rights:
    check_sites([site])
    user = site_user(site)
    own_bodies = _escaped(f"{BODIES.prefix}{user}.") + ".+"
    own_body_keys = f"^{_escaped(user)}\\."
    exchanges = (DEAD_EXCHANGE, BODIES_EXCHANGE, TASKS.exchange_of(tasks_queue(site)))
    return Rights(
        configure=_any_of(own_bodies),
        # Binding a queue needs write permission on the queue and read permission on the exchange.
        write=_any_of(*(_escaped(exchange.name) for exchange in exchanges), own_bodies),
        read=_any_of(
            _escaped(tasks_queue(site)), _escaped(MODELS.prefix) + ".+", _escaped(BODIES_EXCHANGE.name)
        ),
        topics={BODIES_EXCHANGE.name: (own_body_keys, own_body_keys)},
    )


def server_rights() -> Rights:
    ours = f"^{_escaped('fedil.')}"
    return Rights(ours, ours, ours)


def admin_rights() -> Rights:
    """For operators, and for adding sites later."""
    return Rights(_ANY_NAME, _ANY_NAME, _ANY_NAME)


def rights_of(user: str) -> Rights:
    """Rights by user name: the server, the administrator or a site."""
    if user == SERVER_USER:
        return server_rights()
    if user == ADMIN_USER:
        return admin_rights()
    return site_rights(user.removeprefix(site_user("")))


def users_of(sites: Iterable[str]) -> tuple[str, ...]:
    return (SERVER_USER, *map(site_user, check_sites(sites)))


def rabbitmq_definitions(
    sites: Iterable[str],
    password_hashes: Mapping[str, str | None],
    vhost: str = VHOST,
    *,
    replicated: bool = False,
    limits: SiteLimits | None = None,
) -> Definitions:
    """`password_hashes`: of all users; None for an existing user that keeps its password. `replicated`: the queues
    outlive the loss of a node."""
    limits = limits or SiteLimits()
    queues = {DEAD_LETTERS: DEAD.on_cluster(replicated)} | {
        tasks_queue(site): TASKS for site in check_sites(sites)
    }
    exchanges = dict.fromkeys((*EXCHANGES, *(kind.exchange_of(name) for name, kind in queues.items())))
    if replicated:
        exchanges[REPLICATED] = None
    return {
        "vhosts": [{"name": vhost}],
        "users": [
            _user(name, hashed, limits) for name, hashed in password_hashes.items() if hashed is not None
        ],
        "permissions": [permission(user, vhost) for user in password_hashes],
        "topic_permissions": [rule for user in password_hashes for rule in topic_permissions(user, vhost)],
        "exchanges": [_exchange(exchange, vhost) for exchange in exchanges],
        "queues": [_queue(name, kind, vhost) for name, kind in queues.items()],
        "bindings": [_binding(name, kind, vhost) for name, kind in queues.items()],
        "policies": policies(limits, vhost),
        "parameters": [
            {
                "component": "vhost-limits",
                "vhost": vhost,
                "name": "limits",
                "value": {"max-queues": MOST_QUEUES},
            }
        ],
    }


def import_steps(definitions: Definitions) -> tuple[Definitions, Definitions]:
    """The definitions in the order in which a running broker takes them; pause between the two.

    First queues and the exchanges that all sites share: RabbitMQ refuses topic permissions of an exchange that does not
    exist (4.3.2 and later). A site's own exchange follows when its queue can no longer be lost, as in the transport.
    Users come last, so that no site has permissions without the topic permissions that restrict them.
    """
    shared = {exchange.name for exchange in EXCHANGES}
    first = {kind: definitions.get(kind, []) for kind in ("vhosts", "policies", "queues")}
    then = {kind: items for kind, items in definitions.items() if kind not in first}
    first["exchanges"] = [exchange for exchange in definitions["exchanges"] if exchange["name"] in shared]
    return first, then


def permission(user: str, vhost: str = VHOST) -> dict[str, Any]:
    rights = rights_of(user)
    names = {"configure": rights.configure, "write": rights.write, "read": rights.read}
    return {"user": user, "vhost": vhost, **names}


def topic_permissions(user: str, vhost: str = VHOST) -> list[dict[str, Any]]:
    return [
        {"user": user, "vhost": vhost, "exchange": exchange, "write": write, "read": read}
        for exchange, (write, read) in rights_of(user).topics.items()
    ]


def policies(
    limits: SiteLimits,
    vhost: str = VHOST,
    deadline_seconds: float | None = None,
    version: tuple[int, ...] = (),
) -> list[dict[str, Any]]:
    """Bounds on what sites can fill, as policies: they hold for existing queues too. With a deadline, also the consumer
    time-out, for brokers whose rabbitmq.conf cannot be changed; some versions have no policy for it."""
    timeout: dict[str, int] = {}
    if deadline_seconds is not None and version >= _CONSUMER_TIMEOUT_POLICY_FROM:
        timeout["consumer-timeout"] = round(1000 * consumer_timeout_seconds(deadline_seconds))
    held = "|".join(_escaped(kind.prefix) for kind in (TASKS, UPDATES))
    definitions: dict[str, tuple[str, dict[str, Any]]] = {
        DEADLINE_POLICY: (f"^({held})", {"max-length-bytes": MOST_SITE_BYTES, **timeout}),
        BODIES_POLICY: (
            f"^{_escaped(BODIES.prefix)}",
            {"max-length-bytes": limits.update_bytes, "overflow": "reject-publish"},
        ),
        "fedil-dead": (f"^{_escaped(DEAD_LETTERS)}$", {"max-length-bytes": _MOST_DEAD_BYTES}),
    }
    rest = {"vhost": vhost, "apply-to": "queues", "priority": 0}
    return [
        {"name": name, "pattern": pattern, "definition": definition, **rest}
        for name, (pattern, definition) in definitions.items()
    ]


def rabbitmq_password_hash(user: str, password: str) -> str:
    """RabbitMQ's format. The salt is derived from the name, so that the same password gives the same file; long random
    passwords need no secret salt."""
    salt = hashlib.sha256(user.encode()).digest()[:4]
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def redis_password_hash(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()


def redis_rules(user: str) -> tuple[str, ...]:
    """All ACL rules of the server, the administrator or a site; earlier rules of the user are reset."""
    if user == ADMIN_USER:
        return _ALL_RULES
    if user == SERVER_USER:
        rules = server_rules()
    else:
        (site,) = check_sites([user.removeprefix(site_user(""))])
        rules = site_rules(site)
    return ("resetkeys", "resetchannels", "-@all", *rules)


def redis_acl(password_hashes: Mapping[str, str | None]) -> str:
    """An ACL file in which the user `default` is off and a user without a hash cannot log in. `default` keeps its
    permissions, because Redis replays its append-only file with them: without, everything written in transactions would
    be lost (redis/redis#14541)."""
    lines = [" ".join(["user", "default", "off", "resetpass", *_ALL_RULES])]
    for user, hashed in password_hashes.items():
        password = [f"#{hashed}"] if hashed else []
        lines.append(" ".join(["user", user, "on", *password, *redis_rules(user)]))
    return "".join(f"{line}\n" for line in lines)


def rabbitmq_conf(deadline_seconds: float, tls: str | None = None, mutual: bool = False) -> str:
    """`tls`: path in the broker's file system of a folder with ca.pem, server.pem and server.key; `mutual`: clients
    need a certificate, too."""
    from broker_config.transports.rabbitmq.url import HEARTBEAT_SECONDS  # imported here because it loads pika

    timeout_ms = round(1000 * consumer_timeout_seconds(deadline_seconds))
    return _render(
        "rabbitmq",
        tls,
        consumer_timeout_ms=timeout_ms,
        heartbeat_seconds=HEARTBEAT_SECONDS,
        mutual="true" if mutual else "false",
    )


def redis_conf(tls: str | None = None, mutual: bool = False) -> str:
    return _render("redis", tls, auth_clients="yes" if mutual else "optional")


def _render(broker: str, tls: str | None, **values: object) -> str:
    files = [f"{broker}.conf"] if tls is None else [f"{broker}.conf", "tls.conf"]
    text = "".join((_HERE / broker / file).read_text(encoding="utf-8") for file in files)
    return Template(text).substitute(values, tls=tls)


def _user(name: str, hashed: str, limits: SiteLimits) -> dict[str, Any]:
    is_site = name not in (SERVER_USER, ADMIN_USER)
    return {
        "name": name,
        "password_hash": hashed,
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": ["administrator"] if name == ADMIN_USER else [],
        **({"limits": limits.of_user} if is_site else {}),
    }


def _exchange(exchange: Exchange, vhost: str) -> dict[str, Any]:
    return {
        "name": exchange.name,
        "vhost": vhost,
        "type": exchange.type,
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": {},
    }


def _queue(name: str, kind: QueueKind, vhost: str) -> dict[str, Any]:
    return {
        "name": name,
        "vhost": vhost,
        "durable": True,
        "auto_delete": False,
        "arguments": kind.arguments,
    }


def _binding(queue: str, kind: QueueKind, vhost: str) -> dict[str, Any]:
    return {
        "source": kind.exchange_of(queue).name,
        "vhost": vhost,
        "destination": queue,
        "destination_type": "queue",
        "routing_key": kind.routing_key(queue),
        "arguments": {},
    }


def _any_of(*patterns: str) -> str:
    return f"^({'|'.join(patterns)})$"


def _escaped(name: str) -> str:
    """Escapes the dot, the only special character in our names."""
    return name.replace(".", r"\.")
