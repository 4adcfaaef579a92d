"""Ledgers and the board in Redis.

Every change is a transaction on absolute state (WATCH, MULTI, EXEC), so repeating one is harmless. Not Lua: a site
would need the right to run scripts, and one endless script stops Redis for all.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from broker_config.errors import BrokerRefused, LedgerFenced, LedgerMissing, MessageRejected
from broker_config.patient import Patience
from broker_config.schema import bad_field, check_count, check_run
from broker_config.stores.memory import KEPT_GENERATIONS
from broker_config.stores.redis_keys import board_key, clients_key, ledger_key, notice_key, site_in
from broker_config.stores.redis_link import Client, NotOurs, RedisLink
from broker_config.stores.shelves import Record
from broker_config.topology import DEFAULT_SITE

MAX_NAME_LENGTH = 200
MAX_FACTS_BYTES = 1 << 16
_LONGEST_NOTICE_SECONDS = 1e9
_CLIENTS_AT_ONCE = 100
_RECORD = ("opened", "first", "kept")


_MOST_NOTICES = 1000
"""Of one topic that are looked at: a site may put up any number."""


class RedisStore:
    """After a reply was lost and the question repeated, `commit` may say False to the one who wrote."""

    def __init__(
        self, url: str, site_of: Callable[[int], str] | None = None, patience: Patience | None = None
    ) -> None:
        """`site_of` names the owner of a client, "default" if nothing else is said. It is part of the key, so
        that an ACL can fence sites off."""
        self._link = RedisLink(url, patience)
        self._site_of = site_of or (lambda _: DEFAULT_SITE)

    @property
    def away_seconds(self) -> float:
        return self._link.away_seconds

    def check(self) -> None:
        """Raises BrokerRefused if this Redis or our rights in it cannot keep ledgers."""
        self._link.check()

    def open_activation(self, run: str, client: int, activation: int) -> None:
        check_count("activation", activation)

        def opened(record: Record) -> Record:
            if activation < record.opened:
                raise _fenced(run, client, activation, record.opened)
            return replace(record, opened=activation)

        self._rewrite(run, client, opened)

    def read(self, run: str, client: int, before_activation: int, at_least: int = 0) -> bytes | None:
        check_count("activation", before_activation)
        key = self._ledger_key(run, client)
        with _only_ledgers(key):
            fields: dict[bytes, bytes] = self._link.ask(lambda redis: redis.hgetall(key))
            record = _record_in(fields)
        earlier = [activation for activation in record.kept if activation < before_activation]
        if record.kept and not earlier and 0 < record.first < before_activation:
            raise LedgerMissing(
                f"run {run!r}, client {client}: what came before activation {before_activation} has "
                f"made room for {record.kept}: drop this task, a later one is under way"
            )
        newest = max(earlier, default=0)
        if newest < at_least or (earlier and b"%d" % newest not in fields):
            raise LedgerMissing(
                f"Redis at {self._link.where} has lost the ledger of run {run!r}, client {client}, activation "
                f"{max(newest, at_least)}: it runs without persistence or was restored from an older copy. "
                "Restore its append-only file, or start a new run"
            )
        return fields[b"%d" % newest] if earlier else None

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool:
        check_count("activation", activation)

        def committed(record: Record) -> Record:
            if activation in record.kept:
                return record
            if activation < record.opened:
                raise _fenced(run, client, activation, record.opened)
            kept = (*record.kept, activation)[-KEPT_GENERATIONS:]
            return Record(activation, record.first or activation, kept)

        return self._rewrite(run, client, committed, {activation: ledger})

    def latest(self, run: str, clients: Sequence[int] | None = None) -> dict[int, tuple[int, bytes]]:
        if clients is None:
            clients = self.clients(run)
        newest: dict[int, tuple[int, bytes]] = {}
        for start in range(0, len(clients), _CLIENTS_AT_ONCE):
            newest |= self._latest_of(run, clients[start : start + _CLIENTS_AT_ONCE])
        return newest

    def sites(self, run: str) -> list[str]:
        """Those with a ledger of this run. Walks all keys: for the server and for people."""
        pattern = clients_key("*", check_run("run", run))
        keys = self._link.ask(lambda redis: list(redis.scan_iter(pattern, count=1000)))
        return sorted({site_in(key.decode()) for key in keys})

    def clients(self, run: str) -> list[int]:
        """Those with a ledger at the site that owns them."""
        return sorted(client for site in self.sites(run) for client in self._clients_at(site, run))

    def record(self, run: str, client: int) -> Record:
        """What is open and what is kept: for people."""
        key = self._ledger_key(run, client)
        with _only_ledgers(key):
            return _record_from(self._link.ask(lambda redis: redis.hmget(key, _RECORD)))

    def announce(self, topic: str, name: str, facts: Mapping[str, object], seconds: float) -> None:
        board, notice = board_key(check_run("topic", topic)), notice_key(topic, _check_name(name))
        body = _facts_to_json(facts)
        if not 0 < seconds < _LONGEST_NOTICE_SECONDS:
            raise bad_field("seconds", f"more than 0 and less than {_LONGEST_NOTICE_SECONDS:.0f}", seconds)
        milliseconds = max(1, round(seconds * 1000))

        def write(redis: Client) -> None:
            seconds, microseconds = redis.time()  # of Redis: the clocks of sites differ
            now = seconds * 1000 + microseconds // 1000
            with redis.pipeline() as transaction:
                transaction.set(notice, body, px=milliseconds)
                transaction.zadd(board, {name: now + milliseconds})
                transaction.zremrangebyscore(board, "-inf", now)
                transaction.execute()

        self._link.ask(write)

    def withdraw(self, topic: str, name: str) -> None:
        board, notice = board_key(check_run("topic", topic)), notice_key(topic, _check_name(name))

        def remove(redis: Client) -> None:
            with redis.pipeline() as transaction:
                transaction.delete(notice)
                transaction.zrem(board, name)
                transaction.execute()

        self._link.ask(remove)

    def notices(self, topic: str) -> dict[str, dict[str, Any]]:
        """What cannot be read is passed over: a site writes its board itself, and the server reads it."""
        board = board_key(check_run("topic", topic))
        try:
            names = [
                name.decode(errors="replace")
                for name in self._link.ask(lambda redis: redis.zrange(board, 0, _MOST_NOTICES - 1))
            ]
        except NotOurs:
            return {}
        if not names:
            return {}
        bodies = self._link.ask(lambda redis: redis.mget([notice_key(topic, name) for name in names]))
        found = {name: _facts_from_json(body) for name, body in zip(names, bodies, strict=True)}
        return {name: facts for name, facts in sorted(found.items()) if facts is not None}

    def health(self) -> Mapping[str, float]:
        """Needs no more rights than `check` does; who has not even those learns nothing."""
        try:
            info: dict[str, Any] = self._link.ask(lambda redis: redis.info())
        except BrokerRefused:
            return {}
        databases = [facts for facts in info.values() if isinstance(facts, dict) and "keys" in facts]
        known = {
            "used_memory_bytes": info.get("used_memory"),
            "evicted_keys": info.get("evicted_keys"),
            "keys": sum(facts["keys"] for facts in databases),
        }
        return {name: float(value) for name, value in known.items() if value is not None}

    def close(self) -> None:
        self._link.close()

    def _rewrite(
        self,
        run: str,
        client: int,
        decide: Callable[[Record], Record],
        ledgers: Mapping[int, bytes] | None = None,
    ) -> bool:
        """The record after `decide`, and these ledgers with it. False if it stays as it is."""
        key = self._ledger_key(run, client)
        clients = clients_key(self._site_of(client), run)

        def rewrite(redis: Client) -> bool:
            with redis.pipeline() as transaction:
                transaction.watch(key)
                before = _record_from(transaction.hmget(key, _RECORD))
                after = decide(before)
                if after == before:
                    return False
                transaction.multi()
                transaction.sadd(clients, client)
                transaction.hset(key, mapping=_fields_of(after) | dict(ledgers or {}))
                for dropped in set(before.kept) - set(after.kept):
                    transaction.hdel(key, str(dropped))
                transaction.execute()
                return True

        with _only_ledgers(key):
            return self._link.ask(rewrite)

    def _latest_of(self, run: str, clients: Sequence[int]) -> dict[int, tuple[int, bytes]]:
        keys = [self._ledger_key(run, client) for client in clients]

        def read_all(redis: Client) -> list[dict[bytes, bytes]]:
            with redis.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.hgetall(key)
                answers: list[dict[bytes, bytes]] = pipeline.execute()
                return answers

        newest: dict[int, tuple[int, bytes]] = {}
        with _only_ledgers(f"one of {keys[0]} … {keys[-1]}"):
            for client, fields in zip(clients, self._link.ask(read_all), strict=True):
                if kept := _record_in(fields).kept:
                    newest[client] = (kept[-1], fields[b"%d" % kept[-1]])
        return newest

    def _clients_at(self, site: str, run: str) -> list[int]:
        """A site could write down clients that are not its own, or that nobody knows."""
        key = clients_key(site, run)
        with _only_ledgers(key):
            clients = [int(client) for client in self._link.ask(lambda redis: redis.smembers(key))]
        return [client for client in clients if self._owner(client) == site]

    def _owner(self, client: int) -> str | None:
        try:
            return self._site_of(client)
        except (LookupError, StopIteration):
            return None

    def _ledger_key(self, run: str, client: int) -> str:
        check_count("client", client)
        return ledger_key(check_run("site", self._site_of(client)), check_run("run", run), client)


def _record_in(fields: Mapping[bytes, bytes]) -> Record:
    return _record_from([fields.get(name.encode()) for name in _RECORD])


def _record_from(values: Sequence[bytes | None]) -> Record:
    opened, first, kept = values
    return Record(int(opened or 0), int(first or 0), tuple(map(int, (kept or b"").split())))


def _fields_of(record: Record) -> dict[str | int, str | int | bytes]:
    return {"opened": record.opened, "first": record.first, "kept": " ".join(map(str, record.kept))}


@contextmanager
def _only_ledgers(key: str) -> Iterator[None]:
    """A site may write what it likes under its own keys; it can harm only itself."""
    try:
        yield
    except (NotOurs, ValueError, KeyError) as error:
        raise LedgerMissing(
            f"{key} in Redis does not hold what FedIL wrote there ({error}): restore Redis's append-only file, "
            "or start a new run"
        ) from error


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH:
        raise bad_field("name", f"text of 1 to {MAX_NAME_LENGTH} characters", name)
    return name


def _facts_to_json(facts: Mapping[str, object]) -> str:
    try:
        body = json.dumps(dict(facts), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageRejected("schema", f"facts that are not plain values: {error}") from error
    if len(body) > MAX_FACTS_BYTES:
        raise MessageRejected("too_large", f"{len(body)} bytes of facts; at most {MAX_FACTS_BYTES}")
    return body


def _facts_from_json(body: bytes | None) -> dict[str, Any] | None:
    try:
        facts = json.loads(body or b"")
    except (ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) else None


def _fenced(run: str, client: int, activation: int, opened: int) -> LedgerFenced:
    return LedgerFenced(f"run {run!r}, client {client}: activation {activation} is over, {opened} is open")
