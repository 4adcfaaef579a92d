"""Ledgers and the board in Redis.

Every change is a transaction on absolute state (WATCH, MULTI, EXEC), so repeating one is harmless. Not Lua: a site
would need the right to run scripts, and one endless script stops Redis for all.

No transaction has more than one write: from Redis 7.0 on that goes into the append-only file without MULTI and EXEC
around it. When Redis reads the file back, it passes over transactions that its user `default` may not do
(redis/redis#14541), and who switches that user off usually leaves it no rights.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from broker_config.brokers.topology import DEFAULT_SITE
from broker_config.protocol.buffers import check_size
from broker_config.protocol.errors import BrokerRefused, LedgerMissing
from broker_config.protocol.schema import MAX_COUNT, check_count, check_run
from broker_config.stores.batches import in_batches
from broker_config.stores.memory.shelves import Record
from broker_config.stores.memory.store import KEPT_GENERATIONS, fenced, made_room
from broker_config.stores.redis.board import RedisBoard
from broker_config.stores.redis.connection import Client, NotOurs, RedisLink
from broker_config.stores.redis.keys import clients_key, ledger_key, run_key, site_in
from broker_config.transports.reconnecting import Patience

MAX_LEDGER_BYTES = 64 << 20
"""A sample takes about three."""
_LEDGERS_AT_ONCE = 80
_MOST_RECORD_BYTES = 64
_MOST_CLIENTS_BYTES = 64 << 20
"""That a list of clients may take in Redis, where each takes some 70"""
_RECORD = ("opened", "first", "kept")


class RedisStore:
    """After a reply was lost and the question repeated, `commit` may say False to the one who wrote."""

    def __init__(
        self, url: str, site_of: Callable[[int], str] | None = None, patience: Patience | None = None
    ) -> None:
        """`site_of` names the owner of a client, "default" if nothing else is said. It is part of the key, so
        that an ACL can fence sites off."""
        self._link = RedisLink(url, patience)
        self._board = RedisBoard(self._link)
        self._site_of = site_of or (lambda _: DEFAULT_SITE)

    @property
    def away_seconds(self) -> float:
        return self._link.away_seconds

    def check(self) -> None:
        """Raises BrokerRefused if this Redis or our rights in it cannot keep ledgers."""
        self._link.check()

    def begin(self, run: str) -> None:
        key = run_key(check_run("run", run))
        self._link.ask(lambda redis: redis.set(key, "begun"))

    def check_begun(self, run: str) -> None:
        key = run_key(check_run("run", run))
        if not self._link.ask(lambda redis: redis.strlen(key)):
            raise LedgerMissing(
                f"Redis at {self._link.where} has lost all that it kept of run {run!r}: it was emptied, runs without "
                "persistence or is another one. Restore its append-only file, or start a new run"
            )

    def open_activation(self, run: str, client: int, activation: int) -> None:
        check_count("activation", activation)

        def opened(record: Record) -> Record:
            if activation < record.opened:
                raise fenced(run, client, activation, record.opened)
            return replace(record, opened=activation)

        self._rewrite(run, client, opened)

    def read(self, run: str, client: int, before_activation: int, at_least: int = 0) -> bytes | None:
        check_count("activation", before_activation)
        key = self._ledger_key(run, client)
        record = self.record(run, client)
        earlier = [activation for activation in record.kept if activation < before_activation]
        if record.kept and not earlier and 0 < record.first < before_activation:
            raise made_room(run, client, before_activation, record.kept)
        newest = max(earlier, default=0)
        ledger = self._ledgers({key: newest})[0] if earlier else None
        if newest < at_least or (earlier and ledger is None):
            raise LedgerMissing(
                f"Redis at {self._link.where} has lost the ledger of run {run!r}, client {client}, activation "
                f"{max(newest, at_least)}: it runs without persistence or was restored from an older copy. "
                "Restore its append-only file, or start a new run"
            )
        return ledger

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool:
        check_count("activation", activation)
        check_size(len(ledger), MAX_LEDGER_BYTES)

        def committed(record: Record) -> Record:
            if activation in record.kept:
                return record
            if activation < record.opened:
                raise fenced(run, client, activation, record.opened)
            kept = (*record.kept, activation)[-KEPT_GENERATIONS:]
            return Record(activation, record.first or activation, kept)

        return self._rewrite(run, client, committed, {activation: ledger})

    def latest(self, run: str, clients: Sequence[int] | None = None) -> dict[int, tuple[int, bytes]]:
        if clients is None:
            clients = self.clients(run)
        newest: dict[int, tuple[int, bytes]] = {}
        for batch in in_batches(clients):
            newest |= self._latest_of(run, batch)
        return newest

    def ledgers(self, run: str, activations: Mapping[int, int]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for batch in in_batches(list(activations), _LEDGERS_AT_ONCE):
            keys = {
                self._ledger_key(run, client): check_count("activation", activations[client])
                for client in batch
            }
            kept = zip(batch, self._ledgers(keys), strict=True)
            found |= {client: ledger for client, ledger in kept if ledger is not None}
        return found

    def sites(self, run: str) -> list[str]:
        """Those with a ledger of this run. Walks all keys: for the server and for people."""
        pattern = clients_key("*", check_run("run", run))

        def scan(redis: Client) -> set[str]:
            keys = (key.decode(errors="replace") for key in redis.scan_iter(pattern, count=1000))
            # A site may put up other names that fit the pattern.
            return {site_in(key) for key in keys if key == clients_key(site_in(key), run)}

        return sorted(self._link.ask(scan))

    def clients(self, run: str) -> list[int]:
        """Those with a ledger at the site that owns them."""
        return sorted(client for site in self.sites(run) for client in self._clients_at(site, run))

    def record(self, run: str, client: int) -> Record:
        """What is open and what is kept: for people."""
        key = self._ledger_key(run, client)
        with _only_ledgers(key):
            return self._link.ask(lambda redis: _records(redis, [key]))[0]

    def announce(self, topic: str, name: str, facts: Mapping[str, object], seconds: float) -> None:
        self._board.announce(topic, name, facts, seconds)

    def withdraw(self, topic: str, name: str) -> None:
        self._board.withdraw(topic, name)

    def notices(self, topic: str) -> dict[str, dict[str, Any]]:
        return self._board.notices(topic)

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

        dropped: set[int] = set()

        def rewrite(redis: Client) -> bool:
            _check_sizes(redis, [(key, _RECORD)], _MOST_RECORD_BYTES)
            with redis.pipeline() as transaction:
                transaction.watch(key)
                before = _record_from(transaction.hmget(key, _RECORD))
                after = decide(before)
                if after != before:
                    dropped.update(before.kept)
                    transaction.sadd(clients, client)  # first: what is on no list nobody finds
                    transaction.multi()
                    transaction.hset(key, mapping=_fields_of(after) | dict(ledgers or {}))
                    transaction.execute()
            # Also after a reply was lost. What stays behind if we die here only takes space.
            if old := dropped - set(after.kept):
                redis.hdel(key, *map(str, old))
            return after != before

        with _only_ledgers(key):
            return self._link.ask(rewrite)

    def _latest_of(self, run: str, clients: Sequence[int]) -> dict[int, tuple[int, bytes]]:
        keys = [self._ledger_key(run, client) for client in clients]
        with _only_ledgers(_any_of(keys)):
            records = self._link.ask(lambda redis: _records(redis, keys))
        newest = {
            client: (key, record.kept[-1])
            for client, key, record in zip(clients, keys, records, strict=True)
            if record.kept
        }
        if not newest:
            return {}
        ledgers = self._ledgers(dict(newest.values()))
        found: dict[int, tuple[int, bytes]] = {}
        for (client, (key, activation)), ledger in zip(newest.items(), ledgers, strict=True):
            with _only_ledgers(key):
                if ledger is None:
                    raise KeyError(f"activation {activation}")
            found[client] = (activation, ledger)
        return found

    def _ledgers(self, activations: Mapping[str, int]) -> list[bytes | None]:
        """`activations`: by the ledger's key"""
        wanted = [(key, [str(activation)]) for key, activation in activations.items()]
        with _only_ledgers(_any_of(list(activations))):
            answers = self._link.ask(lambda redis: _fields(redis, wanted, MAX_LEDGER_BYTES))
        return [ledger for (ledger,) in answers]

    def _clients_at(self, site: str, run: str) -> list[int]:
        """A site could write down clients that are not its own, or that nobody knows."""
        key = clients_key(site, run)

        def members(redis: Client) -> Iterable[bytes]:
            num_bytes = redis.memory_usage(key, samples=0) or 0
            if num_bytes > _MOST_CLIENTS_BYTES:
                raise NotOurs(f"{num_bytes} bytes; at most {_MOST_CLIENTS_BYTES}")
            found: Iterable[bytes] = redis.smembers(key)
            return found

        with _only_ledgers(key):
            clients = {
                client for member in self._link.ask(members) if (client := _client_in(member)) is not None
            }
        return [client for client in clients if self._owner(client) == site]

    def _owner(self, client: int) -> str | None:
        try:
            return self._site_of(client)
        except (LookupError, StopIteration):
            return None

    def _ledger_key(self, run: str, client: int) -> str:
        check_count("client", client)
        return ledger_key(check_run("site", self._site_of(client)), check_run("run", run), client)


