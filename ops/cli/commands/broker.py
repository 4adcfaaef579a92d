"""Set up RabbitMQ and Redis for a federation: one user for the server and one for each site, with the rights that
their processes need and no others."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from broker_config.process.addresses import BROKER_URL, STORE_URL
from fedil_model.errors import SettingError
from ops.broker.accounts import ADMIN_STORE_URL, MANAGEMENT_URL
from server_worker.options import add_override_argument

if TYPE_CHECKING:
    from ops.broker.setup import Wish

HELP = "set up RabbitMQ and Redis: queues, users, rights; check them; see and retire runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    init = actions.add_parser(
        "init", help="apply to brokers that run; harmless to repeat", allow_abbrev=False
    )
    files = actions.add_parser("files", help="write files for brokers to start with", allow_abbrev=False)
    check = actions.add_parser("check", help="say what is wrong with brokers that run", allow_abbrev=False)
    for action in (init, files, check):
        action.add_argument("--sites", metavar="A,B", help="names of the sites")
        action.add_argument(
            "--recipe",
            metavar="R",
            help="take sites and deadline from this recipe: a built-in name or a .toml file",
        )
        action.add_argument(
            "--deadline",
            type=_seconds,
            metavar="SECONDS",
            help="the longest of a round; default: the recipe's",
        )
        add_override_argument(action)
    for action in (init, files):
        _add_account_arguments(action)
    _add_management_argument(init, "of an administrator")
    init.add_argument(
        "--store",
        metavar="URL",
        help=f"redis(s)://user:password@host:port of an administrator; default: {ADMIN_STORE_URL} from the environment",
    )
    init.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write the addresses with passwords there instead of showing them",
    )
    files.add_argument("--out", type=Path, metavar="DIR", required=True, help="where to write them")
    files.add_argument(
        "--tls",
        metavar="DIR",
        help="TLS only, with ca.pem, server.pem and server.key from this folder as the brokers see it",
    )
    check.add_argument(
        "--broker",
        metavar="URL",
        help=f"as a server or a site uses it; default: {BROKER_URL} from the environment",
    )
    check.add_argument("--store", metavar="URL", help=f"likewise; default: {STORE_URL}")
    _add_management_argument(check, "to see users and rights, too")
    _add_run_actions(actions)


def _add_run_actions(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    runs = actions.add_parser("runs", help="list the runs that the brokers know of", allow_abbrev=False)
    _add_management_argument(runs, "of an administrator, to see queues and who leads")
    runs.add_argument(
        "--broker",
        metavar="URL",
        help=f"only its path is used, which names the virtual host; default: {BROKER_URL} from the environment",
    )
    runs.add_argument("--json", action="store_true", help="JSON instead of a table")
    retire = actions.add_parser(
        "retire", help="remove a run that nobody goes on with from the brokers", allow_abbrev=False
    )
    retire.add_argument("run_id", metavar="RUN", help="its name at the brokers (see: fedil broker runs)")
    retire.add_argument(
        "--broker", metavar="URL", help=f"as the server uses it; default: {BROKER_URL} from the environment"
    )
    retire.add_argument(
        "--ledgers", action="store_true", help="also what is remembered of its clients, in Redis"
    )
    for action in (runs, retire):
        action.add_argument(
            "--store",
            metavar="URL",
            help=f"redis(s):// as the server uses it; default: {STORE_URL} from the environment",
        )


def _add_account_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rotate", action="store_true", help="new passwords, also for users that have one")
    parser.add_argument(
        "--broker-address",
        metavar="URL",
        help="where sites find RabbitMQ, without credentials; a path names the virtual host (default: fedil)",
    )
    parser.add_argument("--store-address", metavar="URL", help="where sites find Redis, without credentials")


def _add_management_argument(parser: argparse.ArgumentParser, purpose: str) -> None:
    parser.add_argument(
        "--management",
        metavar="URL",
        help=f"http(s)://user:password@host:15672, {purpose}; default: {MANAGEMENT_URL} from the environment",
    )


def run(args: argparse.Namespace) -> int:
    actions = {
        "init": run_init,
        "files": run_files,
        "check": run_check,
        "runs": run_runs,
        "retire": run_retire,
    }
    return actions[args.action](args)


def run_init(args: argparse.Namespace) -> int:
    management_url = _given(args.management, MANAGEMENT_URL, "--management")
    store_url = _given(args.store, ADMIN_STORE_URL, "--store")
    wish = _wish(args)
    from ops.broker.management import Management
    from ops.broker.setup import apply

    apply(wish, Management(management_url), store_url, print, _warn)
    return 0


def run_files(args: argparse.Namespace) -> int:
    wish = _wish(args)
    from ops.broker.setup import write_files

    write_files(wish, args.out, args.tls, print)
    return 0


def run_check(args: argparse.Namespace) -> int:
    broker, store = args.broker or os.environ.get(BROKER_URL), args.store or os.environ.get(STORE_URL)
    management = args.management or os.environ.get(MANAGEMENT_URL)
    if not (broker or store or management):
        raise SettingError("nothing to check: give --broker, --store or --management")
    sites, deadline_seconds = _sites_and_deadline(args)
    from ops.broker.check import check

    findings = check(broker, store, management, sites, deadline_seconds)
    for finding in findings:
        print(finding)
    return 1 if any(finding.is_wrong for finding in findings) else 0


def run_runs(args: argparse.Namespace) -> int:
    management = args.management or os.environ.get(MANAGEMENT_URL)
    store = args.store or os.environ.get(STORE_URL)
    if not (management or store):
        raise SettingError(
            "whom to ask? Give --management (queues, leads) or --store (ledgers, servers), or both"
        )
    _check_scheme("--store", store, "redis", "rediss")
    from ops.broker.accounts import Addresses
    from ops.broker.runs import as_json, known_runs, print_runs

    vhost = Addresses(args.broker or os.environ.get(BROKER_URL, ""), "").vhost
    runs = known_runs(management, vhost, store)
    if args.json:
        print(json.dumps(as_json(runs)))
    elif runs:
        print_runs(runs)
    else:
        print("no runs")
    return 0


def run_retire(args: argparse.Namespace) -> int:
    broker = args.broker or os.environ.get(BROKER_URL)
    if not broker:
        raise SettingError(f"no broker: give --broker URL, or set {BROKER_URL}")
    _check_scheme("--broker", broker, "amqp", "amqps")
    store = args.store or os.environ.get(STORE_URL)
    if args.ledgers and not store:
        raise SettingError(f"--ledgers needs the store: give --store URL, or set {STORE_URL}")
    if args.ledgers:
        _check_scheme("--store", store, "redis", "rediss")
    from ops.broker.runs import retire

    retire(args.run_id, broker, store, print, ledgers=args.ledgers)
    return 0


def _wish(args: argparse.Namespace) -> "Wish":
    sites, deadline_seconds = _sites_and_deadline(args)
    if not sites:
        raise SettingError("which sites? give --sites a,b or --recipe R")
    from ops.broker.setup import Wish

    _check_address("--broker-address", args.broker_address, "amqp", "amqps")
    _check_address("--store-address", args.store_address, "redis", "rediss")
    return Wish(sites, deadline_seconds, args.out, args.rotate, args.broker_address, args.store_address)


def _check_address(option: str, url: str | None, *schemes: str) -> None:
    parts = urlsplit(url or f"{schemes[0]}://host")
    if parts.scheme not in schemes or not parts.hostname or "@" in parts.netloc:
        raise SettingError(
            f"{option}: write {schemes[0]}://host or {schemes[1]}://host, without a user or password"
        )


def _check_scheme(option: str, url: str | None, *schemes: str) -> None:
    """Says nothing else of the URL, since there may be a password in it."""
    if url is not None and urlsplit(url).scheme not in schemes:
        raise SettingError(f"{option} must begin with {schemes[0]}:// or {schemes[1]}://")


def _sites_and_deadline(args: argparse.Namespace) -> tuple[tuple[str, ...], float]:
    from broker_config.brokers.definitions import check_sites
    from server_worker.run.recipe import FederationSettings

    sites = [site.strip() for site in (args.sites or "").split(",") if site.strip()]
    federation = FederationSettings()
    if args.recipe is not None:
        from ops.cli.recipe_files import read_recipe

        recipe = read_recipe(args.recipe, args.overrides)
        sites, federation = sites or list(recipe.sites), recipe.federation
    return check_sites(sites), args.deadline or federation.deadline_seconds


def _given(value: str | None, variable: str, option: str) -> str:
    found = value or os.environ.get(variable)
    if not found:
        raise SettingError(f"no administrator's address: give {option} URL, or set {variable}")
    return found


def _warn(text: str) -> None:
    print(f"fedil: {text}", file=sys.stderr)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e8:
        raise argparse.ArgumentTypeError(f"wants seconds, a number above 0, got {text!r}")
    return seconds
