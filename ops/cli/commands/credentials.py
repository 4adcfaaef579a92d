"""Make certificates for mutual TLS: an authority of the federation's own, and a certificate for the brokers, the server
and each site.

Repeating it keeps what is good and renews what has less than a third of its days left, so it may run daily. Old and
new certificates of one authority work together: replace them one process after the other, while a run goes on."""

import argparse
import json
import re
from pathlib import Path

from client_worker.options import at_least_one
from fedil_model.errors import SettingError
from ops.cli.recipe_files import read_recipe
from server_worker.options import add_override_argument

_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.:_-]*[A-Za-z0-9])?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--hosts", required=True, metavar="A,B", help="names and IP addresses of RabbitMQ and Redis")
    add("--sites", metavar="A,B", help="names of the sites")
    add("--recipe", metavar="R", help="take the sites from this recipe: a built-in name or a .toml file")
    add_override_argument(parser)
    add("--out", type=Path, required=True, metavar="DIR", help="folder of the authority and the certificates")
    add("--days", type=at_least_one, default=365, metavar="N", help="how long they are valid; default: 365")
    add("--renew", action="store_true", help="replace all certificates; the authority stays")
    add("--json", action="store_true", help="the certificates as JSON")


def run(args: argparse.Namespace) -> int:
    hosts = _names(args.hosts)
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise SettingError(f"--hosts: {host!r:.80} is neither a host name nor an IP address")
    if not hosts:
        raise SettingError("--hosts names no host")
    sites = _names(args.sites) or (
        list(read_recipe(args.recipe, args.overrides).sites) if args.recipe else []
    )
    if not sites:
        raise SettingError("no sites: give --sites a,b or --recipe R")
    from broker_config.brokers.definitions import users_of

    users = users_of(sites)
    try:
        from ops.broker.certificates import open_authority
    except ImportError as error:
        raise SettingError(
            f"certificates need {error.name}, which is not installed: pip install 'fedil[credentials]'"
        ) from error
    authority = open_authority(args.out)
    issued = [authority.issue(args.out / "brokers", "brokers", args.days, hosts, args.renew)]
    issued += [authority.issue(args.out / user, user, args.days, renew=args.renew) for user in users]
    if args.json:
        kept = {str(one.path): {"until": f"{one.until:%Y-%m-%d}", "new": one.is_new} for one in issued}
        print(json.dumps(kept))
        return 0
    print(f"{args.out / 'ca.pem'}  until {authority.certificate.not_valid_after_utc:%Y-%m-%d}")
    for one in issued:
        print(f"{one.path}  until {one.until:%Y-%m-%d}{'' if one.is_new else ', kept'}")
    return 0


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]
