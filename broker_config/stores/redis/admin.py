"""Administration of Redis: users, and a check of its settings and of a user's permissions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from broker_config.process.retry import RetryPolicy
from broker_config.protocol.errors import BrokerRefused, FedILError
from broker_config.stores.redis.connection import Client, RedisConnection
from broker_config.stores.redis.server_check import problems

_RETRY = RetryPolicy(seconds=5.0)


@dataclass(frozen=True)
class AclUser:
    rules: Sequence[str]
    password_hash: str | None
    """None keeps the present password."""


@contextmanager
def open_admin(url: str) -> Iterator["RedisAdmin"]:
    with closing(RedisConnection(url, _RETRY)) as connection:
        yield RedisAdmin(connection)


class RedisAdmin:
    def __init__(self, connection: RedisConnection) -> None:
        self._connection = connection
        self.endpoint = connection.endpoint

    def users(self) -> frozenset[str]:
        names = self._connection.call(lambda redis: redis.execute_command("ACL", "USERS"))
        return frozenset(name.decode() for name in names)

    def set_users(self, users: Mapping[str, AclUser]) -> None:
        """One command per user, so that no user has too many permissions in between."""

        def set_all(redis: Client) -> None:
            for name, user in users.items():
                # "reset" would also delete the password.
                password = ["reset", f"#{user.password_hash}"] if user.password_hash else []
                redis.execute_command("ACL", "SETUSER", name, *password, "on", *user.rules)

        self._connection.call(set_all)

    def save_users(self) -> bool:
        """False if this Redis has no aclfile: it forgets its users when it restarts."""

        def save(redis: Client) -> bool:
            try:
                redis.execute_command("ACL", "SAVE")
            except ResponseError as error:
                if "not configured to use an ACL file" not in str(error):
                    raise
                return False
            return True

        return self._connection.call(save)


@dataclass(frozen=True)
class RedisReport:
    endpoint: str
    product: str
    """Name and version"""
    wrong: tuple[str, ...]
    """One sentence each, with the remedy"""
    unknown: tuple[str, ...]
    """What this user has no permission to see"""


def inspect_redis(url: str, own_key: str, foreign_key: str | None) -> RedisReport:
    """Checks the server as the user in `url`, who must be able to read `own_key` and not `foreign_key`. Raises
    FedILError if Redis does not answer."""
    with closing(RedisConnection(url, _RETRY)) as connection:
        info: dict[str, Any] = connection.call(lambda redis: redis.info())
        wrong = [f"it {problem.text}" for problem in problems(info)]
        forgets, may_forget = _forgotten_users(connection, info)
        wrong += [*forgets, *_wrong_permissions(connection, own_key, foreign_key)]
        return RedisReport(connection.endpoint, _product(info), tuple(wrong), tuple(may_forget))


def accepts_anonymous(url: str) -> bool:
    """`url` has no credentials."""
    with closing(RedisConnection(url, RetryPolicy(seconds=0.0))) as connection:
        try:
            return bool(connection.call(lambda redis: redis.ping()))
        except FedILError:
            return False


def _product(info: Mapping[str, Any]) -> str:
    """Valkey reports in `redis_version` the version of Redis that it is compatible with."""
    valkey = info.get("valkey_version")
    return f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"


def _forgotten_users(connection: RedisConnection, info: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Problems, and possible problems, with users after a restart."""

    def read_aclfile(redis: Client) -> str | None:
        try:
            if set(redis.acl_users()) <= {"default", b"default"}:
                return "not needed"
            return str(redis.config_get("aclfile").get("aclfile", ""))
        except ResponseError:  # only an administrator may read it
            return None

    aclfile, remedy = connection.call(read_aclfile), "give it an aclfile, then run fedil broker init again"
    if aclfile is None:
        return [], ["it must have an aclfile, else it forgets its users when it restarts"]
    if aclfile:
        return [], []
    if info.get("config_file"):
        return [], [f"when it restarts it forgets all users that its redis.conf does not name: {remedy}"]
    return [f"it forgets its users when it restarts: {remedy}"], []


def _wrong_permissions(connection: RedisConnection, own_key: str, foreign_key: str | None) -> Iterator[str]:
    if (refusal := _refusal_to_read(connection, own_key)) is not None:
        yield refusal
    if foreign_key is not None and _refusal_to_read(connection, foreign_key) is None:
        yield "this user may read the ledgers of other sites: run fedil broker init for its site"


def _refusal_to_read(connection: RedisConnection, key: str) -> str | None:
    try:
        connection.call(lambda redis: redis.hmget(key, "opened"))
    except BrokerRefused as error:
        return str(error)
    return None
