"""What clients keep between activations, for people: read from Redis or from a run's folder, counted and printed."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

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
from fedil_model.methods.interface import MethodSpec, StateView
from fedil_model.methods.interface import Table as CountTable
from ops.cli.view.tables import plain_table

_PATIENCE = RetryPolicy(seconds=0.0)
"""A person wants to know at once that Redis is away."""
_BAR_WIDTH = 30


class RedisShelf(RedisStore):
    """One site's part of a Redis"""

    def ledger(self, run: str, client: int, activation: int) -> bytes:
        return self.read(run, client, activation + 1, at_least=activation) or b""


Shelf = LedgerFiles | RedisShelf
Shelves = Mapping[str, Shelf]
"""By site; a simulation has one without a name."""


@contextmanager
def shelves_in_redis(url: str, run: str, site: str | None) -> Iterator[Shelves]:
    """Of all sites that have ledgers of the run, if none is named"""
    with ExitStack() as opened:

        def open_shelf(site: str) -> RedisShelf:
            return opened.enter_context(closing(RedisShelf(url, lambda _: site, _PATIENCE)))

        sites = [site] if site else open_shelf("any").sites(run)
        yield {site: open_shelf(site) for site in sites}


@dataclass(frozen=True)
class ClientState:
    """The newest generation of what one client keeps."""

    site: str
    client: int
    record: LedgerRecord
    size: int = 0
    """Bytes"""
    view: StateView | None = None
    """None without a generation, or without a method that can view it"""
    trouble: str = ""
    """Why it cannot be read"""

    @property
    def generation(self) -> int | None:
        return self.record.kept[-1] if self.record.kept else None

    @property
    def open_activation(self) -> int | None:
        """The one that is not answered yet"""
        return None if self.record.opened == (self.generation or 0) else self.record.opened


def state_of(shelves: Shelves, run: str, client: int, spec: MethodSpec) -> ClientState:
    found = [
        (site, record)
        for site, shelf in shelves.items()
        if (record := shelf.record(run, client)) != LedgerRecord()
    ]
    if not found:
        raise FedILError(f"run {run!r} has nothing of client {client} (see: fedil ledger list)")
    if len(found) > 1:
        sites = ", ".join(site for site, _ in found)
        raise FedILError(f"client {client} has ledgers at {sites}: choose one with --site")
    ((site, record),) = found
    return _read(site, shelves[site], run, client, record, spec)


def all_states(shelves: Shelves, run: str, spec: MethodSpec) -> list[ClientState]:
    found = [
        _read_or_trouble(site, shelf, run, client, spec)
        for site, shelf in shelves.items()
        for client in sorted(shelf.clients(run))
    ]
    if not found:
        raise FedILError(
            f"there are no ledgers of run {run!r}: no client has been asked yet, or it has another name"
        )
    return found


def _read_or_trouble(site: str, shelf: Shelf, run: str, client: int, spec: MethodSpec) -> ClientState:
    """A ledger that cannot be read does not hide the others."""
    record = LedgerRecord()
    try:
        record = shelf.record(run, client)
        return _read(site, shelf, run, client, record, spec)
    except (FedILError, LearningError) as error:
        return ClientState(site, client, record, trouble=str(error))


def _read(
    site: str, shelf: Shelf, run: str, client: int, record: LedgerRecord, spec: MethodSpec
) -> ClientState:
    if not record.kept:
        return ClientState(site, client, record)
    body = shelf.ledger(run, client, record.kept[-1])
    _, arrays = decode_arrays(body, LEDGER_KIND)
    view = spec.view_state(arrays) if spec.view_state else None
    return ClientState(site, client, record, len(body), view)


def as_json(run: str, one: ClientState) -> dict[str, object]:
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
    if one.view is None:
        return facts | {"bytes": one.size}
    return facts | dict(one.view.counts) | {table.name: _table_as_json(table) for table in one.view.tables()}


def _table_as_json(table: CountTable) -> dict[str, object]:
    """Key → count, or heading → count where there are several."""
    _, *headings = table.headings
    if len(headings) == 1:
        return {str(key): count for key, count in table.rows}
    return {str(key): dict(zip(headings, counts, strict=True)) for key, *counts in table.rows}


def print_one(run: str, one: ClientState, spec: MethodSpec) -> None:
    console = Console(highlight=False, markup=False)
    place = f" at {one.site}" if one.site else ""
    console.print(f"{run}, client {one.client}{place}", style="bold")
    console.print(
        f"generation {text_of(one.generation)} (kept: {', '.join(map(str, one.record.kept)) or 'none'}), "
        f"open activation {text_of(one.open_activation)}"
    )
    console.print(summary([one], spec))
    for table in one.view.tables() if one.view else ():
        if table.rows:
            console.print()
            console.print(histogram(table))
            if table.note:
                console.print(table.note, style="dim")


def summary(states: Sequence[ClientState], spec: MethodSpec) -> str:
    """Counts of all of them, in the words of the series of the same names"""
    titles = {series.name: series.title for series in spec.display.series()}
    totals = totals_of(states)
    words = (f"{total} {titles.get(name, name.replace('_', ' '))}" for name, total in totals.items())
    return ", ".join(words) or f"{sum(one.size for one in states)} bytes"


def totals_of(states: Sequence[ClientState]) -> dict[str, int]:
    names = dict.fromkeys(name for one in states if one.view for name in one.view.counts)
    return {name: sum(one.view.counts.get(name, 0) for one in states if one.view) for name in names}


def print_all(run: str, states: Sequence[ClientState], spec: MethodSpec) -> None:
    console = Console(highlight=False, markup=False)
    with_sites = any(one.site for one in states)
    columns = {series.name: series.column for series in spec.display.series() if series.column}
    counts = list(totals_of(states))
    headings = [columns.get(name, name.replace("_", " ")) for name in counts] or ["bytes"]
    place = ["client", "site"] if with_sites else ["client"]
    table = plain_table([*place, "generation", "open", *headings, ""], left=("site", ""))
    for one in states:
        place = [str(one.client), *([one.site] if with_sites else [])]
        known = [one.view.counts.get(name) if one.view else None for name in counts] or [one.size]
        numbers = map(text_of, (one.generation, one.open_activation, *known))
        table.add_row(*place, *numbers, one.trouble)
    console.print(table)
    console.print(f"{run}: {len(states)} clients, {summary(states, spec)}", style="bold")


def histogram(counted: CountTable) -> Table:
    table = plain_table([*counted.headings, ""], left=("",))
    most = max(row[1] for row in counted.rows)
    for row in counted.rows:
        table.add_row(*map(str, row), "█" * round(_BAR_WIDTH * row[1] / max(most, 1)))
    return table


def text_of(number: int | None) -> str:
    return "–" if number is None else str(number)
