"""Configuration of the brokers: written to files, or applied to running brokers."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from broker_config.brokers.definitions import (
    ADMIN_USER,
    MOST_QUEUES,
    SiteLimits,
    import_steps,
    policies,
    rabbitmq_conf,
    rabbitmq_definitions,
    redis_acl,
    redis_conf,
    redis_rules,
    users_of,
)
from broker_config.brokers.topology import site_user
from broker_config.process.durable import make_directory, write_atomically
from broker_config.stores.redis.admin import AclUser, open_admin
from broker_config.transports.rabbitmq.queue_admin import SETTLE_SECONDS
from ops.broker.accounts import Account, Addresses, read_accounts, write_environment
from ops.broker.differences import differences
from ops.broker.management import Management

Print = Callable[[str], None]


@dataclass(frozen=True)
class SetupOptions:
    sites: tuple[str, ...]
    deadline_seconds: float
    out: Path | None = None
    """Folder for the environment files; without one, passwords are printed"""
    rotate: bool = False
    broker_address: str | None = None
    store_address: str | None = None
    limits: SiteLimits = field(default_factory=SiteLimits)


def write_files(options: SetupOptions, out: Path, tls: str | None, mutual: bool, output: Print) -> None:
    """Writes files to mount into the brokers' containers. Existing passwords are kept, unless `rotate`. `mutual`: TLS
    with client certificates"""
    make_directory(out)
    addresses = _addresses_in_containers(options, tls, mutual)
    known = read_accounts((*users_of(options.sites), ADMIN_USER), None if options.rotate else out)
    accounts = {user: account.with_passwords() for user, account in known.items()}
    for user, account in accounts.items():
        output(str(write_environment(out, user, account.environment(addresses))))
    hashes = {user: account.broker_hash for user, account in accounts.items()}
    definitions = rabbitmq_definitions(options.sites, hashes, addresses.vhost, limits=options.limits)
    # Readable for any user that a broker runs as: hashes of such passwords are no secret.
    for name, text in {
        "definitions.json": json.dumps(definitions, indent=2) + "\n",
        "users.acl": redis_acl({user: account.store_hash for user, account in accounts.items()}),
        "rabbitmq.conf": rabbitmq_conf(options.deadline_seconds, tls, mutual),
        "redis.conf": redis_conf(tls, mutual),
    }.items():
        write_atomically(out / name, [text.encode()])
        output(str(out / name))


def apply(options: SetupOptions, management: Management, store_url: str, output: Print, warn: Print) -> None:
    """Applies the configuration to running brokers. Nothing is printed or changed before both accept the login. New
    passwords are printed or written first: the brokers keep only their hashes."""
    overview = management.get("overview")
    at_broker = {user["name"] for user in management.get("users")}
    with open_admin(store_url) as redis:
        at_store = redis.users()
        known = read_accounts(users_of(options.sites), None if options.rotate else options.out)
        accounts = {
            user: account.with_passwords(
                keep_broker=user in at_broker and not options.rotate,
                keep_store=user in at_store and not options.rotate,
            )
            for user, account in known.items()
        }
        addresses = _discovered_addresses(options, management, overview, store_url)
        nodes = management.num_nodes()
        if nodes > 1 and "," not in addresses.broker:
            warn(
                f"RabbitMQ has {nodes} nodes: name them with --broker-address amqp://a,b,c, or clients know only one"
            )
        _write_accounts(accounts, addresses, options.out, output)
        version = tuple(int(part) for part in str(overview["rabbitmq_version"]).split("-")[0].split("."))
        hashes = {user: account.broker_hash for user, account in accounts.items()}
        definitions = rabbitmq_definitions(
            options.sites, hashes, addresses.vhost, replicated=nodes > 1, limits=options.limits
        )
        del definitions["parameters"]  # they would replace limits that an operator has set: see _limit
        definitions["policies"] = policies(options.limits, addresses.vhost, options.deadline_seconds, version)
        first, then = import_steps(definitions)
        management.post("definitions", first)
        time.sleep(SETTLE_SECONDS)
        management.post("definitions", then)
        _limit(management, options, addresses.vhost)
        for text in differences(definitions, management.get("definitions")):
            warn(f"RabbitMQ at {management.where}: {text}")
        redis.set_users({user: AclUser(redis_rules(user), accounts[user].store_hash) for user in accounts})
        for endpoint in redis.save_users():
            forgetful = f"Redis at {endpoint} forgets these users when it restarts"
            warn(f"{forgetful}: give it an aclfile, then run this again")
        for endpoint in redis.missing:
            absent = f"Redis at {endpoint}, a replica, does not answer and lacks these users"
            warn(f"{absent}: start it, then run this again")


def _limit(management: Management, options: SetupOptions, vhost: str) -> None:
    """Also of users that keep their passwords, which are in no definitions. A virtual host keeps its own limit."""
    for site in options.sites:
        for name, value in options.limits.of_user.items():
            management.put(f"user-limits/{site_user(site)}/{name}", {"value": value})
    where = quote(vhost, safe="")
    known = {name for each in management.get(f"vhost-limits/{where}") for name in each["value"]}
    if "max-queues" not in known:
        management.put(f"vhost-limits/{where}/max-queues", {"value": MOST_QUEUES})


def _write_accounts(
    accounts: Mapping[str, Account], addresses: Addresses, out: Path | None, output: Print
) -> None:
    if out is not None:
        make_directory(out)
    for user, account in accounts.items():
        variables = account.environment(addresses)
        if len(variables) < 2:
            kept = "other password" if variables else "passwords"
            output(f"# {user} keeps its {kept} (--rotate makes new ones)")
        if variables and out is not None:
            output(str(write_environment(out, user, variables)))
        elif variables:
            output(f"# {user}")
            for name, value in variables.items():
                output(f"{name}={value}")


def _addresses_in_containers(options: SetupOptions, tls: str | None, mutual: bool) -> Addresses:
    """The host names that compose and Kubernetes usually give them, unless the options name others."""
    broker, store = "amqp://rabbitmq:5672", "redis://redis:6379/0"
    if tls is not None:
        broker = f"amqps://rabbitmq:5671?cafile={tls}/ca.pem"
        store = f"rediss://redis:6379/0?ssl_ca_certs={tls}/ca.pem"
    if mutual:
        broker += f"&certfile={tls}/client.pem&keyfile={tls}/client.key"
        store += f"&ssl_certfile={tls}/client.pem&ssl_keyfile={tls}/client.key"
    broker, store = options.broker_address or broker, options.store_address or store
    return Addresses(broker, store, f"http://{urlsplit(broker).hostname}:15672")


def _discovered_addresses(
    options: SetupOptions, management: Management, overview: Mapping[str, Any], store_url: str
) -> Addresses:
    """The addresses that this command uses itself, unless the options name others."""
    ports = {listener["protocol"]: listener["port"] for listener in overview.get("listeners", ())}
    scheme, protocol = ("amqps", "amqp/ssl") if "amqp" not in ports else ("amqp", "amqp")
    broker = f"{scheme}://{management.host}:{ports.get(protocol, 5672)}"
    return Addresses(options.broker_address or broker, options.store_address or store_url)
