"""Checks of running brokers, one line per finding, with the credentials of the users that will use them."""

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from broker_config.brokers.definitions import (
    DEADLINE_POLICY,
    MOST_QUEUES,
    SiteLimits,
    consumer_timeout_seconds,
    rabbitmq_definitions,
    users_of,
)
from broker_config.brokers.topology import (
    BODIES,
    DEAD_LETTERS,
    kind_of,
    site_user,
    tasks_queue,
    updates_queue,
)
from broker_config.protocol.errors import BrokerRefused, FedILError, ModelMissing, QueueMissing
from broker_config.stores.redis.admin import accepts_anonymous, inspect_redis
from broker_config.stores.redis.keys import ledger_key
from broker_config.transports.interface import ModelAddress, Transport
from broker_config.transports.rabbitmq.connection import Connection
from broker_config.transports.rabbitmq.publisher import CHUNK_BYTES
from broker_config.transports.rabbitmq.queue_admin import QueueAdmin
from broker_config.transports.rabbitmq.transport import RabbitTransport
from broker_config.transports.rabbitmq.url import parse_url
from ops.broker.accounts import Addresses
from ops.broker.differences import differences
from ops.broker.management import Management

_OLDEST_RABBITMQ = (3, 10)
_PROBE = "fedil-check"
"""Name of a site and of runs that do not exist"""
_EVAL_TIMEOUT = "{ok, Timeout} = application:get_env(rabbit, consumer_timeout), Timeout."
_CTL_SECONDS = 60.0
_BLOCKED_SECONDS = 5.0
"""Servers and workers wait longer for the end of a broker's alarm; the check reports it."""
Policies = Sequence[Mapping[str, Any]]
_MEMBERS = "columns=name,type,members"
_ENOUGH_MEMBERS = 3
_REMEDIES = {
    "quorum": "rabbitmq-queues grow NODE all, for the other nodes",
    "stream": "rabbitmq-streams add_replica {name} NODE, for the other nodes",
    "classic": "it was made before fedil broker init, and goes with its run",
}
_MANY_BODIES = 500
_QUORUM_TARGETS = ("all", "queues", "quorum_queues")


@dataclass(frozen=True)
class Finding:
    verdict: str
    """ok, wrong, or unknown: this user cannot see it"""
    text: str

    @property
    def is_wrong(self) -> bool:
        return self.verdict == "wrong"

    def __str__(self) -> str:
        return f"{self.verdict}: {self.text}"


def check(
    broker: str | None,
    store: str | None,
    management: str | None,
    sites: Sequence[str],
    deadline_seconds: float,
) -> list[Finding]:
    vhost = Addresses(broker or "", "").vhost
    checks: list[tuple[str | None, Callable[[str], Iterator[Finding]]]] = [
        (broker, _check_broker),
        (management, lambda url: _check_management(Management(url), vhost, sites, deadline_seconds)),
        (store, _check_store),
    ]
    return [finding for url, check in checks if url is not None for finding in _run(check, url)]


def _run(check: Callable[[str], Iterator[Finding]], url: str) -> Iterator[Finding]:
    try:
        yield from check(url)
    except FedILError as error:
        yield Finding("wrong", str(error))


# RabbitMQ, with the credentials of a server or a site


def _check_broker(url: str) -> Iterator[Finding]:
    if urlsplit(url).scheme not in ("amqp", "amqps"):
        raise FedILError("only RabbitMQ can be checked: write amqp://user:password@host, or amqps:// for TLS")
    with closing(Connection(parse_url(url), "checking", reconnects=True)) as connection:
        version, address = connection.broker_version, connection.address
        where = f"RabbitMQ {'.'.join(map(str, version))} at {address.endpoint}"
        if version < _OLDEST_RABBITMQ:
            yield Finding("wrong", f"{where} is too old: use 3.10 or later")
            return
        site = _site_of(address.user)
        if site is not None and not QueueAdmin(connection).exists(tasks_queue(site)):
            yield Finding("wrong", f"{where} has no queue for site {site!r}: run fedil broker init")
    with closing(RabbitTransport(url, blocked_seconds=_BLOCKED_SECONDS)) as transport:
        problems = list(_permission_problems(transport, site))
    yield from (Finding("wrong", f"{where}: {problem}") for problem in problems)
    if not problems:
        yield Finding(
            "ok", f"{where} gives {address.user!r} the rights of {'a site' if site else 'a server'}"
        )
    if address.user == "guest" or _accepts_guest(url):
        yield Finding(
            "wrong", f"{where} accepts guest with its default password: rabbitmqctl delete_user guest"
        )


