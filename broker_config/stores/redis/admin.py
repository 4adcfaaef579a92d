"""What an administrator does with Redis: bring in users, and see whether it is fit to keep ledgers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from broker_config.protocol.errors import BrokerRefused, FedILError
from broker_config.stores.redis.connection import OLDEST, Client, RedisLink, is_too_old
from broker_config.transports.reconnecting import Patience

_PATIENCE = Patience(seconds=5.0)


@dataclass(frozen=True)
class AclUser:
    rules: Sequence[str]
    password_hash: str | None
    """None: the one that it has stays"""


@contextmanager
def administering(url: str) -> Iterator["RedisAdmin"]:
    link = RedisLink(url, _PATIENCE)
    try:
        yield RedisAdmin(link)
    finally:
        link.close()


class RedisAdmin:
    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self.where = link.where

    def users(self) -> frozenset[str]:
        names = self._link.ask(lambda redis: redis.execute_command("ACL", "USERS"))
        return frozenset(name.decode() for name in names)

    def set_users(self, users: Mapping[str, AclUser]) -> None:
        """Each in one step, so that nobody has too many rights in between."""

        def set_all(redis: Client) -> None:
            for name, user in users.items():
                # "reset" would take the password too.
                password = ["reset", f"#{user.password_hash}"] if user.password_hash else []
                redis.execute_command("ACL", "SETUSER", name, *password, "on", *user.rules)

        self._link.ask(set_all)

    def save_users(self) -> bool:
        """False: this Redis has no file for them, and forgets them when it restarts."""

        def save(redis: Client) -> bool:
            try:
                redis.execute_command("ACL", "SAVE")
            except ResponseError as error:
                if "not configured to use an ACL file" not in str(error):
                    raise
                return False
            return True

        return self._link.ask(save)


@dataclass(frozen=True)
class Examination:
    where: str
    product: str
    """Name and version"""
    wrong: tuple[str, ...]
    """One line each, that says what to do"""
    unknown: tuple[str, ...]
    """What this user cannot see"""


def examine(url: str, own_key: str, foreign_key: str | None) -> Examination:
    """As the user in `url` sees it, which must reach `own_key` and not `foreign_key`. Raises FedILError if it cannot
    even be asked."""
    link = RedisLink(url, _PATIENCE)
    try:
        info: dict[str, Any] = link.ask(lambda redis: redis.info())
        forgets, may_forget = _forgotten_users(link, info)
        wrong = [*_unfit(info), *forgets, *_wrong_rights(link, own_key, foreign_key)]
        return Examination(link.where, _product(info), tuple(wrong), tuple(may_forget))
    finally:
        link.close()


def lets_anybody_in(url: str) -> bool:
    """`url` without credentials."""
    link = RedisLink(url, Patience(seconds=0.0))
    try:
        return bool(link.ask(lambda redis: redis.ping()))
    except FedILError:
        return False
    finally:
        link.close()


def _product(info: Mapping[str, Any]) -> str:
    """Valkey reports in `redis_version` the version of Redis that it is compatible with."""
    valkey = info.get("valkey_version")
    return f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"


def _unfit(info: Mapping[str, Any]) -> Iterator[str]:
    if is_too_old(info):
        yield f"version {info['redis_version']} is too old: use {OLDEST} or later"
    if info.get("cluster_enabled"):
        yield "it is one node of a cluster: FedIL needs a single primary (cluster-enabled no)"
    if info.get("role") == "slave":
        yield f"it is a replica: use its primary, {info.get('master_host')}:{info.get('master_port')}"
    if not info.get("aof_enabled"):
        yield "without an append-only file it loses ledgers when it dies: set appendonly yes"
    elif info.get("aof_last_write_status") != "ok":
        yield "it cannot write its append-only file: free space on its disk"
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy.startswith("allkeys"):
        yield f"maxmemory-policy {policy} may evict ledgers: set maxmemory-policy noeviction"
    elif 0 < info.get("maxmemory", 0) <= info["used_memory"]:
        yield "it is full and refuses to write: raise maxmemory, or delete keys of old runs"


def _forgotten_users(link: RedisLink, info: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What is wrong, and what may be, with how it keeps its users through a restart."""

    def look(redis: Client) -> str | None:
        try:
            if set(redis.acl_users()) <= {"default", b"default"}:
                return "not needed"
            return str(redis.config_get("aclfile").get("aclfile", ""))
        except ResponseError:  # only an administrator may ask
            return None

    aclfile, remedy = link.ask(look), "give it an aclfile, then run fedil broker init again"
    if aclfile is None:
        return [], ["it must have an aclfile, else it forgets its users when it restarts"]
    if aclfile:
        return [], []
    if info.get("config_file"):
        return [], [f"when it restarts it forgets all users that its redis.conf does not name: {remedy}"]
    return [f"it forgets its users when it restarts: {remedy}"], []


def _wrong_rights(link: RedisLink, own_key: str, foreign_key: str | None) -> Iterator[str]:
    try:
        link.ask(lambda redis: redis.hmget(own_key, "opened"))
    except BrokerRefused as error:
        yield str(error)
    if foreign_key is not None and _may_read(link, foreign_key):
        yield "this user may read the ledgers of other sites: run fedil broker init for its site"


def _may_read(link: RedisLink, key: str) -> bool:
    def look(redis: Client) -> bool:
        try:
            redis.hmget(key, "opened")
        except NoPermissionError:
            return False
        return True

    return link.ask(look)
