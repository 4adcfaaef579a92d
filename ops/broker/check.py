"""What is wrong with brokers that run, one line each; asked as those ask who are to use them."""

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from broker_config.brokers.definitions import (
    Definitions,
    consumer_timeout_seconds,
    rabbitmq_definitions,
    users_of,
)
from broker_config.brokers.topology import DEAD_LETTERS, site_user, tasks_queue, updates_queue
from broker_config.protocol.errors import BrokerRefused, FedILError, ModelMissing, QueueMissing
from broker_config.stores.redis.admin import accepts_anonymous, inspect_redis
from broker_config.stores.redis.keys import ledger_key
from broker_config.transports.interface import ModelAddress, Transport
from broker_config.transports.rabbitmq.connection import Connection
from broker_config.transports.rabbitmq.publisher import CHUNK_BYTES
from broker_config.transports.rabbitmq.queue_admin import QueueAdmin
from broker_config.transports.rabbitmq.transport import RabbitTransport
from broker_config.transports.rabbitmq.url import BrokerAddress, parse_url
from ops.broker.accounts import Addresses
from ops.broker.management import Management

_OLDEST_RABBITMQ = (3, 10)
_NOBODY = "fedil-check"
"""Name of a site and a run that nobody has"""
_ASK_TIMEOUT = "{ok, Timeout} = application:get_env(rabbit, consumer_timeout), Timeout."
_CTL_SECONDS = 60.0
_BLOCKED_SECONDS = 5.0
"""Others wait for longer until a broker's alarm is over; this one is to tell of it."""
_FOR_TASK_QUEUES = ("all", "queues", "quorum_queues")


@dataclass(frozen=True)
class Finding:
    verdict: str
    """ok, wrong, or unknown where it cannot be seen from here"""
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
    examinations = [
        (broker, lambda url: _check_broker(url)),
        (management, lambda url: _check_management(Management(url), vhost, sites, deadline_seconds)),
        (store, lambda url: _check_store(url)),
    ]
    return [
        finding
        for url, examination in examinations
        if url is not None
        for finding in _or_why_not(examination, url)
    ]


def _or_why_not(examination: Callable[[str], Iterator[Finding]], url: str) -> Iterator[Finding]:
    try:
        yield from examination(url)
    except FedILError as error:
        yield Finding("wrong", str(error))


# RabbitMQ, as a server or a worker sees it


def _check_broker(url: str) -> Iterator[Finding]:
    if urlsplit(url).scheme not in ("amqp", "amqps"):
        raise FedILError("only RabbitMQ can be checked: write amqp://user:password@host, or amqps:// for TLS")
    account = parse_url(url)
    with closing(Connection(account, "checking", reconnects=True)) as connection:
        version = connection.broker_version
        where = f"RabbitMQ {'.'.join(map(str, version))} at {account.endpoint}"
        if version < _OLDEST_RABBITMQ:
            yield Finding("wrong", f"{where} is too old: use 3.10 or later")
            return
        site = _site_of(account.user)
        if site is not None and not QueueAdmin(connection).exists(tasks_queue(site)):
            yield Finding("wrong", f"{where} has no queue for site {site!r}: run fedil broker init")
    with closing(RabbitTransport(url, blocked_seconds=_BLOCKED_SECONDS)) as transport:
        problems = list(_problems_of_rights(transport, site))
    yield from (Finding("wrong", f"{where}: {problem}") for problem in problems)
    if not problems:
        yield Finding(
            "ok", f"{where} gives {account.user!r} the rights of {'a site' if site else 'a server'}"
        )
    if _lets_guest_in(url, account):
        yield Finding(
            "wrong", f"{where} lets in guest with a password that all know: rabbitmqctl delete_user guest"
        )