def _permission_problems(transport: Transport, site: str | None) -> Iterator[str]:
    run = f"{_PROBE}-{secrets.token_hex(8)}"
    updates = updates_queue(run, site or _PROBE)
    attempts: list[Callable[[], object]] = [
        lambda: transport.publish(updates, [b""]),
        # A body of several chunks is published through a temporary queue.
        lambda: transport.publish(updates, [bytes(CHUNK_BYTES + 1)]),
        lambda: transport.read_model(ModelAddress(run, 1, 0)),
    ]
    if site is None:
        attempts += [
            lambda: transport.declare(DEAD_LETTERS),
            lambda: transport.acquire_leadership(run, 0.0),
            lambda: transport.retire(run, ()),
        ]
    yield from filter(None, map(_refusal, attempts))
    if site is not None and _refusal(lambda: transport.acquire_leadership(run, 0.0)) is None:
        transport.retire(run, ())
        yield f"the user of site {site!r} may lead runs: run fedil broker init for this site"


def _refusal(attempt: Callable[[], object]) -> str | None:
    """Why the broker refuses the attempt. A missing queue or model is expected."""
    try:
        with suppress(QueueMissing, ModelMissing):
            attempt()
    except BrokerRefused as error:
        return str(error)
    return None


def _accepts_guest(url: str) -> bool:
    parts = urlsplit(url)
    guest = parts._replace(netloc=f"guest:guest@{parts.netloc.rpartition('@')[2]}").geturl()
    connection = closing(Connection(parse_url(guest), "checking", reconnects=True))
    with suppress(FedILError), connection as opened, opened.exclusive():
        return True
    return False


# RabbitMQ, with the credentials of an administrator


def _check_management(
    management: Management, vhost: str, sites: Sequence[str], deadline_seconds: float
) -> Iterator[Finding]:
    overview, found = management.get("overview"), management.get("definitions")
    where = f"RabbitMQ {overview['rabbitmq_version']} at {management.where}"
    users = (user["name"] for user in found["users"])
    wanted_sites = sites or sorted(site for user in users if (site := _site_of(user)) is not None)
    hashes, nodes = dict.fromkeys(users_of(wanted_sites)), management.num_nodes()
    wanted = rabbitmq_definitions(wanted_sites, hashes, vhost, replicated=nodes > 1)
    tagged = [user["name"] for user in found["users"] if user["tags"] and _site_of(user["name"]) is not None]
    bounds = wanted.pop("policies")
    del wanted["parameters"]
    queues = management.get(f"queues/{quote(vhost, safe='')}?{_MEMBERS}")
    problems = [
        *differences(wanted, found),
        *_unlimited(bounds, found, vhost, wanted_sites),
        *_hoarded(queues, wanted_sites),
        *(f"{user} has tags: rabbitmqctl set_user_tags {user}" for user in tagged),
        *_lost_with_a_node(queues, nodes),
    ]
    yield from (Finding("wrong", f"{where}: {problem}") for problem in problems)
    if not problems:
        yield Finding("ok", f"{where}: rights and queues of {', '.join(wanted_sites) or 'the server'}")
    tasks = [tasks_queue(site) for site in wanted_sites or (_PROBE,)]
    policies = [policy for policy in found.get("policies", []) if policy["vhost"] == vhost]
    yield _check_consumer_timeout(where, overview["node"], policies, tasks, deadline_seconds)


def _unlimited(
    policies: Policies, found: Mapping[str, Any], vhost: str, sites: Sequence[str]
) -> Iterator[str]:
    """What lets one site take all of the broker. How much it may take is the operator's choice."""
    remedy = "run fedil broker init"
    there = {
        policy["name"]: policy["definition"]
        for policy in found.get("policies", ())
        if policy["vhost"] == vhost
    }
    for name in (policy["name"] for policy in policies):
        if "max-length-bytes" not in there.get(name, {}):
            yield f"policy {name} sets no max-length-bytes, so a site may fill the disk: {remedy}"
    users = {user["name"]: user.get("limits", {}) for user in found["users"]}
    for user in map(site_user, sites):
        missing = [name for name in SiteLimits().of_user if name not in users.get(user, {})]
        if user in users and missing:
            yield f"user {user} has no limit {' and '.join(missing)}: {remedy}"
    limits = [
        each["value"]
        for each in found.get("parameters", ())
        if (each["component"], each.get("vhost")) == ("vhost-limits", vhost)
    ]
    if not any("max-queues" in each for each in limits):
        yield f"virtual host {vhost} has no limit max-queues: {remedy}"


