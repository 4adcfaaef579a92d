"""Accounts of broker users: passwords, and the environment files that only their owner can read."""

import re
import secrets
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from broker_config.brokers.definitions import ADMIN_USER, VHOST, rabbitmq_password_hash, redis_password_hash
from broker_config.process.addresses import ADMIN_STORE_URL, BROKER_URL, MANAGEMENT_URL, STORE_URL
from broker_config.process.durable import write_privately
from broker_config.protocol.errors import FedILError

USER = "{user}"
"""In an address: the user's name, for certificates in a folder of the user's own"""
_PLAIN = re.compile(r"[\w./:@%?=+,\[\]-]*", re.ASCII)
"""Values that a shell does not interpret in an assignment"""


@dataclass(frozen=True)
class Addresses:
    """URLs of the brokers without credentials."""

    broker: str
    store: str
    management: str = ""

    @property
    def vhost(self) -> str:
        return unquote(urlsplit(self.broker).path[1:]) or VHOST


@dataclass(frozen=True)
class Account:
    """A password of None is not known, and stays as it is at the broker."""

    user: str
    broker_password: str | None = None
    store_password: str | None = None

    @property
    def broker_hash(self) -> str | None:
        return self.broker_password and rabbitmq_password_hash(self.user, self.broker_password)

    @property
    def store_hash(self) -> str | None:
        return self.store_password and redis_password_hash(self.store_password)

    def with_passwords(self, *, keep_broker: bool = False, keep_store: bool = False) -> "Account":
        """With new passwords in place of unknown ones, except where the broker keeps its own."""
        # Long enough that its hash need not be secret; without characters that are special in a URL.
        broker, store = (
            password if password or keep else secrets.token_urlsafe(32)
            for password, keep in ((self.broker_password, keep_broker), (self.store_password, keep_store))
        )
        return Account(self.user, broker, store)

    def environment(self, addresses: Addresses) -> dict[str, str]:
        """Environment variables of this user's processes, for the passwords that are known."""
        if self.user == ADMIN_USER:
            broker = addresses.management
        else:
            broker = urlsplit(addresses.broker)._replace(path=f"/{quote(addresses.vhost, safe='')}").geturl()
        logins = ((broker, self.broker_password), (addresses.store, self.store_password))
        return {
            name: _with_login(address.replace(USER, self.user), self.user, password)
            for name, (address, password) in zip(_variables(self.user), logins, strict=True)
            if password is not None
        }


def read_accounts(users: Iterable[str], folder: Path | None) -> dict[str, Account]:
    """Accounts with the passwords in the environment files that `write_environment` wrote to this folder."""
    return {user: _read_account(user, folder / f"{user}.env" if folder else None) for user in users}


def _read_account(user: str, path: Path | None) -> Account:
    if path is None or not path.exists():
        return Account(user)
    lines = [line.partition("=") for line in path.read_text(encoding="utf-8").splitlines()]
    urls = {name: value.strip("'") for name, _, value in lines}
    try:
        return Account(user, *(_password_in(urls.get(name, "")) for name in _variables(user)))
    except ValueError as error:
        raise FedILError(f"{path} has an unreadable URL ({error}): correct or delete the file") from None


def _variables(user: str) -> tuple[str, str]:
    return (MANAGEMENT_URL, ADMIN_STORE_URL) if user == ADMIN_USER else (BROKER_URL, STORE_URL)


def write_environment(folder: Path, user: str, variables: Mapping[str, str]) -> Path:
    """Writes a file for shells, compose and systemd that only its owner can read. `docker --env-file` reads it too,
    unless a value needs quotes: the & between two TLS options does."""
    path = folder / f"{user}.env"
    quoted = {
        name: value if _PLAIN.fullmatch(value) else shlex.quote(value) for name, value in variables.items()
    }
    text = "".join(f"{name}={value}\n" for name, value in quoted.items())
    write_privately(path, [text.encode()])
    return path


def _password_in(url: str) -> str | None:
    password = urlsplit(url).password
    return unquote(password) if password else None


def _with_login(address: str, user: str, password: str) -> str:
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{host}").geturl()
