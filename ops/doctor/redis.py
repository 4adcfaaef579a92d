"""Checks of Redis with the credentials of a server or a site."""

from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from broker_config.stores.redis.admin import RedisReport, accepts_anonymous, inspect_redis
from broker_config.stores.redis.keys import ledger_key
from ops.doctor.clocks import check_clock
from ops.doctor.finding import Finding, wrong_or_ok
from ops.doctor.rabbitmq import PROBE, site_of


def check_redis(url: str) -> Iterator[Finding]:
    site = site_of(unquote(urlsplit(url).username or ""))
    own, foreign = ledger_key(site or PROBE, PROBE, 0), ledger_key(PROBE, PROBE, 0)
    for found in inspect_redis(url, own, foreign if site is not None else None):
        yield from _check_node(found, "a site" if site else "a server")


def _check_node(found: RedisReport, whose: str) -> Iterator[Finding]:
    where = f"{found.product} at {found.endpoint}"
    keeps = f"({found.place}) keeps what it confirms, and has the rights of {whose}"
    yield from (Finding("unknown", f"{where}: {problem}") for problem in found.unknown)
    yield from wrong_or_ok(where, found.wrong, keeps)
    yield from check_clock(where, found.clock_ahead_seconds)
    parts = urlsplit(found.url)
    if accepts_anonymous(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()):
        yield Finding(
            "wrong", f"{where} accepts clients without a password: redis-cli ACL SETUSER default off"
        )
