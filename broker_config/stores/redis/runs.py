"""Runs in Redis, for people: which have ledgers there, and how to be rid of them. Needs the rights of a server."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from broker_config.protocol.errors import MessageRejected
from broker_config.protocol.schema import check_run
from broker_config.stores.redis.connection import Client, NotOurs, RedisLink
from broker_config.stores.redis.keys import clients_key, ledger_key, marked_run_in, run_in, run_key, site_in
from broker_config.transports.reconnecting import Patience

_PATIENCE = Patience(seconds=5.0)
_AT_ONCE = 1000


@contextmanager
def looking_at_runs(url: str) -> Iterator["RunsInRedis"]:
    link = RedisLink(url, _PATIENCE)
    try:
        yield RunsInRedis(link)
    finally:
        link.close()


class RunsInRedis:
    def __init__(self, link: RedisLink) -> None:
        self._link = link

    def ledgers(self) -> dict[str, int]:
        """Run → how many clients have a ledger; also of runs that have only begun. Walks all keys."""
        counts = Counter(dict.fromkeys(map(marked_run_in, self._keys(run_key("*"))), 0))
        for key in self._keys(clients_key("*", "*")):
            if _is_run(run_in(key)):
                counts[run_in(key)] += self._count(key)
        return dict(counts)

    def forget(self, run: str) -> int:
        """Deletes the ledgers of a run, and says how many. The lists of clients and the run's mark go last: repeated
        after a fall in the middle, it still finds the run."""
        check_run("run", run)
        lists = list(self._keys(clients_key("*", run)))
        ledgers = [key for each in lists for key in self._keys(_ledgers_at(site_in(each), run))]
        self._delete(ledgers)
        self._delete([*lists, run_key(run)])
        return len(ledgers)

    def _keys(self, pattern: str) -> Iterator[str]:
        keys = self._link.ask(lambda redis: list(redis.scan_iter(pattern, count=_AT_ONCE)))
        return iter(sorted({key.decode(errors="replace") for key in keys}))

    def _count(self, key: str) -> int:
        """A site may have put anything under this name."""
        try:
            return self._link.ask(lambda redis: int(redis.scard(key)))
        except NotOurs:
            return 0

    def _delete(self, keys: list[str]) -> None:
        for start in range(0, len(keys), _AT_ONCE):
            batch = keys[start : start + _AT_ONCE]

            def delete(redis: Client, batch: list[str] = batch) -> None:
                redis.delete(*batch)

            self._link.ask(delete)


def _is_run(name: str) -> bool:
    """A site may put up lists under any name that begins with its own."""
    try:
        check_run("run", name)
    except MessageRejected:
        return False
    return True


def _ledgers_at(site: str, run: str) -> str:
    return ledger_key(site, run, 0).removesuffix("0") + "*"
