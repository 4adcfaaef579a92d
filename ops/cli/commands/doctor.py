"""Find out what is wrong with this machine and with the brokers: one line each, with the command that mends it."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from broker_config.process.addresses import BROKER_URL, MANAGEMENT_URL, STORE_URL
from fedil_model.device_argument import add_device_argument
from fedil_model.errors import LearningError
from ops.cli.commands.broker import add_site_arguments, add_url_argument, sites_and_deadline

if TYPE_CHECKING:
    from ops.doctor.finding import Finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_site_arguments(parser)
    add_broker_arguments(parser)
    add_device_argument(parser)
    run_dir = "where the run is, or will be; default: the current folder"
    parser.add_argument("--run-dir", type=Path, metavar="DIR", default=Path(), help=run_dir)
    shards = "look at these shards of a site instead of the recipe's dataset"
    parser.add_argument("--shards", type=Path, metavar="DIR", help=shards)
    parser.add_argument("--json", action="store_true", help="JSON instead of lines")


def add_broker_arguments(parser: argparse.ArgumentParser) -> None:
    own = "with the credentials of a server or a site"
    add_url_argument(parser, "--broker", BROKER_URL, f"amqp(s):// {own}")
    add_url_argument(parser, "--store", STORE_URL, f"redis(s):// {own}")
    administrator = "http(s):// of an administrator, to check permissions, queues and alarms too"
    add_url_argument(parser, "--management", MANAGEMENT_URL, administrator)


def run(args: argparse.Namespace) -> int:
    findings = []
    for finding in examine(args):
        findings.append(finding)
        if not args.json:
            print(finding, flush=True)
    is_wrong = any(finding.is_wrong for finding in findings)
    if args.json:
        print(json.dumps({"ok": not is_wrong, "findings": [asdict(finding) for finding in findings]}))
    return 1 if is_wrong else 0


def examine(args: argparse.Namespace) -> Iterator["Finding"]:
    from ops.cli.recipe_files import read_recipe
    from ops.doctor import machine
    from ops.doctor.brokers import BrokerAddresses, check_brokers
    from ops.doctor.finding import Finding, findings_of

    recipe = None if args.recipe is None else read_recipe(args.recipe, args.overrides)
    sites, deadline_seconds = sites_and_deadline(args)
    yield from findings_of(machine.check_torch)
    autocast = recipe.autocast if recipe else None
    yield from findings_of(lambda: machine.check_device(args.device, autocast))
    if args.shards is not None:
        yield from findings_of(lambda: machine.check_shards(args.shards))
    elif recipe is not None:
        yield from findings_of(lambda: machine.check_data(recipe))
    sizes = None
    if recipe is not None and recipe.spec.asks_clients:
        from ops.plan.trial import measure_sizes

        try:
            sizes = measure_sizes(recipe)
        except LearningError as error:
            yield Finding("unknown", f"sizes of what the recipe sends: {error}")
    yield from findings_of(lambda: machine.check_disk(args.run_dir, sizes))
    brokers = BrokerAddresses(args.broker, args.store, args.management)
    yield from brokers.unnamed
    yield from check_brokers(brokers, sites, deadline_seconds, sizes)
