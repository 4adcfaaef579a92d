"""Runs, their rounds, sites and workers, and what each of them does. Live in a terminal."""

import argparse
import json
import os
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from broker_config.process.addresses import STORE_URL, check_scheme
from broker_config.process.logs import set_up_logs
from broker_config.protocol.errors import AddressMissing, MessageRejected

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from broker_config.stores.interface import Store

HELP = "show runs, sites and workers, live"
EVERY_SECONDS = 1.0
_LARGEST, _LONGEST_TEXT, _MOST_MODELS = 1e15, 300, 8
_WIDTH_OF_FILES = 140


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store",
        metavar="URL",
        help=f"redis(s)://user:password@host:port; default: {STORE_URL} from the environment",
    )
    parser.add_argument("--site", action="append", default=[], metavar="S", help="also this site; repeatable")
    parser.add_argument("--once", action="store_true", help="print it and exit, also in a terminal")
    parser.add_argument("--json", action="store_true", help="print it as one JSON object and exit")


def run(args: argparse.Namespace) -> int:
    url = args.store or os.environ.get(STORE_URL)
    if not url:
        raise AddressMissing(f"no store to ask: give --store URL, or set {STORE_URL}")
    check_scheme("store", url)
    from broker_config.process.retry import RetryPolicy
    from broker_config.stores import connect_store

    patience = RetryPolicy(seconds=5.0)
    with set_up_logs(level="warning"), closing(connect_store(url, retry=patience)) as store:
        if args.json:
            print(json.dumps(gather(store, args.site)))
        elif args.once or not sys.stdout.isatty():
            from rich.console import Console

            width = None if sys.stdout.isatty() else _WIDTH_OF_FILES
            console = Console(highlight=False, width=width)
            console.print(render(gather(store, args.site), time.time()))
        else:
            watch(store, args.site)
    return 0


def gather(store: "Store", more_sites: list[str]) -> dict[str, Any]:
    """Everything on the board: runs by name, workers by site and name."""
    from broker_config.brokers.topology import RUNS_TOPIC

    runs = store.notices(RUNS_TOPIC)
    sites = sorted({site for facts in runs.values() for site in table(facts.get("sites"))} | set(more_sites))
    return {"runs": runs, "workers": {site: workers_at(store, site) for site in sites}}


def workers_at(store: "Store", site: str) -> dict[str, dict[str, Any]]:
    from broker_config.brokers.topology import workers_topic

    try:
        return store.notices(workers_topic(site))
    except MessageRejected:  # no site can have this name
        return {}


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
    """Whatever the notices hold: every site may write some, and a bad one must not hide the others."""
    from rich.console import Group
    from rich.text import Text

    runs = {name: table(facts) for name, facts in board["runs"].items()}
    parts: list[Any] = []
    if not runs:
        parts.append(Text("no server has put up a notice: start one with fedil server, or name a --site"))
    for name, facts in runs.items():
        parts += [run_line(name, facts, now), *rounds_table(facts)]
    for site, workers in board["workers"].items():
        parts += site_part(site, workers, runs, now)
    return Group(*parts)


def run_line(name: str, facts: dict[str, Any], now: float) -> "Text":
    from rich.text import Text

    progress = f"round {plain(facts.get('round', 0))} of {plain(facts.get('rounds'))}"
    phase = plain(facts.get("phase", facts.get("state")))
    if phase == "wait":
        phase = f"{plain(facts.get('answered', 0))} of {plain(facts.get('selected'))} clients have answered"
    text = Text.assemble((plain(name), "bold"), f"  {plain(facts.get('recipe'))}, ")
    text.append(f"{plain(facts.get('mode'))} mode, {progress}, {phase}; ")
    text.append(f"on {plain(facts.get('host'))} for {age(facts.get('started'), now)}")
    if facts.get("page"):
        text.append(f"; watch it at {plain(facts['page'])}")
    if facts.get("verdict"):
        text.append(f"; {plain(facts['verdict'])}")
    if facts.get("note"):
        text.append(f"\n  {plain(facts['note'])}", style="yellow")
    return text


def rounds_table(facts: dict[str, Any]) -> "list[Table]":
    from rich.table import Table
    from rich.text import Text

    recent = facts.get("recent")
    if not isinstance(recent, list) or not recent:
        return []
    rounds = [table(told) for told in recent]
    titles = model_titles(facts, rounds)
    grid = Table(box=None, pad_edge=False, padding=(0, 2))
    for title in ("round", *titles.values(), "‖Δθ‖", "accepted", "seconds"):
        grid.add_column(Text(title), justify="right", header_style="dim")
    for told in rounds:
        accuracy = table(told.get("accuracy"))
        cells = (
            plain(told.get("round")),
            *(formatted("{:.2%}", accuracy.get(model)).replace("%", " %") for model in titles),
            formatted("{:.4g}", told.get("delta_norm")),
            f"{plain(told.get('accepted'))}/{plain(told.get('selected'))}",
            formatted("{:.1f}", told.get("seconds")),
        )
        grid.add_row(*map(Text, cells))
    return [grid]


def model_titles(facts: dict[str, Any], rounds: list[dict[str, Any]]) -> dict[str, str]:
    """Name → title of the models that were evaluated"""
    titles = table(facts.get("models"))
    evaluated = dict.fromkeys(model for told in rounds for model in table(told.get("accuracy")))
    return {model: plain(titles.get(model, model)) for model in list(evaluated)[:_MOST_MODELS]}


def site_part(
    site: str, workers: dict[str, Any], runs: dict[str, dict[str, Any]], now: float
) -> "list[Text | Table]":
    from rich.table import Table
    from rich.text import Text

    clients = max((number(table(facts.get("sites")).get(site)) or 0 for facts in runs.values()), default=0)
    count = "no worker" if not workers else f"{len(workers)} worker{'s' * (len(workers) > 1)}"
    title = Text.assemble(("\nsite ", "dim"), (plain(site), "bold"), f"  {clients} clients, {count}")
    if not workers:
        title.stylize("red")
        return [title]
    grid = Table(box=None, pad_edge=False, padding=(0, 2))
    for heading in ("worker", "device", "doing", "for", "tasks", "images/s"):
        right = heading in ("tasks", "images/s")
        grid.add_column(heading, header_style="dim", justify="right" if right else "left", no_wrap=True)
    for name, facts in ((name, table(facts)) for name, facts in workers.items()):
        cells = (
            plain(name),
            plain(facts.get("device")),
            doing(facts),
            age(facts.get("since"), now),
            plain(facts.get("tasks_done", 0)),
            formatted("{:.0f}", facts.get("images_per_second")),
        )
        grid.add_row(*map(Text, cells))
    return [title, grid]


def doing(facts: dict[str, Any]) -> str:
    state = plain(facts.get("state"))
    if facts.get("client") is None:
        return state
    return f"{state} client {plain(facts['client'])}, round {plain(facts.get('round'))}"


def age(since: object, now: float) -> str:
    from ops.cli.view.ending import duration  # loads rich

    began = number(since)
    return "?" if began is None else duration(max(0.0, now - began))


def formatted(pattern: str, value: object) -> str:
    """Empty if it is no number"""
    found = number(value)
    return "" if found is None else pattern.format(found)


def number(value: object) -> int | float | None:
    """None also for what is no use as a number: infinite, NaN, thousands of digits."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if abs(value) < _LARGEST else None


def table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def plain(value: object) -> str:
    """One short line, without characters that control a terminal"""
    if not isinstance(value, str):
        value = "?" if number(value) is None else str(value)
    return "".join(sign if sign.isprintable() else "�" for sign in value[:_LONGEST_TEXT])
