"""The brokers' configuration, written into files or applied to brokers that run."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from broker_config.brokers.definitions import (
    ADMIN_USER,
    deadline_policies,
    rabbitmq_conf,
    rabbitmq_definitions,
    rabbitmq_password_hash,
    redis_acl,
    redis_conf,
    redis_password_hash,
    redis_rules,
    users_of,
)
from broker_config.process.durable import make_directory, write_atomically
from broker_config.stores.redis.admin import AclUser, RedisAdmin, open_admin
from broker_config.transports.rabbitmq.queue_admin import SETTLE_SECONDS
from ops.broker.accounts import Account, Addresses, new_password, remembered, write_environment
from ops.broker.check import made_otherwise
from ops.broker.management import Management

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wish:
    sites: tuple[str, ...]
    deadline_seconds: float
    out: Path | None = None
    """Folder for what is written; without one, passwords are only shown"""
    rotate: bool = False
    broker_address: str | None = None
    store_address: str | None = None


def write_files(wish: Wish, out: Path, tls: str | None, say: Say) -> None:
    """For those who mount them into containers. Passwords that are there stay, unless `rotate`."""
    make_directory(out)
    addresses = _addresses_in_containers(wish, tls)
    known = remembered((*users_of(wish.sites), ADMIN_USER), None if wish.rotate else out)
    accounts = {user: _complete(account) for user, account in known.items()}
    for user, account in accounts.items():
        say(str(write_environment(out, user, account.environment(addresses))))
    definitions = rabbitmq_definitions(wish.sites, _broker_hashes(accounts), addresses.vhost)
    # Readable for the brokers, whoever they run as: hashes of such passwords tell nothing.
    for name, text in {
        "definitions.json": json.dumps(definitions, indent=2) + "\n",
        "users.acl": redis_acl(_store_hashes(accounts)),
        "rabbitmq.conf": rabbitmq_conf(wish.deadline_seconds, tls),
        "redis.conf": redis_conf(tls),
    }.items():
        write_atomically(out / name, [text.encode()])
        say(str(out / name))


def apply(wish: Wish, management: Management, store_url: str, say: Say, warn: Say) -> None:
    """To brokers that run. Nothing is shown or changed before both have let us in; what is new is shown or written
    before it is applied, since afterwards nobody knows it."""
    overview = management.get("overview")
    at_broker = {user["name"] for user in management.get("users")}
    with open_admin(store_url) as redis:
        at_store = redis.users()
        if wish.rotate:
            accounts = {user: _complete(Account(user)) for user in users_of(wish.sites)}
        else:
            accounts = {
                user: _complete(account, keep_broker=user in at_broker, keep_store=user in at_store)
                for user, account in remembered(users_of(wish.sites), wish.out).items()
            }
        addresses = _addresses_of_running(wish, management, overview, store_url)
        _hand_out(accounts, addresses, wish.out, say)
        version = tuple(int(part) for part in str(overview["rabbitmq_version"]).split("-")[0].split("."))
        _apply_to_rabbitmq(wish, management, accounts, addresses.vhost, version, warn)
        _apply_to_redis(redis, accounts, warn)


def _apply_to_rabbitmq(
    wish: Wish,
    management: Management,
    accounts: Mapping[str, Account],
    vhost: str,
    version: tuple[int, ...],
    warn: Say,
) -> None:
    definitions = rabbitmq_definitions(wish.sites, _broker_hashes(accounts), vhost)
    definitions["policies"] = deadline_policies(wish.deadline_seconds, version, vhost)
    # As the transport does it: no way leads to a queue before the broker cannot forget it any more.
    management.post("definitions", definitions | {"exchanges": [], "bindings": []})
    time.sleep(SETTLE_SECONDS)
    management.post("definitions", definitions)
    for text in made_otherwise(definitions, management.get("definitions")):
        warn(f"RabbitMQ at {management.where}: {text}")


def _apply_to_redis(redis: RedisAdmin, accounts: Mapping[str, Account], warn: Say) -> None:
    hashes = _store_hashes(accounts)
    redis.set_users({user: AclUser(redis_rules(user), hashed) for user, hashed in hashes.items()})
    if not redis.save_users():
        warn(
            f"Redis at {redis.endpoint} forgets these users when it restarts: give it an aclfile, then run this again"
        )


def _hand_out(accounts: Mapping[str, Account], addresses: Addresses, out: Path | None, say: Say) -> None:
    if out is not None:
        make_directory(out)
    for user, account in accounts.items():
        variables = account.environment(addresses)
        if len(variables) < 2:
            say(
                f"# {user} keeps its {'passwords' if not variables else 'other password'} (--rotate makes new ones)"
            )
        if not variables:
            continue
        if out is not None:
            say(str(write_environment(out, user, variables)))
        else:
            say(f"# {user}")
            for name, value in variables.items():
                say(f"{name}={value}")


def _complete(account: Account, *, keep_broker: bool = False, keep_store: bool = False) -> Account:
    """With new passwords where none is known and none is to be kept."""
    broker, store = account.broker_password, account.store_password
    return replace(
        account,
        broker_password=broker if broker or keep_broker else new_password(),
        store_password=store if store or keep_store else new_password(),
    )


def _broker_hashes(accounts: Mapping[str, Account]) -> dict[str, str | None]:
    passwords = {user: account.broker_password for user, account in accounts.items()}
    return {user: word and rabbitmq_password_hash(user, word) for user, word in passwords.items()}


def _store_hashes(accounts: Mapping[str, Account]) -> dict[str, str | None]:
    passwords = {user: account.store_password for user, account in accounts.items()}
    return {user: word and redis_password_hash(word) for user, word in passwords.items()}


def _addresses_in_containers(wish: Wish, tls: str | None) -> Addresses:
    """By the names that compose and Kubernetes usually give them."""
    broker = "amqp://rabbitmq:5672" if tls is None else f"amqps://rabbitmq:5671?cafile={tls}/ca.pem"
    store = "redis://redis:6379/0" if tls is None else f"rediss://redis:6379/0?ssl_ca_certs={tls}/ca.pem"
    broker, store = wish.broker_address or broker, wish.store_address or store
    return Addresses(broker, store, f"http://{urlsplit(broker).hostname}:15672")


def _addresses_of_running(
    wish: Wish, management: Management, overview: Mapping[str, Any], store_url: str
) -> Addresses:
    """Where we found them ourselves, if nobody says how sites reach them."""
    ports = {listener["protocol"]: listener["port"] for listener in overview.get("listeners", ())}
    scheme, protocol = ("amqps", "amqp/ssl") if "amqp" not in ports else ("amqp", "amqp")
    broker = f"{scheme}://{management.host}:{ports.get(protocol, 5672)}"
    return Addresses(wish.broker_address or broker, wish.store_address or store_url)
