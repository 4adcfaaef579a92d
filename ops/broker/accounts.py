"""Users of the brokers and their passwords: made once, written where only their owner reads them."""

import os
import re
import secrets
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from broker_config.brokers.definitions import ADMIN_USER, VHOST
from broker_config.process.addresses import BROKER_URL, STORE_URL
from broker_config.process.durable import write_atomically
from broker_config.protocol.errors import FedILError

MANAGEMENT_URL, ADMIN_STORE_URL = "FEDIL_MANAGEMENT_URL", "FEDIL_ADMIN_STORE_URL"
_PLAIN = re.compile(r"[\w./:@%?=+,\[\]-]*", re.ASCII)
"""What a shell leaves alone in an assignment"""


@dataclass(frozen=True)
class Addresses:
    """Where a user's processes find the brokers: URLs without credentials."""

    broker: str
    store: str
    management: str = ""

    @property
    def vhost(self) -> str:
        return unquote(urlsplit(self.broker).path[1:]) or VHOST


@dataclass(frozen=True)
class Account:
    user: str
    broker_password: str | None = None
    store_password: str | None = None
    """None: nobody told us, and it stays as it is"""

    def environment(self, addresses: Addresses) -> dict[str, str]:
        """What this user's processes need to know, as far as we know it."""
        if self.user == ADMIN_USER:
            places = (addresses.management, addresses.store)
        else:
            places = (_with_path(addresses.broker, quote(addresses.vhost, safe="")), addresses.store)
        passwords = (self.broker_password, self.store_password)
        return {
            name: _with_login(place, self.user, password)
            for name, place, password in zip(_variables(self.user), places, passwords, strict=True)
            if password is not None
        }


def new_password() -> str:
    """Long enough that its hash need not be kept secret; no sign in it means anything to a URL."""
    return secrets.token_urlsafe(32)


def remembered(users: Iterable[str], folder: Path | None) -> dict[str, Account]:
    """What is known of these users from the files that we once wrote there."""
    return {user: _remembered(user, folder / f"{user}.env" if folder else None) for user in users}


def _remembered(user: str, path: Path | None) -> Account:
    found = _read(path) if path else {}
    broker, store = _variables(user)
    return Account(user, _password_in(found.get(broker, "")), _password_in(found.get(store, "")))


def _variables(user: str) -> tuple[str, str]:
    return (MANAGEMENT_URL, ADMIN_STORE_URL) if user == ADMIN_USER else (BROKER_URL, STORE_URL)


def write_environment(folder: Path, user: str, variables: Mapping[str, str]) -> Path:
    """As shells, compose and systemd read it, and docker too as long as nothing needs quotes, such as the & between two
    files of TLS. Only its owner may."""
    path = folder / f"{user}.env"
    text = "".join(f"{name}={_quoted(value)}\n" for name, value in variables.items())
    mask = os.umask(0o077)
    try:
        write_atomically(path, [text.encode()])
    finally:
        os.umask(mask)
    return path


def _quoted(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else shlex.quote(value)


def _read(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    return {name: value.strip("'") for name, _, value in (line.partition("=") for line in lines)}


def _password_in(url: str) -> str | None:
    try:
        password = urlsplit(url).password
    except ValueError as error:
        raise FedILError(
            f"an address in the folder cannot be read ({error}): correct or delete its file"
        ) from None
    return unquote(password) if password else None


def _with_login(address: str, user: str, password: str) -> str:
    parts = urlsplit(address)
    place = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{place}").geturl()


def _with_path(address: str, path: str) -> str:
    return urlsplit(address)._replace(path=f"/{path}").geturl()
