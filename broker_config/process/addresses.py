"""Where things are, as people say it. The brokers: on the command line, or in the environment, where a password in
an address is not seen by others. Our own pages: on the command line."""

import argparse
import re
import shlex
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from broker_config.protocol.errors import AddressMissing, AddressWrong
from broker_config.stores import STORES
from broker_config.transports import TRANSPORTS

BROKER_URL, STORE_URL = "FEDIL_BROKER_URL", "FEDIL_STORE_URL"
MANAGEMENT_URL, ADMIN_STORE_URL = "FEDIL_MANAGEMENT_URL", "FEDIL_ADMIN_STORE_URL"
ACCOUNT_FILE = "FEDIL_ACCOUNT_FILE"
"""Names a file that `fedil broker init --out` has written, for places that hand secrets out as files"""
LOOPBACK = "127.0.0.1"
_VARIABLES = {"broker": BROKER_URL, "store": STORE_URL}
_SCHEMES = {"broker": tuple(TRANSPORTS), "store": tuple(STORES)}
LAST_PORT = 65535


def add_address_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--broker",
        metavar="URL",
        help=f"amqp(s)://user:password@host/vhost; default: {BROKER_URL} from the environment, where a password is "
        f"not seen by others, or from the file that {ACCOUNT_FILE} names",
    )
    parser.add_argument(
        "--store", metavar="URL", help=f"redis(s)://user:password@host:port; default: {STORE_URL}"
    )


def read_account_file(environment: MutableMapping[str, str]) -> None:
    """Puts the addresses of the account file into the environment. What is set there already counts; other variables
    in the file do not."""
    name = environment.get(ACCOUNT_FILE)
    if not name:
        return
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
        found = {
            key: shlex.split(value)
            for key, equals, value in (line.partition("=") for line in lines)
            if equals
        }
    except OSError as error:
        raise AddressMissing(f"cannot read {name}, which {ACCOUNT_FILE} names: {error.strerror}") from error
    except ValueError as error:  # does not show the line, which may hold a password
        raise AddressWrong(f"{name}, which {ACCOUNT_FILE} names, is not an environment file") from error
    for variable in (BROKER_URL, STORE_URL, MANAGEMENT_URL, ADMIN_STORE_URL):
        if variable in found:
            environment.setdefault(variable, "".join(found[variable]))


def fill_from_environment(options: argparse.Namespace, environment: Mapping[str, str]) -> None:
    for name, variable in _VARIABLES.items():
        given = getattr(options, name) or environment.get(variable)
        if not given:
            raise AddressMissing(f"no {name} to connect to: give --{name} URL, or set {variable}")
        setattr(options, name, given)
    # Both before either connection: waiting for one broker would hide that the other address is wrong.
    for name in _SCHEMES:
        check_scheme(name, getattr(options, name))


def check_scheme(name: str, url: str) -> None:
    """`name`: broker or store. Says nothing else of the URL, since there may be a password in it."""
    found = re.match(r"([a-z][a-z0-9+.-]*)://", url, re.IGNORECASE)
    if found and found[1].lower() in _SCHEMES[name]:
        return
    allowed = " or ".join(f"{scheme}://" for scheme in _SCHEMES[name] if scheme != "memory")
    raise AddressWrong(
        f"--{name} (or {_VARIABLES[name]}) must begin with {allowed}{f', not {found[0]}' if found else ''}"
    )


@dataclass(frozen=True)
class WebAddress:
    host: str = LOOPBACK
    port: int = 0
    """0: any that is free"""
    fixed: bool = True
    """The port was asked for; otherwise another one is taken when it is in use."""

    def __str__(self) -> str:
        """As `parse_address` reads it"""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> WebAddress | None:
    """`HOST:PORT`, `:PORT` (every interface), `PORT` (loopback only), or `off`; for argparse"""
    if text == "off":
        return None
    found = re.fullmatch(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[^:\s/]*):)?(?P<port>\d{1,20})", text)
    wanted = f"wants HOST:PORT, PORT or off, got {text!r}"
    if not found:
        raise argparse.ArgumentTypeError(wanted)
    if int(found["port"]) > LAST_PORT:
        raise argparse.ArgumentTypeError(f"{wanted}: ports end at {LAST_PORT}")
    host = LOOPBACK if found["host"] is None else found["host"].strip("[]") or "0.0.0.0"
    return WebAddress(host, int(found["port"]))


def add_web_argument(parser: argparse.ArgumentParser, default: WebAddress, what: str) -> None:
    """`what` is served there, in words."""
    usual = (
        f"{default.host}:{default.port}, or another port when that is taken"
        if default.port
        else "a free port"
    )
    parser.add_argument(
        "--web",
        type=parse_address,
        default=default,
        metavar="HOST:PORT|PORT|off",
        help=f"where to serve {what}; default: {usual}. A port alone is for this machine only",
    )
