"""Runs, their rounds, sites and workers, and what each of them does. Live in a terminal."""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from broker_config.process.addresses import STORE_URL, check_scheme
from broker_config.process.logs import set_up_logs
from broker_config.protocol.errors import AddressMissing, MessageRejected
from ops.cli.commands.broker import add_url_argument

if TYPE_CHECKING:
    from broker_config.stores.interface import Store

EVERY_SECONDS = 1.0
_WIDTH_OF_FILES = 140


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_url_argument(parser, "--store", STORE_URL, "redis(s)://user:password@host:port")
    parser.add_argument("--site", action="append", default=[], metavar="S", help="also this site; repeatable")
    parser.add_argument("--once", action="store_true", help="print it and exit, also in a terminal")
    parser.add_argument("--json", action="store_true", help="print it as one JSON object and exit")


def run(args: argparse.Namespace) -> int:
    if not args.store:
        raise AddressMissing(f"no store to ask: give --store URL, or set {STORE_URL}")
    check_scheme("store", args.store)
    from broker_config.process.retry import RetryPolicy
    from broker_config.stores import connect_store

    patience = RetryPolicy(seconds=5.0)
    with set_up_logs(level="warning"), closing(connect_store(args.store, retry=patience)) as store:
        if args.json:
            print(json.dumps(gather(store, args.site)))
        else:
            show(store, args.site, args.once)
    return 0


def gather(store: "Store", more_sites: list[str]) -> dict[str, Any]:
    """Everything on the board: runs and finished runs by name, workers by site and name."""
    from broker_config.brokers.topology import DEFAULT_SITE, FINISHED_TOPIC, RUNS_TOPIC

    runs = store.notices(RUNS_TOPIC)
    finished = {name: facts for name, facts in store.notices(FINISHED_TOPIC).items() if name not in runs}
    running = sites_of(runs.values()) | set(more_sites)
    # Workers stay when a run has ended; a site of earlier runs that has none is not missed.
    others = (sites_of(finished.values()) | {DEFAULT_SITE}) - running
    workers = {site: workers_at(store, site) for site in sorted(running | others)}
    shown = {site: found for site, found in workers.items() if found or site in running}
    return {"runs": runs, "finished": finished, "workers": shown}


def sites_of(runs: Iterable[Mapping[str, Any]]) -> set[str]:
    return {site for facts in runs if isinstance(facts.get("sites"), dict) for site in facts["sites"]}


def workers_at(store: "Store", site: str) -> dict[str, dict[str, Any]]:
    from broker_config.brokers.topology import workers_topic

    with suppress(MessageRejected):  # no site can have this name
        return store.notices(workers_topic(site))
    return {}


def show(store: "Store", more_sites: list[str], once: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    from ops.cli.view.board import render

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_OF_FILES)
    if once or not sys.stdout.isatty():
        console.print(render(gather(store, more_sites), time.time()))
        return
    live = Live(console=console, auto_refresh=False, screen=False, vertical_overflow="visible")
    with live, suppress(KeyboardInterrupt):  # the last picture stays
        while True:
            live.update(render(gather(store, more_sites), time.time()), refresh=True)
            time.sleep(EVERY_SECONDS)
