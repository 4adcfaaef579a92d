"""What the server asks the store before it believes in its ledgers, by site."""

import math
import time
from pathlib import Path

from broker_config.stores.memory.store import MemoryStore
from server_worker.round.sites import Sites
from server_worker.run.ledger_checks import LedgerChecks

RUN = "run"


class CountingStore(MemoryStore):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.counted: list[str] = []

    def count(self, run: str, site: str, counted: int) -> int:
        self.counted.append(site)
        return super().count(run, site, counted)

    def take(self) -> list[str]:
        counted, self.counted = self.counted, []
        return counted


def test_a_site_is_counted_when_it_answers_and_before_the_checkpoint_that_has_its_answers(
    tmp_path: Path,
) -> None:
    store = CountingStore(tmp_path)
    owned = {"north": range(2), "south": range(2, 4)}
    checks = LedgerChecks(RUN, store, Sites(owned, store, time.monotonic, math.inf, None, print))
    checks.begin()
    assert checks.has(1, 1)
    assert store.take() == ["north"]
    assert checks.count() == {"north": 2, "south": 0}
    assert store.take() == ["north"]
    checks.saved()
    assert checks.count() == {"north": 2, "south": 0}
    assert store.take() == []
    checks.resume({"north": 2, "south": 0})
    checks.check((0, 0, 0, 0))
    assert store.take() == ["north", "south"]
    assert checks.count() == {"north": 4, "south": 2}
