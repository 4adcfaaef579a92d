"""Lists the runs that have ledgers in Redis, and deletes them. Needs the permissions of the server."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from operator import methodcaller

from broker_config.process.retry import RetryPolicy
from broker_config.protocol.schema import check_run, is_run_name
from broker_config.stores.batches import in_batches
from broker_config.stores.redis.connection import RedisConnection, UnexpectedValue
from broker_config.stores.redis.keys import clients_key, ledger_key, mark_key, run_in, site_in

_RETRY = RetryPolicy(seconds=5.0)
_KEYS_PER_COMMAND = 1000


@contextmanager
def open_runs(url: str) -> Iterator["RedisRuns"]:
    with closing(RedisConnection(url, _RETRY)) as connection:
        yield RedisRuns(connection)


class RedisRuns:
    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection

    def ledgers(self) -> dict[str, int]:
        """run → number of clients with a ledger, including runs that have only begun. Scans all keys."""
        counts = Counter(dict.fromkeys(map(run_in, self._keys(mark_key("*", "*"))), 0))
        for key in self._keys(clients_key("*", "*")):
            if is_run_name(run_in(key)):  # a site may create client lists for any name under its prefix
                counts[run_in(key)] += self._count(key)
        return dict(counts)

    def sites(self, run: str) -> list[str]:
        """Sites with a ledger of this run"""
        return [site_in(key) for key in self._keys(clients_key("*", check_run("run", run)))]

    def forget(self, run: str) -> int:
        """Deletes the ledgers of a run and returns their number. The client lists and the run's marks are deleted last:
        after an interruption the run is still found."""
        check_run("run", run)
        lists, num_ledgers = self._keys(clients_key("*", run)), 0
        for each in lists:
            ledgers = self._keys(_ledger_pattern(site_in(each), run))
            for batch in in_batches(ledgers, _KEYS_PER_COMMAND):
                self._delete(batch)
            num_ledgers += len(ledgers)
        for key in (*lists, *self._keys(mark_key("*", run))):
            self._delete([key])
        return num_ledgers

    def _keys(self, pattern: str) -> list[str]:
        found = self._connection.call_each(
            lambda redis: list(redis.scan_iter(pattern, count=_KEYS_PER_COMMAND))
        )
        return sorted({key.decode(errors="replace") for keys in found.values() for key in keys})

    def _count(self, key: str) -> int:
        try:
            return self._connection.call(lambda redis: int(redis.scard(key)), key)
        except UnexpectedValue:  # a site may write anything under its keys
            return 0

    def _delete(self, keys: Sequence[str]) -> None:
        """`keys`: with the same hash tag"""
        self._connection.call(methodcaller("delete", *keys), keys[0])


def _ledger_pattern(site: str, run: str) -> str:
    return ledger_key(site, run, 0).removesuffix("0") + "*"
