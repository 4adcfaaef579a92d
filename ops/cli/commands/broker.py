"""Set up RabbitMQ and Redis for a federation: one user for the server and one for each site, with only the permissions
that their processes need."""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from broker_config.process.addresses import ADMIN_STORE_URL, BROKER_URL, MANAGEMENT_URL, STORE_URL
from broker_config.stores import REDIS_SCHEMES
from fedil_model.errors import SettingError
from server_worker.options import add_override_argument

if TYPE_CHECKING:
    from ops.broker.setup import SetupOptions


_WORKERS, _UPDATE_GIB = 50, 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    init = actions.add_parser("init", help="apply to running brokers; may be repeated")
    files = actions.add_parser("files", help="write configuration files for new brokers")
    check = actions.add_parser(
        "check", help="report what is wrong with running brokers; a part of fedil doctor"
    )
    runs = actions.add_parser("runs", help="list the runs that the brokers hold data of")
    retire = actions.add_parser("retire", help="remove an abandoned run from the brokers")
    init.set_defaults(run=run_init)
    files.set_defaults(run=run_files)
    check.set_defaults(run=run_check)
    runs.set_defaults(run=run_runs)
    retire.set_defaults(run=run_retire)
    for action in (init, files, check):
        add_site_arguments(action)
    for action in (init, files):
        _add_account_arguments(action)
    administrator = "of an administrator"
    add_url_argument(
        init, "--management", MANAGEMENT_URL, f"http(s)://user:password@host:15672 {administrator}"
    )
    add_url_argument(init, "--store", ADMIN_STORE_URL, f"redis(s)://user:password@host:port {administrator}")
    where = "write the addresses with passwords to this folder instead of printing them"
    init.add_argument("--out", type=Path, metavar="DIR", help=where)
    files.add_argument("--out", type=Path, metavar="DIR", required=True, help="folder to write to")
    tls = "TLS only, with ca.pem, server.pem and server.key from this folder in the brokers' file system"
    files.add_argument("--tls", metavar="DIR", help=tls)
    mutual = "with --tls: clients need certificates, client.pem and client.key in the same folder of theirs"
    files.add_argument("--mutual", action="store_true", help=mutual)
    own = "with the credentials of a server or a site"
    add_url_argument(check, "--broker", BROKER_URL, f"amqp(s):// {own}")
    add_url_argument(check, "--store", STORE_URL, f"redis(s):// {own}")
    management = f"http(s):// {administrator}"
    add_url_argument(check, "--management", MANAGEMENT_URL, f"{management}, to check permissions too")
    add_url_argument(runs, "--management", MANAGEMENT_URL, f"{management}, to see queues and leaders")
    add_url_argument(runs, "--broker", BROKER_URL, "only its path is used, the virtual host")
    runs.add_argument("--json", action="store_true", help="JSON instead of a table")
    retire.add_argument("run_id", metavar="RUN", help="id of the run (see: fedil broker runs)")
    add_url_argument(retire, "--broker", BROKER_URL, "amqp(s):// with the server's credentials")
    its_sites = "its sites, whose unread updates are removed; default: those that have ledgers"
    retire.add_argument("--sites", metavar="A,B", help=its_sites)
    retire.add_argument("--ledgers", action="store_true", help="also remove its clients' ledgers from Redis")
    retire.add_argument("--yes", action="store_true", help="do not ask before removing ledgers")
    for action in (runs, retire):
        add_url_argument(action, "--store", STORE_URL, "redis(s):// with the server's credentials")


def add_site_arguments(parser: argparse.ArgumentParser) -> None:
    recipe = "take sites and deadline from this recipe: a built-in name or a .toml file"
    deadline = "deadline of a round; default: the recipe's"
    parser.add_argument("--sites", metavar="A,B", help="names of the sites")
    parser.add_argument("--recipe", metavar="R", help=recipe)
    parser.add_argument("--deadline", type=_seconds, metavar="SECONDS", help=deadline)
    add_override_argument(parser)


def _add_account_arguments(parser: argparse.ArgumentParser) -> None:
    broker = (
        "address of RabbitMQ for sites, without credentials; its path is the virtual host (default: fedil), and {user} "
        "becomes the user's name, as in ?certfile=/etc/fedil/{user}/client.pem"
    )
    store = "address of Redis for sites, without credentials; {user} likewise"
    workers = f"most worker processes of one site (default: {_WORKERS}); RabbitMQ limits its connections and channels"
    update = f"most GiB that one update may have (default: {_UPDATE_GIB:g})"
    parser.add_argument("--workers", type=_count, metavar="N", default=_WORKERS, help=workers)
    parser.add_argument("--largest-update", type=_gib, metavar="GIB", default=_UPDATE_GIB, help=update)
    parser.add_argument("--rotate", action="store_true", help="replace the passwords of existing users too")
    parser.add_argument("--broker-address", metavar="URL", help=broker)
    parser.add_argument("--store-address", metavar="URL", help=store)


def add_url_argument(parser: argparse.ArgumentParser, option: str, variable: str, meaning: str) -> None:
    default = os.environ.get(variable) or None
    meaning = f"{meaning}; default: {variable} from the environment"
    parser.add_argument(option, metavar="URL", default=default, help=meaning)


