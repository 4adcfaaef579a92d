"""What is going on: runs, their rounds, sites, workers and what each is doing. Live in a terminal."""

import argparse
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from broker_config.addresses import STORE_URL
from broker_config.errors import AddressMissing

if TYPE_CHECKING:
    from rich.console import Group

    from broker_config.stores.interface import Store

HELP = "show runs, sites and workers, live"
EVERY_SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="URL", help=f"default: {STORE_URL} from the environment")
    parser.add_argument("--site", action="append", default=[], metavar="S", help="also this site; repeatable")
    parser.add_argument("--once", action="store_true", help="print it and exit, also in a terminal")
    parser.add_argument("--json", action="store_true", help="print it as one JSON object and exit")


def run(args: argparse.Namespace) -> int:
    url = args.store or os.environ.get(STORE_URL)
    if not url:
        raise AddressMissing(f"no store to ask: give --store URL, or set {STORE_URL}")
    from broker_config.patient import Patience
    from broker_config.stores import connect_store

    store = connect_store(url, patience=Patience(seconds=5.0))
    try:
        if args.json:
            print(json.dumps(gather(store, args.site)))
        elif args.once or not sys.stdout.isatty():
            from rich.console import Console

            Console(highlight=False).print(render(gather(store, args.site), time.time()))
        else:
            watch(store, args.site)
    finally:
        store.close()
    return 0


def gather(store: "Store", more_sites: list[str]) -> dict[str, Any]:
    """Everything on the board: runs by name, workers by site and name."""
    from broker_config.topology import RUNS_TOPIC, workers_topic

    runs = store.notices(RUNS_TOPIC)
    sites = sorted({site for facts in runs.values() for site in facts.get("sites", {})} | set(more_sites))
    return {"runs": runs, "workers": {site: store.notices(workers_topic(site)) for site in sites}}


def watch(store: "Store", more_sites: list[str]) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False, screen=False, vertical_overflow="visible") as live:
        try:
            while True:
                live.update(render(gather(store, more_sites), time.time()), refresh=True)
                time.sleep(EVERY_SECONDS)
        except KeyboardInterrupt:
            pass  # the last picture stays


def render(board: dict[str, Any], now: float) -> "Group":
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    if not board["runs"]:
        parts.append(Text("no server has put up a notice: start one with fedil server, or name a --site"))
    for name, facts in board["runs"].items():
        parts += [run_line(name, facts, now), *rounds_table(facts)]
    for site, workers in board["workers"].items():
        parts += site_part(site, workers, board["runs"], now)
    return Group(*parts)


def run_line(name: str, facts: dict[str, Any], now: float) -> Any:
    from rich.text import Text

    progress = f"round {facts.get('round', 0)} of {facts.get('rounds', '?')}"
    phase = facts.get("phase", facts["state"])
    if phase == "wait":
        phase = f"{facts.get('answered', 0)} of {facts.get('selected', '?')} clients have answered"
    age = spoken(now - facts.get("started", now))
    text = Text.assemble(
        (name, "bold"), f"  {facts.get('recipe', '')}, {facts.get('mode', '')} mode, {progress}, "
    )
    text.append(f"{phase}; on {facts.get('host', '?')} for {age}")
    if facts.get("verdict"):
        text.append(f"; {facts['verdict']}")
    if facts.get("note"):
        text.append(f"\n  {facts['note']}", style="yellow")
    return text


def rounds_table(facts: dict[str, Any]) -> list[Any]:
    from rich.table import Table

    if not facts.get("recent"):
        return []
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for title in ("round", "θ′", "θ₀", "‖Δθ‖", "accepted", "seconds"):
        table.add_column(title, justify="right", header_style="dim")
    for told in facts["recent"]:
        accuracy = told.get("accuracy", {})
        table.add_row(
            str(told["round"]),
            percent(accuracy.get("global")),
            percent(accuracy.get("server")),
            f"{told['delta_norm']:.4g}",
            f"{told['accepted']}/{told['selected']}",
            f"{told['seconds'] or 0.0:.1f}",
        )
    return [table]


def site_part(
    site: str, workers: dict[str, dict[str, Any]], runs: dict[str, dict[str, Any]], now: float
) -> list[Any]:
    from rich.table import Table
    from rich.text import Text

    clients = max((facts.get("sites", {}).get(site, 0) for facts in runs.values()), default=0)
    count = "no worker" if not workers else f"{len(workers)} worker{'s' * (len(workers) > 1)}"
    title = Text.assemble(("\nsite ", "dim"), (site, "bold"), f"  {clients} clients, {count}")
    if not workers:
        title.stylize("red")
        return [title]
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for heading in ("worker", "device", "doing", "for", "tasks", "images/s"):
        right = heading in ("tasks", "images/s")
        table.add_column(heading, header_style="dim", justify="right" if right else "left", no_wrap=True)
    for name, facts in workers.items():
        speed = facts.get("images_per_second")
        table.add_row(
            name,
            str(facts.get("device", "?")),
            doing(facts),
            spoken(now - facts.get("since", now)),
            str(facts.get("tasks_done", 0)),
            "" if speed is None else f"{speed:.0f}",
        )
    return [title, table]


def doing(facts: dict[str, Any]) -> str:
    if facts.get("client") is None:
        return str(facts.get("state", "?"))
    return f"{facts.get('state')} client {facts['client']}, round {facts.get('round')}"


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f} %"


def spoken(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
