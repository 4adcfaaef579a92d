"""Ledgers and notices in Redis.

Every change is a transaction on absolute values (WATCH, MULTI, EXEC), so it is idempotent. No Lua: a site would need
permission to run scripts, and one endless script stops Redis for every site.

No transaction contains more than one write: Redis 7.0 and later log such a transaction without MULTI and EXEC. While
Redis replays its append-only file it skips transactions for which its user `default` has no permission
(redis/redis#14541), and operators who disable that user usually leave it without permissions.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from broker_config.brokers.topology import DEFAULT_SITE
from broker_config.process.retry import RetryPolicy
from broker_config.protocol.buffers import check_size
from broker_config.protocol.errors import BrokerRefused, LedgerMissing
from broker_config.protocol.schema import MAX_COUNT, check_count, check_run
from broker_config.stores.batches import CLIENTS_AT_ONCE, in_batches
from broker_config.stores.record import LedgerRecord
from broker_config.stores.redis.board import RedisBoard
from broker_config.stores.redis.connection import RedisConnection, UnexpectedValue
from broker_config.stores.redis.keys import clients_key, ledger_key, mark_key, site_in
from broker_config.stores.redis.nodes import Client
from broker_config.stores.redis.replication import confirm
from broker_config.stores.redis.server_check import check_server

MAX_LEDGER_BYTES = 64 << 20
"""A sample takes about three bytes."""
_LEDGERS_PER_BATCH = 80
_MAX_RECORD_BYTES = 64
MAX_CLIENTS_BYTES = 64 << 20
"""Size in Redis of a client list that is read; a client takes about 70 bytes."""
_RECORD_FIELDS = ("opened", "first", "kept")
_COUNT, _CONFIRMED = "count", "confirmed"
"""Fields of a mark. The second, of ledgers too, is never read; see replication.py."""


class RedisStore:
    """If the reply to a commit is lost, the repeated commit returns False to the caller that wrote it."""

    def __init__(
        self, url: str, site_of: Callable[[int], str] | None = None, retry: RetryPolicy | None = None
    ) -> None:
        """`site_of` maps a client to its site, by default to "default". The site is part of the key, so that ACLs can
        separate sites."""
        self._connection = RedisConnection(url, retry)
        self._board = RedisBoard(self._connection)
        self.server_id = ""
        self._site_of = site_of or (lambda _: DEFAULT_SITE)
        self.announce = self._board.announce
        self.withdraw = self._board.withdraw
        self.notices = self._board.notices

    @property
    def outage_seconds(self) -> float:
        return self._connection.outage_seconds

    def check(self) -> None:
        """Raises BrokerRefused if this Redis, or this user's permissions in it, cannot keep ledgers."""
        check_server(self._connection)

    def begin(self, run: str, site: str) -> None:
        key = _mark_key(run, site)

        def write(redis: Client) -> None:
            redis.hset(key, _COUNT, 0)
            self.server_id = redis.info("replication")["master_replid"]
            self._confirm(redis, key)

        self._connection.call(write, key)

    def count(self, run: str, site: str, counted: int) -> int:
        key = _mark_key(run, site)

        def transact(redis: Client) -> int:
            # On one connection: no failover between looking and writing.
            with redis.pipeline() as transaction:
                transaction.watch(key)
                (mark,) = transaction.hmget(key, _COUNT)
                where = f"Redis at {self._connection.endpoint_of(key)}"
                if mark is None:
                    raise LedgerMissing(
                        f"{where} has lost all that it kept of run {run!r}, site {site}: it was emptied, runs without "
                        "persistence or is another one. Restore its append-only file, or start a new run"
                    )
                now = int(mark)
                if now < counted:
                    raise LedgerMissing(
                        f"{where} has gone back to an earlier state of run {run!r}, site {site} (its count is {now}, "
                        f"the server's {counted}), as in a failover to a replica that was behind: restore its "
                        "append-only file, or start a new run"
                    )
                server_id = transaction.info("replication")["master_replid"]
                transaction.multi()
                transaction.hset(key, _COUNT, now + 1)
                transaction.execute()
            self.server_id = server_id
            self._confirm(redis, key)
            return now + 1

        return self._connection.call(transact, key)

    def _confirm(self, redis: Client, key: str) -> None:
        # By a field of its own: a packet that a broken connection delivers late would set a count or a record back.
        confirm(redis, self._connection.replicas, lambda again: again.hset(key, _CONFIRMED, 1))

    def open_activation(self, run: str, client: int, activation: int) -> None:
        check_count("activation", activation)
        self._update(run, client, lambda record, owner: record.open(activation, owner))

    def read(self, run: str, client: int, before_activation: int, at_least: int = 0) -> bytes | None:
        check_count("activation", before_activation)
        key = self._ledger_key(run, client)
        generation = self.record(run, client).latest_before(before_activation, _owner(run, client))
        ledger = None if generation is None else self._read_ledgers({key: generation})[0]
        if (generation or 0) < at_least or (generation is not None and ledger is None):
            raise LedgerMissing(
                f"Redis at {self._connection.endpoint_of(key)} has lost the ledger of run {run!r}, client {client}, "
                f"activation {max(generation or 0, at_least)}: it runs without persistence or was restored from an "
                "older copy. Restore its append-only file, or start a new run"
            )
        return ledger

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool:
        check_count("activation", activation)
        check_size(len(ledger), MAX_LEDGER_BYTES)
        return self._update(
            run, client, lambda record, owner: record.commit(activation, owner), {activation: ledger}
        )

    def latest(self, run: str, clients: Sequence[int] | None = None) -> dict[int, tuple[int, bytes]]:
        if clients is None:
            clients = self.clients(run)
        newest: dict[int, tuple[int, bytes]] = {}
        for batch in self._batches(clients, CLIENTS_AT_ONCE):
            newest |= self._latest_of(run, batch)
        return newest

    def ledgers(self, run: str, activations: Mapping[int, int]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for batch in self._batches(list(activations), _LEDGERS_PER_BATCH):
            keys = {
                self._ledger_key(run, client): check_count("activation", activations[client])
                for client in batch
            }
            kept = zip(batch, self._read_ledgers(keys), strict=True)
            found |= {client: ledger for client, ledger in kept if ledger is not None}
        return found

    def sites(self, run: str) -> list[str]:
        """Sites with a ledger of this run. Scans all keys; needs the permissions of the server."""
        pattern = clients_key("*", check_run("run", run))

        def scan(redis: Client) -> set[str]:
            keys = (key.decode(errors="replace") for key in redis.scan_iter(pattern, count=1000))
            # A site may create other names that match the pattern.
            return {site_in(key) for key in keys if key == clients_key(site_in(key), run)}

        return sorted(set().union(*self._connection.call_each(scan).values()))

    def clients(self, run: str) -> list[int]:
        """Clients with a ledger at the site that owns them."""
        return sorted(client for site in self.sites(run) for client in self._clients_at(site, run))

    def record(self, run: str, client: int) -> LedgerRecord:
        key = self._ledger_key(run, client)
        with _as_ledger_missing(key):
            return self._connection.call(lambda redis: _read_records(redis, [key]), key)[0]

    def health(self) -> Mapping[str, float]:
        """Needs no more permissions than `check`."""
        try:
            nodes: dict[str, dict[str, Any]] = self._connection.call_each(lambda redis: redis.info())
        except BrokerRefused:
            return {}
        health = Counter[str]()
        for info in nodes.values():
            databases = [facts for facts in info.values() if isinstance(facts, dict) and "keys" in facts]
            known = {
                "used_memory_bytes": info.get("used_memory"),
                "evicted_keys": info.get("evicted_keys"),
                "keys": sum(facts["keys"] for facts in databases),
            }
            health.update({name: value for name, value in known.items() if value is not None})
        return {name: float(value) for name, value in health.items()}

    def close(self) -> None:
        self._connection.close()

    def _update(
        self,
        run: str,
        client: int,
        change: Callable[[LedgerRecord, str], LedgerRecord],
        ledgers: Mapping[int, bytes] | None = None,
    ) -> bool:
        """Replaces the record by `change(record, owner)`, and writes these ledgers with it. False if the record stays
        as it is."""
        key, clients = self._ledger_key(run, client), clients_key(self._site_of(client), run)
        dropped: set[int] = set()

        def transact(redis: Client) -> bool:
            _check_sizes(redis, [(key, _RECORD_FIELDS)], _MAX_RECORD_BYTES)
            with redis.pipeline() as transaction:
                transaction.watch(key)
                before = _record_from(transaction.hmget(key, _RECORD_FIELDS))
                after = change(before, _owner(run, client))
                if after != before:
                    dropped.update(before.kept)
                    # First: a ledger whose client is on no list would never be found.
                    transaction.sadd(clients, client)
                    transaction.multi()
                    transaction.hset(key, mapping=_fields_of(after) | dict(ledgers or {}))
                    transaction.execute()
            # Also after a lost reply. If this process dies here, the old ledger only takes space.
            if old := dropped - set(after.kept):
                redis.hdel(key, *map(str, old))
            # Also if the record stays: it may have been written just now, and not be confirmed yet.
            self._confirm(redis, key)
            return after != before

        with _as_ledger_missing(key):
            return self._connection.call(transact, key)

    def _batches(self, clients: Sequence[int], size: int) -> Iterator[Sequence[int]]:
        """Of one site each: in a cluster the ledgers of two sites may be at two nodes."""
        for _, of_site in groupby(clients, self._site_or_none):
            yield from in_batches(list(of_site), size)

    def _latest_of(self, run: str, clients: Sequence[int]) -> dict[int, tuple[int, bytes]]:
        keys = [self._ledger_key(run, client) for client in clients]
        with _as_ledger_missing(_any_of(keys)):
            records = self._connection.call(lambda redis: _read_records(redis, keys), keys[0])
        newest = {
            client: (key, record.kept[-1])
            for client, key, record in zip(clients, keys, records, strict=True)
            if record.kept
        }
        if not newest:
            return {}
        ledgers = self._read_ledgers(dict(newest.values()))
        found: dict[int, tuple[int, bytes]] = {}
        for (client, (key, activation)), ledger in zip(newest.items(), ledgers, strict=True):
            with _as_ledger_missing(key):
                if ledger is None:
                    raise KeyError(f"activation {activation}")
            found[client] = (activation, ledger)
        return found

    def _read_ledgers(self, activations: Mapping[str, int]) -> list[bytes | None]:
        """`activations`: ledger key → activation"""
        wanted = [(key, [str(activation)]) for key, activation in activations.items()]
        with _as_ledger_missing(_any_of(list(activations))):
            values = self._connection.call(
                lambda redis: _read_fields(redis, wanted, MAX_LEDGER_BYTES), wanted[0][0]
            )
        return [ledger for (ledger,) in values]

    def _clients_at(self, site: str, run: str) -> list[int]:
        """Skips clients that belong to another site or to none: a site may write any number into its list."""
        key = clients_key(site, run)

        def members(redis: Client) -> Iterable[bytes]:
            num_bytes = redis.memory_usage(key, samples=0) or 0
            if num_bytes > MAX_CLIENTS_BYTES:
                raise UnexpectedValue(f"{num_bytes} bytes; at most {MAX_CLIENTS_BYTES}")
            found: Iterable[bytes] = redis.smembers(key)
            return found

        with _as_ledger_missing(key):
            listed = self._connection.call(members, key)
        clients = {client for member in listed if (client := _client_in(member)) is not None}
        return [client for client in clients if self._site_or_none(client) == site]

    def _site_or_none(self, client: int) -> str | None:
        try:
            return self._site_of(client)
        except (LookupError, StopIteration):
            return None

    def _ledger_key(self, run: str, client: int) -> str:
        check_count("client", client)
        return ledger_key(check_run("site", self._site_of(client)), check_run("run", run), client)


_Wanted = Sequence[tuple[str, Sequence[str]]]
"""Keys of hashes, with the names of the fields in each"""


def _mark_key(run: str, site: str) -> str:
    return mark_key(check_run("site", site), check_run("run", run))


def _owner(run: str, client: int) -> str:
    return f"run {run!r}, client {client}"


def _check_sizes(redis: Client, wanted: _Wanted, max_bytes: int) -> None:
    """Before anything is read: a site may have written half a gigabyte into each field under its keys."""
    fields = [(key, name) for key, names in wanted for name in names]
    with redis.pipeline(transaction=False) as pipeline:
        for key, name in fields:
            pipeline.hstrlen(key, name)
        sizes = pipeline.execute()
    for (key, name), size in zip(fields, sizes, strict=True):
        with _as_ledger_missing(key):
            if size > max_bytes:
                raise UnexpectedValue(f"{name} has {size} bytes; at most {max_bytes}")


def _read_fields(redis: Client, wanted: _Wanted, max_bytes: int) -> list[list[bytes | None]]:
    _check_sizes(redis, wanted, max_bytes)
    with redis.pipeline(transaction=False) as pipeline:
        for key, names in wanted:
            pipeline.hmget(key, names)
        values: list[list[bytes | None]] = pipeline.execute()
        return values


def _read_records(redis: Client, keys: Sequence[str]) -> list[LedgerRecord]:
    records: list[LedgerRecord] = []
    found = _read_fields(redis, [(key, _RECORD_FIELDS) for key in keys], _MAX_RECORD_BYTES)
    for key, values in zip(keys, found, strict=True):
        with _as_ledger_missing(key):
            records.append(_record_from(values))
    return records


def _record_from(values: Sequence[bytes | None]) -> LedgerRecord:
    opened, first, kept = (value or b"" for value in values)
    return LedgerRecord(
        _count_in(opened or b"0"), _count_in(first or b"0"), tuple(map(_count_in, kept.split()))
    )


def _fields_of(record: LedgerRecord) -> dict[str | int, str | int | bytes]:
    return {"opened": record.opened, "first": record.first, "kept": " ".join(map(str, record.kept))}


def _count_in(text: bytes) -> int:
    """Strict: int() would also accept b"-1", b"1_0" and b" 1"."""
    if len(text) > _MAX_RECORD_BYTES or not text.isdigit() or int(text) >= MAX_COUNT:
        raise ValueError(f"{text!r:.80} is no count")
    return int(text)


def _client_in(member: bytes) -> int | None:
    try:
        return _count_in(member)
    except ValueError:
        return None


def _any_of(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"one of {keys[0]} … {keys[-1]}"


@contextmanager
def _as_ledger_missing(key: str) -> Iterator[None]:
    """Reports a value that FedIL did not write: a site may write anything under its own keys."""
    try:
        yield
    except (UnexpectedValue, ValueError, KeyError) as error:
        raise LedgerMissing(
            f"{key} in Redis does not hold what FedIL wrote there ({error}): restore Redis's append-only file, "
            "or start a new run"
        ) from error