_Wanted = Sequence[tuple[str, Sequence[str]]]
"""Keys of hashes, and names of fields in each"""


def _check_sizes(redis: Client, wanted: _Wanted, most_bytes: int) -> None:
    """Before any of it is read: under its own keys a site may have put half a gigabyte into each field."""
    fields = [(key, name) for key, names in wanted for name in names]
    with redis.pipeline(transaction=False) as pipeline:
        for key, name in fields:
            pipeline.hstrlen(key, name)
        sizes = pipeline.execute()
    for (key, name), size in zip(fields, sizes, strict=True):
        with _only_ledgers(key):
            if size > most_bytes:
                raise NotOurs(f"{name} has {size} bytes; at most {most_bytes}")


def _fields(redis: Client, wanted: _Wanted, most_bytes: int) -> list[list[bytes | None]]:
    _check_sizes(redis, wanted, most_bytes)
    with redis.pipeline(transaction=False) as pipeline:
        for key, names in wanted:
            pipeline.hmget(key, names)
        values: list[list[bytes | None]] = pipeline.execute()
        return values


def _records(redis: Client, keys: Sequence[str]) -> list[Record]:
    records: list[Record] = []
    found = _fields(redis, [(key, _RECORD) for key in keys], _MOST_RECORD_BYTES)
    for key, values in zip(keys, found, strict=True):
        with _only_ledgers(key):
            records.append(_record_from(values))
    return records


def _record_from(values: Sequence[bytes | None]) -> Record:
    opened, first, kept = values
    return Record(
        _count_in(opened or b"0"), _count_in(first or b"0"), tuple(map(_count_in, (kept or b"").split()))
    )


def _count_in(text: bytes) -> int:
    """Strictly: int() would also take b"-1", b"1_0" and b" 1"."""
    if len(text) > _MOST_RECORD_BYTES or not text.isdigit() or int(text) >= MAX_COUNT:
        raise ValueError(f"{text!r:.80} is no count")
    return int(text)


def _client_in(member: bytes) -> int | None:
    try:
        return _count_in(member)
    except ValueError:
        return None


def _fields_of(record: Record) -> dict[str | int, str | int | bytes]:
    return {"opened": record.opened, "first": record.first, "kept": " ".join(map(str, record.kept))}


def _any_of(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"one of {keys[0]} … {keys[-1]}"


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