def run_init(args: argparse.Namespace) -> int:
    for name, variable in {"management": MANAGEMENT_URL, "store": ADMIN_STORE_URL}.items():
        if not getattr(args, name):
            raise SettingError(f"no administrator's address: give --{name} URL, or set {variable}")
    options = _setup_options(args)
    from ops.broker.management import Management
    from ops.broker.setup import apply

    apply(options, Management(args.management), args.store, print, _warn)
    return 0


def run_files(args: argparse.Namespace) -> int:
    options = _setup_options(args)
    from ops.broker.setup import write_files

    if args.mutual and args.tls is None:
        raise SettingError("--mutual is for --tls DIR")
    write_files(options, args.out, args.tls, args.mutual, print)
    return 0


def run_check(args: argparse.Namespace) -> int:
    if not (args.broker or args.store or args.management):
        raise SettingError("nothing to check: give --broker, --store or --management")
    sites, deadline_seconds = sites_and_deadline(args)
    from ops.doctor.brokers import BrokerAddresses, check_brokers

    addresses = BrokerAddresses(args.broker, args.store, args.management)
    findings = list(check_brokers(addresses, sites, deadline_seconds))
    for finding in findings:
        print(finding)
    return 1 if any(finding.is_wrong for finding in findings) else 0


def run_runs(args: argparse.Namespace) -> int:
    if not (args.management or args.store):
        raise SettingError(
            "no broker to ask: give --management (queues, leaders) or --store (ledgers, servers), or both"
        )
    _check_scheme("--store", args.store, *REDIS_SCHEMES)
    from ops.broker.accounts import Addresses
    from ops.broker.runs import known_runs, print_runs

    runs = known_runs(args.management, Addresses(args.broker or "", "").vhost, args.store)
    if args.json:
        print(json.dumps([asdict(run) for run in runs]))
    elif runs:
        print_runs(runs)
    else:
        print("no runs")
    return 0


def run_retire(args: argparse.Namespace) -> int:
    if not args.broker:
        raise SettingError(f"no broker: give --broker URL, or set {BROKER_URL}")
    _check_scheme("--broker", args.broker, "amqp", "amqps")
    if args.ledgers:
        if not args.store:
            raise SettingError(f"--ledgers needs the store: give --store URL, or set {STORE_URL}")
        _check_scheme("--store", args.store, *REDIS_SCHEMES)
        if not args.yes and not _confirmed(args.run_id):
            return 1
    from ops.broker.runs import retire

    sites = _site_names(args)
    retire(args.run_id, args.broker, args.store, print, ledgers=args.ledgers, sites=sites)
    return 0


def _confirmed(run: str) -> bool:
    if not sys.stdin.isatty():
        raise SettingError("--ledgers removes what the clients remember, for ever: add --yes")
    return input(f"Remove the ledgers of run {run} for ever? Type its name to go on: ").strip() == run


def _setup_options(args: argparse.Namespace) -> "SetupOptions":
    sites, deadline_seconds = sites_and_deadline(args)
    if not sites:
        raise SettingError("no sites: give --sites a,b or --recipe R")
    from ops.broker.setup import SetupOptions

    _check_address("--broker-address", args.broker_address, "amqp", "amqps")
    _check_address("--store-address", args.store_address, *REDIS_SCHEMES)
    from broker_config.brokers.definitions import SiteLimits

    limits = SiteLimits(args.workers, round(args.largest_update * 2**30))
    return SetupOptions(
        sites, deadline_seconds, args.out, args.rotate, args.broker_address, args.store_address, limits
    )


def _check_address(option: str, url: str | None, *schemes: str) -> None:
    parts = urlsplit(url or f"{schemes[0]}://host")
    if parts.scheme not in schemes or not parts.hostname or "@" in parts.netloc:
        allowed = " or ".join(f"{scheme}://host" for scheme in schemes)
        raise SettingError(f"{option}: write {allowed}, without a user or password")


def _check_scheme(option: str, url: str | None, *schemes: str) -> None:
    """The error does not show the URL, which may hold a password."""
    if url is not None and urlsplit(url).scheme not in schemes:
        raise SettingError(f"{option} must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}")


def sites_and_deadline(args: argparse.Namespace) -> tuple[tuple[str, ...], float]:
    from broker_config.brokers.definitions import check_sites
    from server_worker.run.recipe import FederationSettings

    sites, federation = _site_names(args), FederationSettings()
    if args.recipe is not None:
        from ops.cli.recipe_files import read_recipe

        recipe = read_recipe(args.recipe, args.overrides)
        sites, federation = sites or list(recipe.sites), recipe.federation
    return check_sites(sites), args.deadline or federation.deadline_seconds


def _site_names(args: argparse.Namespace) -> list[str]:
    return [site.strip() for site in (args.sites or "").split(",") if site.strip()]


def _warn(text: str) -> None:
    print(f"fedil: {text}", file=sys.stderr)


def _seconds(text: str) -> float:
    return _number(text, "seconds", 1e8)


def _gib(text: str) -> float:
    return _number(text, "GiB", 1e6)


def _count(text: str) -> int:
    return round(_number(text, "a count", 1e5))


def _number(text: str, what: str, below: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < below:
        raise argparse.ArgumentTypeError(f"expects {what}, a number above 0, got {text!r}")
    return number
