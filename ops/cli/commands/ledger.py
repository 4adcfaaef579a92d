"""Show what is remembered of a run's clients between their activations: pseudo-labels and how sure they are."""

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from broker_config.process.addresses import STORE_URL
from fedil_model.errors import SettingError
from ops.cli.commands.model_choice import check_run

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ops.inspect.ledgers import Shelves

HELP = "look at the ledgers of a run's clients"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="one client's ledger, with histograms", allow_abbrev=False)
    show.add_argument("client", type=_client, metavar="CLIENT", help="the client's number")
    everybody = actions.add_parser("list", help="a line for each client", allow_abbrev=False)
    for action in (show, everybody):
        action.add_argument(
            "--run", dest="run_id", metavar="ID", help="the run's name at the brokers (see: fedil status)"
        )
        action.add_argument(
            "--store",
            metavar="URL",
            help=f"redis(s)://user:password@host:port; default: {STORE_URL} from the environment",
        )
        action.add_argument("--site", metavar="S", help="who owns the clients; default: all sites of the run")
        action.add_argument(
            "--run-dir", type=Path, metavar="DIR", help="a simulation's folder instead of a store"
        )
        action.add_argument("--json", action="store_true", help="JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    run_id, opening = find_ledgers(args)
    from ops.inspect.ledgers import all_remembered, as_json, print_all, print_one, remembered_of

    with opening as shelves:
        if args.action == "show":
            one = remembered_of(shelves, run_id, args.client)
            if args.json:
                print(json.dumps(as_json(run_id, one)))
            else:
                print_one(run_id, one)
        else:
            everybody = all_remembered(shelves, run_id)
            if args.json:
                print(json.dumps([as_json(run_id, one) for one in everybody]))
            else:
                print_all(run_id, everybody)
    return 0


def find_ledgers(args: argparse.Namespace) -> "tuple[str, AbstractContextManager[Shelves]]":
    """The run's id, and where its ledgers lie."""
    if args.run_dir is not None:
        if args.store or args.site:
            raise SettingError("--run-dir reads a folder: leave out --store and --site")
        check_run(args.run_dir)
        from ops.inspect.ledgers import shelves_in_folder
        from ops.inspect.run_reading import load_run
        from server_worker.run.folder import RunDir
        from server_worker.run.name import known_run

        where = RunDir(args.run_dir)
        run_id = args.run_id or known_run(where) or load_run(args.run_dir).name
        return run_id, shelves_in_folder(where.ledgers)
    url = args.store or os.environ.get(STORE_URL, "")
    if not url:
        raise SettingError(f"where are the ledgers? Set {STORE_URL}, or give --store URL or --run-dir DIR")
    if not url.startswith(("redis://", "rediss://")):
        raise SettingError(
            "the store's URL must begin with redis:// or rediss://; see --run-dir for simulations"
        )
    if not args.run_id:
        raise SettingError("which run? Give --run ID")
    from ops.inspect.ledgers import shelves_in_redis

    return args.run_id, shelves_in_redis(url, args.run_id, args.site)


def _client(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"wants a client's number, from 0 up, got {text!r}")
    return int(text)
