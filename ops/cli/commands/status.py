"""Runs, their rounds, sites and workers, and what each of them does. Live in a terminal."""

import argparse
import json
import sys
import time
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
    """Everything on the board: runs by name, workers by site and name."""
    from broker_config.brokers.topology import RUNS_TOPIC

    runs = store.notices(RUNS_TOPIC)
    known = (facts.get("sites") for facts in runs.values())
    sites = {site for named in known if isinstance(named, dict) for site in named} | set(more_sites)
    return {"runs": runs, "workers": {site: workers_at(store, site) for site in sorted(sites)}}


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
