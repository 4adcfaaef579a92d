"""The runs that the brokers know of: who leads them, when they last gave a sign of life; and how to be rid of one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

from broker_config.brokers.topology import (
    RUN_KINDS,
    RUNS_TOPIC,
    lead_queue,
    models_queue,
    run_of,
    updates_queue,
)
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
    """None: this was not asked, or cannot be known."""

    run: str
    led: bool | None = None
    leader: str | None = None
    """Where its server runs, as that says itself"""
    state: str | None = None
    updates: int | None = None
    """That wait for the server"""
    has_models: bool | None = None
    ledgers: int | None = None
    last_sign: str | None = None
    """When somebody last used its queues, by the broker's clock; "now" while it is led"""


def known_runs(management_url: str | None, vhost: str, store_url: str | None) -> list[KnownRun]:
    """What either broker knows; whichever is not named is not asked."""
    queues = _queues_by_run(management_url, vhost) if management_url else None
    notices: Mapping[str, Mapping[str, Any]] = {}
    ledgers: Mapping[str, int] | None = None
    if store_url:
        with closing(RedisStore(store_url, retry=_PATIENCE)) as store, open_runs(store_url) as runs:
            notices, ledgers = store.notices(RUNS_TOPIC), runs.ledgers()
    names = {*(queues or ()), *notices, *(ledgers or ())}
    return [_known(name, queues, notices.get(name), ledgers) for name in sorted(names)]


Queues = Mapping[str, Mapping[str, Any]]


def _queues_by_run(management_url: str, vhost: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Run → its queues by name"""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    path = f"queues/{quote(vhost, safe='')}?columns={_COLUMNS}"
    for queue in Management(management_url).get(path):
        run = run_of(queue["name"])
        if run is not None:
            found.setdefault(run, {})[queue["name"]] = queue
    return found


def _known(
    run: str,
    by_run: Mapping[str, Queues] | None,
    notice: Mapping[str, Any] | None,
    ledgers: Mapping[str, int] | None,
) -> KnownRun:
    queues = None if by_run is None else by_run.get(run, {})
    led = _is_led(run, queues, notice)
    updates = (queues or {}).get(updates_queue(run), {}).get("messages")
    return KnownRun(
        run,
        led=led,
        leader=None if notice is None else str(notice.get("host", ""))[:100] or None,
        state=None if notice is None else str(notice.get("state", ""))[:100] or None,
        updates=updates,
        has_models=None if queues is None else models_queue(run) in queues,
        ledgers=None if ledgers is None else ledgers.get(run, 0),
        last_sign="now" if led else _last_sign((queues or {}).values()),
    )


def _is_led(run: str, queues: Queues | None, notice: Mapping[str, Any] | None) -> bool | None:
    if notice is not None:
        return True  # it fades soon after its server has died
    if queues is None:
        return None
    lead = queues.get(lead_queue(run))
    consumers = 0 if lead is None else lead.get("consumers")
    return None if consumers is None else consumers > 0


def _last_sign(queues: Iterable[Mapping[str, Any]]) -> str | None:
    """RabbitMQ tells it of classic queues: of the lead and of updates, which is what a server uses."""
    return max((str(queue["idle_since"]) for queue in queues if queue.get("idle_since")), default=None)


def retire(
    run: str, broker_url: str, store_url: str | None, say: Callable[[str], None], *, ledgers: bool
) -> None:
    """Drops what the brokers keep for a run. Whoever does it leads the run meanwhile, so no server can."""
    check_run_argument(run)
    with ExitStack() as opened:
        # Both first: what is half gone is harder to explain than what is all there.
        runs = opened.enter_context(open_runs(store_url)) if ledgers and store_url else None
        kept = runs is not None and run in runs.ledgers()
        transport = opened.enter_context(closing(connect_transport(broker_url)))
        waiting = transport.depth(updates_queue(run))
        there = [kind for kind in RUN_KINDS if transport.depth(kind.prefix + run) is not None]
        if not there and not kept:
            raise FedILError(f"the brokers know of no run {run!r} (see: fedil broker runs)")
        if not transport.acquire_leadership(run, _LEAD_SECONDS):
            raise FedILError(
                f"a server leads run {run}: stop it first. One that was cut off is noticed after a minute"
            )
        transport.retire(run)
        names = ", ".join(kind.prefix + run for kind in there)
        say(f"removed {names or 'no queues'}, with {waiting or 0} updates that nobody has read")
        if runs is not None:
            say(f"removed {runs.forget(run)} ledgers")
        else:
            say("ledgers stay in Redis (--ledgers removes them)")


def as_json(runs: Sequence[KnownRun]) -> list[dict[str, object]]:
    return [asdict(run) for run in runs]


def print_runs(runs: Sequence[KnownRun]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("run", "led", "by", "state", "updates", "models", "ledgers", "last sign of life"):
        table.add_column(heading, justify="right" if heading in ("updates", "ledgers") else "left")
    for known in runs:
        table.add_row(
            known.run,
            _text(known.led),
            _text(known.leader),
            _text(known.state),
            _text(known.updates),
            _text(known.has_models),
            _text(known.ledgers),
            _text(known.last_sign),
        )
    Console(highlight=False, markup=False).print(table)


def _text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
