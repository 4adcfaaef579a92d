"""Checks of RabbitMQ with the credentials of a server or a site."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from broker_config.brokers.topology import DEAD_LETTERS, site_user, tasks_queue, updates_queue
from broker_config.protocol.chunks import MAX_CHUNKS, OVERHEAD_BYTES
from broker_config.protocol.errors import BrokerRefused, FedILError, ModelMissing, QueueMissing
from broker_config.transports.interface import ModelAddress, Transport
from broker_config.transports.rabbitmq.connection import Connection
from broker_config.transports.rabbitmq.publisher import CHUNK_BYTES
from broker_config.transports.rabbitmq.queue_admin import QueueAdmin
from broker_config.transports.rabbitmq.transport import RabbitTransport
from broker_config.transports.rabbitmq.url import parse_url
from ops.doctor.finding import Finding, wrong_or_ok

if TYPE_CHECKING:
    from ops.plan.trial import Sizes

_OLDEST_RABBITMQ = (3, 10)
PROBE = "fedil-check"
"""Name of a site and of runs that do not exist"""
_BLOCKED_SECONDS = 5.0
"""Servers and workers wait longer for the end of a broker's alarm; the check reports it."""


def check_rabbitmq(url: str, sizes: "Sizes | None") -> Iterator[Finding]:
    if urlsplit(url).scheme not in ("amqp", "amqps"):
        raise FedILError("only RabbitMQ can be checked: write amqp://user:password@host, or amqps:// for TLS")
    with closing(Connection(parse_url(url), "checking", reconnects=True)) as connection:
        version, address = connection.broker_version, connection.address
        where = f"RabbitMQ {'.'.join(map(str, version))} at {address.endpoint}"
        if version < _OLDEST_RABBITMQ:
            yield Finding("wrong", f"{where} is too old: use 3.10 or later")
            return
        site = site_of(address.user)
        if site is not None and not QueueAdmin(connection).exists(tasks_queue(site)):
            yield Finding("wrong", f"{where} has no queue for site {site!r}: run fedil broker init")
    with closing(RabbitTransport(url, blocked_seconds=_BLOCKED_SECONDS)) as transport:
        problems = list(_permission_problems(transport, site))
        chunk_bytes = transport.chunk_bytes
    rights = f"gives {address.user!r} the rights of {'a site' if site else 'a server'}"
    yield from wrong_or_ok(where, problems, rights)
    if not problems:  # then a body of several messages has been sent
        yield check_message_limit(where, chunk_bytes, sizes)
    if address.user == "guest" or _accepts_guest(url):
        yield Finding(
            "wrong", f"{where} accepts guest with its default password: rabbitmqctl delete_user guest"
        )


def check_message_limit(where: str, chunk_bytes: int, sizes: "Sizes | None") -> Finding:
    """`chunk_bytes`: what the broker has taken as one message"""
    limit = "" if chunk_bytes == CHUNK_BYTES else f", since max_message_size is below {CHUNK_BYTES}"
    if sizes is None:
        return Finding("ok", f"{where} takes bodies in messages of {chunk_bytes} bytes{limit}")
    largest = max(sizes.model, sizes.update)
    needed = largest // MAX_CHUNKS + 1 + OVERHEAD_BYTES
    if needed > chunk_bytes:
        return Finding(
            "wrong",
            f"{where}: max_message_size is too small for a body of {largest} bytes in {MAX_CHUNKS} messages: set "
            f"max_message_size = {min(_power_of_two(needed), CHUNK_BYTES)} or more in its rabbitmq.conf",
        )
    count = -(-largest // (chunk_bytes - OVERHEAD_BYTES))
    return Finding(
        "ok", f"{where} takes this recipe's largest body, of {largest} bytes, in messages: {count}{limit}"
    )


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _permission_problems(transport: Transport, site: str | None) -> Iterator[str]:
    run = f"{PROBE}-{secrets.token_hex(8)}"
    updates = updates_queue(run, site or PROBE)
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


def site_of(user: str) -> str | None:
    prefix = site_user("")
    return user.removeprefix(prefix) if user.startswith(prefix) else None