def _problems_of_rights(transport: Transport, site: str | None) -> Iterator[str]:
    run = f"{_NOBODY}-{secrets.token_hex(8)}"
    needed: list[Callable[[], object]] = [
        lambda: transport.publish(updates_queue(run), [b""]),
        # One that needs a queue of its own, which is deleted again.
        lambda: transport.publish(updates_queue(run), [bytes(CHUNK_BYTES + 1)]),
        lambda: transport.read_model(ModelAddress(run, 1, 0)),
    ]
    if site is None:
        needed += [
            lambda: transport.declare(DEAD_LETTERS),
            lambda: transport.acquire_leadership(run, 0.0),
            lambda: transport.retire(run),
        ]
    for attempt in needed:
        refusal = _refusal(attempt)
        if refusal is not None:
            yield refusal
    if site is not None and _refusal(lambda: transport.acquire_leadership(run, 0.0)) is None:
        transport.retire(run)
        yield f"the user of site {site!r} may lead runs: run fedil broker init for this site"


def _refusal(attempt: Callable[[], object]) -> str | None:
    """That nobody has such a queue or model is what we expect."""
    try:
        attempt()
    except (QueueMissing, ModelMissing):
        return None
    except BrokerRefused as error:
        return str(error)
    return None


def _lets_guest_in(url: str, account: BrokerAddress) -> bool:
    if account.user == "guest":
        return True
    parts = urlsplit(url)
    guest = parts._replace(netloc=f"guest:guest@{parts.netloc.rpartition('@')[2]}").geturl()
    with closing(Connection(parse_url(guest), "checking", reconnects=True)) as connection:
        try:
            with connection.exclusive():
                return True
        except FedILError:
            return False


# RabbitMQ, as its administrator sees it


def _check_management(
    management: Management, vhost: str, sites: Sequence[str], deadline_seconds: float
) -> Iterator[Finding]:
    overview, found = management.get("overview"), management.get("definitions")
    where = f"RabbitMQ {overview['rabbitmq_version']} at {management.where}"
    wanted_sites = sites or _sites_in(found)
    wanted = rabbitmq_definitions(wanted_sites, dict.fromkeys(users_of(wanted_sites)), vhost)
    otherwise = list(made_otherwise(wanted, found))
    yield from (Finding("wrong", f"{where}: {text}") for text in otherwise)
    missing = list(_differences(wanted, found))
    yield from (
        Finding("wrong", f"{where}: {name} is not as it should be: run fedil broker init") for name in missing
    )
    tagged = [user["name"] for user in found["users"] if user["tags"] and _site_of(user["name"]) is not None]
    yield from (
        Finding("wrong", f"{where}: {user} has tags: rabbitmqctl set_user_tags {user}") for user in tagged
    )
    if not missing and not tagged and not otherwise:
        yield Finding("ok", f"{where}: rights and queues of {', '.join(wanted_sites) or 'the server'}")
    queues = [tasks_queue(site) for site in wanted_sites or (_NOBODY,)]
    policies = [policy for policy in found.get("policies", []) if policy["vhost"] == vhost]
    yield _check_consumer_timeout(where, overview["node"], policies, queues, deadline_seconds)


def _sites_in(found: Mapping[str, Any]) -> list[str]:
    sites = (_site_of(user["name"]) for user in found["users"])
    return sorted(site for site in sites if site is not None)


def made_otherwise(wanted: Definitions, found: Mapping[str, Any]) -> Iterator[str]:
    """Queues that are there with other arguments, of an earlier version say: RabbitMQ never changes those, and passes
    over them in silence when it imports definitions."""
    for queue in wanted["queues"]:
        there = _same_queue(queue, found)
        different = "" if there is None else _of_arguments(_flat(queue), _flat(there))
        if different:
            yield (
                f"queue {queue['name']} was made otherwise ({different}) and works as it is; when it is empty: "
                f"rabbitmqctl delete_queue --vhost {queue['vhost']} {queue['name']}, then fedil broker init"
            )


def _flat(queue: Mapping[str, Any]) -> dict[str, Any]:
    return {"durable": queue["durable"], "auto_delete": queue["auto_delete"], **queue["arguments"]}


def _same_queue(queue: Mapping[str, Any], found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    name = (queue["vhost"], queue["name"])
    return next((other for other in found.get("queues", ()) if (other["vhost"], other["name"]) == name), None)


def _of_arguments(wanted: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} is {there.get(name, 'not set')}, should be {wanted.get(name, 'not set')}"
        for name in sorted(wanted.keys() | there.keys())
        if wanted.get(name) != there.get(name)
    )


