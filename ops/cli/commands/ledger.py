"""Show what a run's clients keep between their activations."""

import argparse
import json
import os
import shlex
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker_config.process.addresses import STORE_URL
from broker_config.stores import is_redis_url
from fedil_model.errors import SettingError

if TYPE_CHECKING:
    from ops.inspect.ledgers import Shelves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="one client's ledger, with histograms")
    show.add_argument("client", type=_client, metavar="CLIENT", help="the client's number")
    every = actions.add_parser("list", help="a line for each client")
    run = "the run's name at the brokers (see: fedil status)"
    store = f"redis(s)://user:password@host:port; default: {STORE_URL} from the environment"
    method = "the run's method; default: that of the folder's recipe, or fedil"
    for action in (show, every):
        add = action.add_argument
        add("--run", dest="run_id", metavar="ID", help=run)
        add("--store", metavar="URL", help=store)
        add("--site", metavar="S", help="the site that owns the clients; default: all of them")
        add("--run-dir", type=Path, metavar="DIR", help="a simulation's folder instead of a store")
        add("--method", metavar="NAME", help=method)
        add("--json", action="store_true", help="JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    run_id, method, opening = find_ledgers(args)
    from fedil_model.methods import find_method
    from ops.inspect.ledgers import all_states, as_json, print_all, print_one, state_of

    spec, is_one = find_method(method), args.action == "show"
    with opening as shelves:
        found = (
            [state_of(shelves, run_id, args.client, spec)] if is_one else all_states(shelves, run_id, spec)
        )
    if args.json:
        shown = [as_json(run_id, one) for one in found]
        print(json.dumps(shown[0] if is_one else shown))
    elif is_one:
        print_one(run_id, found[0], spec)
    else:
        print_all(run_id, found, spec)
    return 0


def find_ledgers(args: argparse.Namespace) -> "tuple[str, str, AbstractContextManager[Shelves]]":
    """The run's id, its method, and where its ledgers are."""
    if args.run_dir is not None:
        if args.store or args.site:
            raise SettingError("--run-dir reads a folder: leave out --store and --site")
        from broker_config.protocol.schema import check_run
        from broker_config.stores.memory.ledger_files import LedgerFiles
        from ops.inspect.run_reading import recipe_values
        from server_worker.run.folder import RunDir
        from server_worker.run.name import known_run

        where, values = RunDir(args.run_dir), recipe_values(args.run_dir)
        run_id = args.run_id or known_run(where) or check_run("name", values.get("name"))
        return run_id, args.method or own_method(values), nullcontext({"": LedgerFiles(where.ledgers)})
    url = args.store or os.environ.get(STORE_URL, "")
    if not url:
        raise SettingError(f"where are the ledgers? Set {STORE_URL}, or give --store URL or --run-dir DIR")
    if not is_redis_url(url):
        raise SettingError(
            "the store's URL must begin with redis:// or rediss://; see --run-dir for simulations"
        )
    if not args.run_id:
        raise SettingError("which run? Give --run ID")
    from fedil_model.methods import DEFAULT_METHOD
    from ops.inspect.ledgers import shelves_in_redis

    return args.run_id, args.method or DEFAULT_METHOD, shelves_in_redis(url, args.run_id, args.site)


def own_method(values: dict[str, Any]) -> str:
    """That of a folder's recipe. The folder may come from elsewhere: code that it names is not run."""
    from fedil_model.methods import method_named
    from fedil_model.plugins import is_plugin

    name = method_named(values)
    if is_plugin(name):
        raise SettingError(
            f"the run's method is code of its own: if you trust it, add --method {shlex.quote(name)}"
        )
    return name


def _client(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"wants a client's number, from 0 up, got {text!r}")
    return int(text)
