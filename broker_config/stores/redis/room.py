"""Makes room in a Redis that a site has filled, and says which site it was.

Redis bounds the memory of all its users together and that of none alone, and its ACLs bound neither sizes nor numbers.
So when little memory is left, what no server reads is deleted: ledgers of runs that no server has begun with the site,
ledgers of clients that the site does not have, and notices beyond what its workers need. Ledgers of its own clients in
runs that were begun cannot be told from garbage before they are read: there the site is only named.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from operator import add

from broker_config.process.retry import RetryPolicy
from broker_config.protocol.schema import is_run_name
from broker_config.stores.redis.connection import RedisConnection
from broker_config.stores.redis.keys import mark_key
from broker_config.stores.redis.nodes import Client

_NEARLY_FULL = 0.8
_MOST_NOTICE_BYTES, _MOST_NOTICES_BYTES = 1 << 20, 16 << 20
"""Of one notice, and of all of a site"""
_KEYS_PER_SCAN = 1000
_OF_SITE = re.compile(r"fedil:\{([^/{}]+)/.*", re.DOTALL)
_LEDGER = re.compile(r"fedil:\{[^/{}]+/(.*)\}:(?:clients|ledger:(.*))", re.DOTALL)
_NOTICE = re.compile(r"fedil:board:\{workers\.([^{}]+)\}.*", re.DOTALL)
"""All that the ACL of a site allows: see keys.py"""
_RETRY = RetryPolicy(seconds=1.0)


@dataclass
class SiteMemory:
    num_bytes: int = 0
    deleted_bytes: int = 0
    notices_bytes: int = 0

    def __add__(self, other: "SiteMemory") -> "SiteMemory":
        return SiteMemory(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True)
class _Key:
    name: bytes
    site: str
    run: str | None
    """None: of a notice; "" if the key is none of ours"""
    client: str | None


@contextmanager
def open_room(url: str, run: str, site_of: Callable[[int], str | None]) -> Iterator["RedisRoom"]:
    with closing(RedisConnection(url, _RETRY)) as connection:
        yield RedisRoom(connection, run, site_of)


class RedisRoom:
    def __init__(self, connection: RedisConnection, run: str, site_of: Callable[[int], str | None]) -> None:
        """`run`: the caller's own, of which it knows the clients; `site_of`: the site of each, None for no client"""
        self._connection, self._run, self._site_of = connection, run, site_of

    def make(self) -> dict[str, SiteMemory]:
        """By site, most bytes first; nothing while there is enough memory. Needs the server's permissions."""
        total: dict[str, SiteMemory] = {}
        for taken in self._connection.call_each(self._make_at).values():
            for site, memory in taken.items():
                total[site] = total.get(site, SiteMemory()) + memory
        return dict(sorted(total.items(), key=lambda item: -item[1].num_bytes))

    def _make_at(self, redis: Client) -> dict[str, SiteMemory]:
        taken: dict[str, SiteMemory] = {}
        cursor = 0 if _is_nearly_full(redis) else None
        while cursor is not None:
            cursor, names = redis.scan(cursor, match="fedil:*", count=_KEYS_PER_SCAN)
            self._clear([key for name in names if (key := _parse(name)) is not None], taken, redis)
            cursor = cursor or None
        return taken

    def _clear(self, keys: Sequence[_Key], taken: dict[str, SiteMemory], redis: Client) -> None:
        # The mark is written before any ledger: without one now, these keys belong to no run.
        marks = sorted({mark_key(key.site, key.run) for key in keys if key.run})
        with redis.pipeline(transaction=False) as pipeline:
            for mark in marks:
                pipeline.hstrlen(mark, "count")
            for key in keys:
                pipeline.memory_usage(key.name)
            answers = pipeline.execute()
        begun = {mark for mark, length in zip(marks, answers, strict=False) if length}
        garbage = []
        for key, num_bytes in zip(keys, answers[len(marks) :], strict=True):
            site = taken.setdefault(key.site, SiteMemory())
            site.num_bytes += num_bytes or 0
            if self._is_garbage(key, num_bytes or 0, begun, site):
                site.deleted_bytes += num_bytes or 0
                garbage.append(key.name)
        with redis.pipeline(transaction=False) as pipeline:
            for name in garbage:  # one by one: in a cluster a command takes keys of one slot only
                pipeline.delete(name)
            pipeline.execute()

    def _is_garbage(self, key: _Key, num_bytes: int, begun: set[str], site: SiteMemory) -> bool:
        if key.run is None:
            site.notices_bytes += num_bytes
            return num_bytes > _MOST_NOTICE_BYTES or site.notices_bytes > _MOST_NOTICES_BYTES
        if mark_key(key.site, key.run) not in begun:
            return True
        if key.run != self._run or key.client is None:
            return False
        client = int(key.client[:20]) if key.client.isdecimal() else -1
        return str(client) != key.client or self._site_of(client) != key.site


def _is_nearly_full(redis: Client) -> bool:
    memory = redis.info("memory")
    return bool(0 < _NEARLY_FULL * memory.get("maxmemory", 0) < memory["used_memory"])


def _parse(name: bytes) -> _Key | None:
    """None: not under the prefixes of a site"""
    text = name.decode(errors="replace")
    if owner := _OF_SITE.fullmatch(text):
        ledger = _LEDGER.fullmatch(text)
        if ledger is None or not is_run_name(ledger[1]):
            return _Key(name, owner[1], "", None)
        return _Key(name, owner[1], ledger[1], ledger[2])
    if owner := _NOTICE.fullmatch(text):
        return _Key(name, owner[1], None, None)
    return None
