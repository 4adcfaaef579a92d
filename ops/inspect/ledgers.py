"""What is remembered of clients, for people: read from Redis or from a run's folder, counted and printed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from rich.console import Console
from rich.table import Table

from broker_config.process.retry import RetryPolicy
from broker_config.protocol.errors import FedILError
from broker_config.protocol.messages import LEDGER_KIND
from broker_config.protocol.wire import decode_arrays
from broker_config.stores.memory.ledger_files import LedgerFiles
from broker_config.stores.record import LedgerRecord
from broker_config.stores.redis.store import RedisStore
from fedil_model.errors import LearningError
from fedil_model.methods.fedil.ledger import Ledger

_PATIENCE = RetryPolicy(seconds=0.0)
"""A person would rather know."""
_BAR_WIDTH = 30


class Shelf(Protocol):
    """The reading half of a store's shelf."""

    def clients(self, run: str) -> Iterable[int]: ...

    def record(self, run: str, client: int) -> LedgerRecord: ...

    def ledger(self, run: str, client: int, activation: int) -> bytes: ...


class RedisShelf:
    """One site's part of a Redis."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self.clients, self.record = store.clients, store.record

    def ledger(self, run: str, client: int, activation: int) -> bytes:
        return self._store.read(run, client, activation + 1, at_least=activation) or b""


Shelves = Mapping[str, Shelf]
"""By site"""


@contextmanager
def shelves_in_folder(ledgers: Path) -> Iterator[Shelves]:
    yield {"": LedgerFiles(ledgers)}  # a simulation has no sites


@contextmanager
def shelves_in_redis(url: str, run: str, site: str | None) -> Iterator[Shelves]:
    """All sites that have ledgers of the run, if none is named."""
    with ExitStack() as opened:

        def open_store(site: str) -> RedisStore:
            store = RedisStore(url, lambda _: site, _PATIENCE)
            opened.callback(store.close)
            return store

        sites = [site] if site else open_store("any").sites(run)
        yield {site: RedisShelf(open_store(site)) for site in sites}


@dataclass(frozen=True)
class Remembered:
    """The newest generation of one client's ledger, counted."""

    site: str
    client: int
    record: LedgerRecord
    samples: int = 0
    pseudo_labels: int = 0
    """Samples that carry a label now."""
    credible: int = 0
    """Those of them whose label is fixed."""
    labels: Sequence[tuple[int, int, int]] = ()
    """(label, samples that carry it, credible ones)"""
    streaks: Sequence[tuple[int, int]] = ()
    """(activations in a row that agreed, samples not credible yet)"""
    trouble: str = ""
    """Why the ledger cannot be read."""

    @property
    def generation(self) -> int | None:
        return self.record.kept[-1] if self.record.kept else None

    @property
    def open_activation(self) -> int | None:
        """The one that is not answered yet."""
        return None if self.record.opened == (self.generation or 0) else self.record.opened


def remembered_of(shelves: Shelves, run: str, client: int) -> Remembered:
    found = [
        (site, record)
        for site, shelf in shelves.items()
        if (record := shelf.record(run, client)) != LedgerRecord()
    ]
    if not found:
        raise FedILError(f"run {run!r} remembers nothing of client {client} (see: fedil ledger list)")
    if len(found) > 1:
        sites = ", ".join(site for site, _ in found)
        raise FedILError(f"client {client} has ledgers at {sites}: choose one with --site")
    ((site, record),) = found
    return count(site, client, record, newest(shelves[site], run, client, record))


def all_remembered(shelves: Shelves, run: str) -> list[Remembered]:
    found = [
        remembered_or_trouble(site, shelf, run, client)
        for site, shelf in shelves.items()
        for client in sorted(shelf.clients(run))
    ]
    if not found:
        raise FedILError(
            f"there are no ledgers of run {run!r}: no client has been asked yet, or it has another name"
        )
    return found


def remembered_or_trouble(site: str, shelf: Shelf, run: str, client: int) -> Remembered:
    """One that cannot be read does not hide the others."""
    record = LedgerRecord()
    try:
        record = shelf.record(run, client)
        return count(site, client, record, newest(shelf, run, client, record))
    except (FedILError, LearningError) as error:
        return Remembered(site, client, record, trouble=str(error))