def _differences(wanted: Definitions, found: Mapping[str, Any]) -> Iterator[str]:
    """What is missing or otherwise; what there is besides does not concern us."""
    for kind, items in wanted.items():
        there = found.get(kind, [])
        for item in items:
            if kind == "queues" and _same_queue(item, found) is not None:
                continue  # init cannot change it: see made_otherwise
            if not any(all(other.get(key) == item[key] for key in item) for other in there):
                yield _called(kind, item)


def _called(kind: str, item: Mapping[str, Any]) -> str:
    if "user" in item:
        return f"what {item['user']} may do"
    if "destination" in item:
        return f"the way to {item['destination']}"
    return f"{kind.removesuffix('s')} {item['name']}"


def _check_consumer_timeout(
    where: str,
    node: str,
    policies: Sequence[Mapping[str, Any]],
    queues: Sequence[str],
    deadline_seconds: float,
) -> Finding:
    needed = round(1000 * consumer_timeout_seconds(deadline_seconds))
    timeouts = [_timeout_by_policy(policies, queue) for queue in queues]
    if None in timeouts:
        configured = _configured_timeout(node)
        timeouts = [configured if timeout is None else timeout for timeout in timeouts]
    known = [timeout for timeout in timeouts if timeout is not None]
    has = min(known, default=needed)
    if has < needed:
        return Finding(
            "wrong", f"{where}: consumer_timeout is {has}: set it to at least {needed} in its rabbitmq.conf"
        )
    if len(known) < len(timeouts):
        return Finding("unknown", f"{where}: consumer_timeout in its rabbitmq.conf must be at least {needed}")
    return Finding("ok", f"{where}: consumer_timeout is {has}")


def _timeout_by_policy(policies: Sequence[Mapping[str, Any]], queue: str) -> int | None:
    """Of all policies that match a queue the broker applies only the one of the highest priority."""
    matching = [policy for policy in policies if _applies(policy, queue)]
    chosen = max(matching, key=lambda policy: int(policy["priority"]), default=None)
    timeout: int | None = chosen["definition"].get("consumer-timeout") if chosen else None
    return timeout


def _applies(policy: Mapping[str, Any], queue: str) -> bool:
    try:
        matches = re.search(policy["pattern"], queue) is not None
    except re.error:  # Erlang's patterns know more than Python's
        return False
    return matches and policy["apply-to"] in _FOR_TASK_QUEUES


def _configured_timeout(node: str) -> int | None:
    """Only rabbitmqctl can tell, where it is installed and may talk to the node."""
    program = shutil.which("rabbitmqctl")
    if program is None:
        return None
    command = [program, "--quiet", "--node", node, "eval", _ASK_TIMEOUT]
    # Else it leaves a port mapper behind on a machine that has no node.
    environment = {**os.environ, "ERL_FLAGS": f"{os.environ.get('ERL_FLAGS', '')} -start_epmd false"}
    try:
        said = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_CTL_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return int(said) if said.strip().isdecimal() else None


# Redis


def _check_store(url: str) -> Iterator[Finding]:
    parts = urlsplit(url)
    site = _site_of(unquote(parts.username or ""))
    own, foreign = ledger_key(site or _NOBODY, _NOBODY, 0), ledger_key(_NOBODY, _NOBODY, 0)
    found = inspect_redis(url, own, foreign if site is not None else None)
    where = f"Redis {found.version} at {found.endpoint}"
    yield from (Finding("wrong", f"{where}: {problem}") for problem in found.wrong)
    yield from (Finding("unknown", f"{where}: {problem}") for problem in found.unknown)
    if not found.wrong:
        yield Finding(
            "ok", f"{where} keeps what it confirms, and has the rights of {'a site' if site else 'a server'}"
        )
    if accepts_anonymous(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()):
        yield Finding("wrong", f"{where} lets in anybody without a password: ACL SETUSER default off")


def _site_of(user: str) -> str | None:
    prefix = site_user("")
    return user.removeprefix(prefix) if user.startswith(prefix) else None