def _hoarded(queues: Sequence[Mapping[str, Any]], sites: Sequence[str]) -> Iterator[str]:
    for user in map(site_user, sites):
        count = sum(queue["name"].startswith(f"{BODIES.prefix}{user}.") for queue in queues)
        if count > _MANY_BODIES:
            yield (
                f"user {user} has {count} queues of bodies, of {MOST_QUEUES} queues for all: if no update of it is on "
                f"the way, delete the user (rabbitmqctl delete_user {user}), then its queues {BODIES.prefix}{user}.*"
            )


def _lost_with_a_node(queues: Sequence[Mapping[str, Any]], nodes: int) -> Iterator[str]:
    for queue in queues:
        # RabbitMQ does not list the members of a new stream for some seconds.
        members = 1 if queue["type"] == "classic" else len(queue.get("members") or range(nodes))
        if kind_of(queue["name"]) is not None and members < min(nodes, _ENOUGH_MEMBERS):
            remedy = _REMEDIES[queue["type"]].format(**queue)
            yield f"queue {queue['name']} is on {members} of {nodes} nodes: {remedy}"


def _check_consumer_timeout(
    where: str, node: str, policies: Policies, queues: Sequence[str], deadline_seconds: float
) -> Finding:
    needed = round(1000 * consumer_timeout_seconds(deadline_seconds))
    limits = [_limit_by_policy(policies, queue) for queue in queues]
    if None in limits:
        configured = _configured_limit(node)
        limits = [limit or configured for limit in limits]
    known = [limit for limit in limits if limit is not None]
    timeout, policy = min(known, default=(needed, ""))
    if timeout < needed:
        return Finding("wrong", f"{where}: consumer_timeout is {timeout}{_remedy(policy, needed)}")
    if len(known) < len(limits):
        return Finding("unknown", f"{where}: consumer_timeout in its rabbitmq.conf must be at least {needed}")
    return Finding("ok", f"{where}: consumer_timeout is {timeout}")


def _remedy(policy: str, needed: int) -> str:
    if policy == DEADLINE_POLICY:
        return f" by policy {policy}, should be at least {needed}: run fedil broker init with this deadline"
    if policy:
        return f" by policy {policy}: set it to at least {needed} in that policy"
    return f": set it to at least {needed} in its rabbitmq.conf"


def _limit_by_policy(policies: Policies, queue: str) -> tuple[int, str] | None:
    """A queue's consumer time-out and the policy that sets it: RabbitMQ applies only the matching policy of the highest
    priority."""
    matching = [policy for policy in policies if _applies(policy, queue)]
    chosen = max(matching, key=lambda policy: int(policy["priority"]), default=None)
    if chosen is None or "consumer-timeout" not in chosen["definition"]:
        return None
    return int(chosen["definition"]["consumer-timeout"]), str(chosen["name"])


def _applies(policy: Mapping[str, Any], queue: str) -> bool:
    try:
        matches = re.search(policy["pattern"], queue) is not None
    except re.error:  # an Erlang pattern that Python does not support
        return False
    return matches and policy["apply-to"] in _QUORUM_TARGETS


def _configured_limit(node: str) -> tuple[int, str] | None:
    """Only rabbitmqctl can read it, where it is installed and can connect to the node."""
    program = shutil.which("rabbitmqctl")
    if program is None:
        return None
    command = [program, "--quiet", "--node", node, "eval", _EVAL_TIMEOUT]
    # Without this rabbitmqctl leaves an epmd running on a machine that has no node.
    environment = {**os.environ, "ERL_FLAGS": f"{os.environ.get('ERL_FLAGS', '')} -start_epmd false"}
    try:
        output = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_CTL_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (int(output), "") if output.strip().isdecimal() else None


# Redis


def _check_store(url: str) -> Iterator[Finding]:
    site = _site_of(unquote(urlsplit(url).username or ""))
    own, foreign = ledger_key(site or _PROBE, _PROBE, 0), ledger_key(_PROBE, _PROBE, 0)
    for found in inspect_redis(url, own, foreign if site is not None else None):
        where = f"{found.product} at {found.endpoint}"
        yield from (Finding("wrong", f"{where}: {problem}") for problem in found.wrong)
        yield from (Finding("unknown", f"{where}: {problem}") for problem in found.unknown)
        if not found.wrong:
            yield Finding(
                "ok",
                f"{where} keeps what it confirms, and has the rights of {'a site' if site else 'a server'}",
            )
        parts = urlsplit(found.url)
        if accepts_anonymous(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()):
            yield Finding("wrong", f"{where} accepts clients without a password: ACL SETUSER default off")


def _site_of(user: str) -> str | None:
    prefix = site_user("")
    return user.removeprefix(prefix) if user.startswith(prefix) else None