def newest(shelf: Shelf, run: str, client: int, record: LedgerRecord) -> Ledger:
    if not record.kept:
        return Ledger.empty(0)
    _, arrays = decode_arrays(shelf.ledger(run, client, record.kept[-1]), LEDGER_KIND)
    return Ledger.from_arrays(arrays, arrays["streaks"].size if "streaks" in arrays else 0)


def count(site: str, client: int, record: LedgerRecord, ledger: Ledger) -> Remembered:
    labelled_N = ledger.labels_N >= 0
    labels, counts = np.unique(ledger.labels_N[labelled_N], return_counts=True)
    credible = [int((ledger.credible_N & (ledger.labels_N == label)).sum()) for label in labels]
    streaks, waiting = np.unique(ledger.streaks_N[~ledger.credible_N], return_counts=True)
    return Remembered(
        site,
        client,
        record,
        samples=len(ledger),
        pseudo_labels=int(labelled_N.sum()),
        credible=int(ledger.credible_N.sum()),
        labels=list(zip(labels.tolist(), counts.tolist(), credible, strict=True)),
        streaks=list(zip(streaks.tolist(), waiting.tolist(), strict=True)),
    )


def as_json(run: str, one: Remembered) -> dict[str, object]:
    facts: dict[str, object] = {
        "run": run,
        "site": one.site or None,
        "client": one.client,
        "generation": one.generation,
        "kept_generations": list(one.record.kept),
        "open_activation": one.open_activation,
    }
    if one.trouble:
        return facts | {"trouble": one.trouble}
    return facts | {
        "samples": one.samples,
        "pseudo_labels": one.pseudo_labels,
        "credible": one.credible,
        "labels": {str(label): {"samples": total, "credible": sure} for label, total, sure in one.labels},
        "streaks": {str(streak): total for streak, total in one.streaks},
    }


def print_one(run: str, one: Remembered) -> None:
    console = Console(highlight=False, markup=False)
    place = f" at {one.site}" if one.site else ""
    console.print(f"{run}, client {one.client}{place}", style="bold")
    console.print(
        f"generation {text_of(one.generation)} (kept: {', '.join(map(str, one.record.kept)) or 'none'}), "
        f"open activation {text_of(one.open_activation)}"
    )
    console.print(
        f"{one.samples} samples, {one.pseudo_labels} with a pseudo-label, {one.credible} of them credible\n"
    )
    if one.labels:
        rows = [[str(label), str(total), str(sure)] for label, total, sure in one.labels]
        console.print(histogram(["label", "samples", "credible"], rows, [row[1] for row in one.labels]))
    if one.streaks:
        console.print()
        rows = [[str(streak), str(total)] for streak, total in one.streaks]
        console.print(histogram(["agreed in a row", "samples"], rows, [row[1] for row in one.streaks]))
        console.print("of the samples that are not credible yet", style="dim")


def print_all(run: str, everybody: Sequence[Remembered]) -> None:
    console = Console(highlight=False, markup=False)
    table = plain_table()
    sites = any(one.site for one in everybody)
    headings = [
        "client",
        *(["site"] if sites else []),
        "generation",
        "open",
        "samples",
        "labelled",
        "credible",
    ]
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "site" else "right")
    table.add_column("")
    for one in everybody:
        row = [str(one.client), *([one.site] if sites else []), text_of(one.generation)]
        counts = ["–"] * 3 if one.trouble else map(str, (one.samples, one.pseudo_labels, one.credible))
        table.add_row(*row, text_of(one.open_activation), *counts, one.trouble)
    console.print(table)
    samples, labelled, credible = (
        sum(getattr(one, name) for one in everybody) for name in ("samples", "pseudo_labels", "credible")
    )
    console.print(
        f"{run}: {len(everybody)} clients, {samples} samples, {labelled} with a pseudo-label, "
        f"{credible} of them credible",
        style="bold",
    )


def histogram(headings: Sequence[str], rows: Sequence[list[str]], totals: Sequence[int]) -> Table:
    table = plain_table()
    for heading in headings:
        table.add_column(heading, justify="right")
    table.add_column("")
    for row, total in zip(rows, totals, strict=True):
        table.add_row(*row, "█" * round(_BAR_WIDTH * total / max(totals)))
    return table


def plain_table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)


def text_of(number: int | None) -> str:
    return "–" if number is None else str(number)
