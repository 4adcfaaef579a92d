"""The runs that have queues or ledgers at the brokers, with their leader and last activity; and their removal."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import astuple, dataclass
from typing import Any
from urllib.parse import quote

from broker_config.brokers import topology
from broker_config.process.retry import RetryPolicy
from broker_config.protocol.errors import FedILError
from broker_config.protocol.schema import check_run_argument
from broker_config.stores.redis.runs import open_runs
from broker_config.stores.redis.store import RedisStore
from broker_config.transports import connect_transport
from ops.broker.management import Management

_LEAD_SECONDS = 3.0
_PATIENCE = RetryPolicy(seconds=5.0)
_COLUMNS = "name,consumers,messages,idle_since"


@dataclass(frozen=True)
class KnownRun:
    """A field of None is unknown: its broker was not asked or does not report it."""

    run: str
    led: bool | None = None
    leader: str | None = None
    """Host of its server, as the server reports it"""
    state: str | None = None
    updates: int | None = None
    """Number of updates in its queues"""
    has_models: bool | None = None
    ledgers: int | None = None
    last_sign: str | None = None
    """Last use of its queues by the broker's clock; "now" while it has a leader"""


Queues = Mapping[str, Mapping[str, Any]]
"""Name → properties"""


def known_runs(management_url: str | None, vhost: str, store_url: str | None) -> list[KnownRun]:
    """The runs that RabbitMQ or Redis knows; a broker without a URL is not asked."""
    queues: Queues | None = None
    if management_url:
        path = f"queues/{quote(vhost, safe='')}?columns={_COLUMNS}"
        queues = {queue["name"]: queue for queue in Management(management_url).get(path)}
    notices: Mapping[str, Mapping[str, Any]] = {}
    ledgers: Mapping[str, int] | None = None
    if store_url:
        with closing(RedisStore(store_url, retry=_PATIENCE)) as store, open_runs(store_url) as runs:
            notices, ledgers = store.notices(topology.RUNS_TOPIC), runs.ledgers()
    names = {*filter(None, map(topology.run_of, queues or ())), *notices, *(ledgers or ())}
    return [_describe(name, queues, notices.get(name), ledgers) for name in sorted(names)]


def _describe(
    run: str, queues: Queues | None, notice: Mapping[str, Any] | None, ledgers: Mapping[str, int] | None
) -> KnownRun:
    lead = (queues or {}).get(topology.lead_queue(run), {})
    updates = [
        queue
        for name, queue in (queues or {}).items()
        if topology.UPDATES.holds(name) and topology.run_of(name) == run
    ]
    led: bool | None = None
    if notice is not None:
        led = True  # a notice expires soon after its server has died
    elif queues is not None and (consumers := lead.get("consumers", None if lead else 0)) is not None:
        led = consumers > 0
    # RabbitMQ reports this for classic queues only.
    signs = [str(queue["idle_since"]) for queue in (lead, *updates) if queue.get("idle_since")]
    return KnownRun(
        run,
        led=led,
        leader=None if notice is None else str(notice.get("host", ""))[:100] or None,
        state=None if notice is None else str(notice.get("state", ""))[:100] or None,
        updates=sum(counts) if (counts := [q["messages"] for q in updates if "messages" in q]) else None,
        has_models=None if queues is None else topology.models_queue(run) in queues,
        ledgers=None if ledgers is None else ledgers.get(run, 0),
        last_sign="now" if led else max(signs, default=None),
    )


def retire(
    run: str,
    broker_url: str,
    store_url: str | None,
    output: Callable[[str], None],
    *,
    ledgers: bool,
    sites: Sequence[str] = (),
) -> None:
    """Removes a run's queues and, with `ledgers`, its ledgers. Leads the run meanwhile, so that no server can. Without
    `sites`, those that have ledgers; update queues of others expire."""
    check_run_argument(run)
    with ExitStack() as opened:
        # Both connections first: a run of which only a part is removed is harder to explain.
        store = opened.enter_context(open_runs(store_url)) if store_url and (ledgers or not sites) else None
        sites = sites or (topology.DEFAULT_SITE, *(store.sites(run) if store else ()))
        runs = store if ledgers else None
        kept = runs is not None and run in runs.ledgers()
        transport = opened.enter_context(closing(connect_transport(broker_url)))
        depths = {queue: transport.depth(queue) for queue in topology.run_queues(run, sites)}
        there = {queue: depth for queue, depth in depths.items() if depth is not None}
        if not there and not kept:
            raise FedILError(f"the brokers know of no run {run!r} (see: fedil broker runs)")
        if not transport.acquire_leadership(run, _LEAD_SECONDS):
            raise FedILError(
                f"a server leads run {run}: stop it first. One that was cut off is noticed after a minute"
            )
        transport.retire(run, sites)
        unread = sum(depth for queue, depth in there.items() if topology.UPDATES.holds(queue))
        output(f"removed {', '.join(there) or 'no queues'}, with {unread} unread updates")
        if runs is not None:
            output(f"removed {runs.forget(run)} ledgers")
        else:
            output("ledgers stay in Redis (--ledgers removes them)")


def print_runs(runs: Sequence[KnownRun]) -> None:
    from rich.console import Console

    from ops.cli.view.tables import plain_table

    headings = ("run", "led", "by", "state", "updates", "models", "ledgers", "last sign of life")
    table = plain_table(headings, left=set(headings) - {"updates", "ledgers"})
    for run in runs:
        table.add_row(*map(_text, astuple(run)))
    Console(highlight=False, markup=False).print(table)


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
