"""ACLs of several sites in one Redis: each site reaches only its own keys."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis as Client
from redis.crc import key_slot
from redis.exceptions import NoPermissionError

from broker_config.brokers.topology import RUNS_TOPIC, workers_topic
from broker_config.protocol.errors import BrokerRefused, LedgerMissing, MessageRejected
from broker_config.stores import connect_store
from broker_config.stores.redis.connection import RedisConnection, UnexpectedValue
from broker_config.stores.redis.keys import (
    board_key,
    clients_key,
    ledger_key,
    mark_key,
    notice_key,
    server_rules,
    site_rules,
)
from broker_config.stores.redis.store import RedisStore
from tests.services import Service

RUN = "run"
Login = Callable[[str], RedisStore]


def owner(client: int) -> str:
    """Three sites with ten clients each; other clients do not exist."""
    return {0: "north", 1: "north2", 2: "south"}[client // 10]


@pytest.fixture
def admin(own_redis: Service) -> Iterator[Any]:
    with Client.from_url(own_redis.url) as client:
        rules = {name: site_rules(name) for name in ("north", "north2", "south")} | {"server": server_rules()}
        for user, allowed in rules.items():
            client.execute_command("ACL", "SETUSER", user, "on", ">word", "resetkeys", "-@all", *allowed)
        yield client


@pytest.fixture
def login(own_redis: Service, admin: Any) -> Iterator[Login]:
    stores: list[RedisStore] = []

    def log_in(user: str) -> RedisStore:
        # A worker knows only its own site; the server knows the site of every client.
        site_of = owner if user == "server" else lambda _: user
        store = connect_store(own_redis.url.replace("//", f"//{user}:word@"), site_of=site_of)
        assert isinstance(store, RedisStore)
        stores.append(store)
        return store

    yield log_in
    for store in stores:
        store.close()


def test_the_acl_permits_all_that_a_site_and_the_server_do(login: Login, admin: Any) -> None:
    server, north, south = login("server"), login("north"), login("south")
    for client, site in ((7, north), (27, south)):
        for activation in (1, 2, 3):
            server.open_activation(RUN, client, activation)
            site.read(RUN, client, activation, at_least=activation - 1)
            assert site.commit(RUN, client, activation, b"%d" % activation)
    north.announce(workers_topic("north"), "worker", {"state": "idle"}, 60.0)
    server.announce(RUNS_TOPIC, RUN, {"round": 3}, 60.0)
    assert server.notices(workers_topic("north")) == {"worker": {"state": "idle"}}
    assert server.latest(RUN) == {7: (3, b"3"), 27: (3, b"3")}
    assert server.record(RUN, 7).kept == (2, 3)
    north.withdraw(workers_topic("north"), "worker")
    server.withdraw(RUNS_TOPIC, RUN)
    server.begin(RUN, "north")
    server.count(RUN, "north", 0)
    assert admin.acl_log() == []


def test_connecting_sends_no_command_that_redis_refuses(admin: Any, login: Login) -> None:
    """redis-py would send CLIENT SETINFO: from 7.2 on our ACL denies it and ACL LOG has an entry for every connection,
    before 7.2 it is an unknown command."""
    admin.execute_command("CONFIG", "RESETSTAT")
    for user in ("server", "north"):
        login(user).health()
    assert admin.acl_log() == []
    assert admin.info("errorstats") == {}


def test_a_site_can_neither_write_nor_delete_the_mark_of_a_run(own_redis: Service, login: Login) -> None:
    north, server = login("north"), login("server")
    with pytest.raises(BrokerRefused, match="'north' has too few rights"):
        north.begin(RUN, "north")
    server.begin(RUN, "north")
    with Client.from_url(own_redis.url.replace("//", "//north:word@")) as client:
        for command in ("DEL {}", "SET {} x PX 1", "HSET {} field value", "HSTRLEN {} count"):
            with pytest.raises(NoPermissionError):
                client.execute_command(*command.format(mark_key("north", RUN)).split())
    server.count(RUN, "north", 0)


def test_a_site_can_neither_read_nor_write_ledgers_of_another(own_redis: Service, login: Login) -> None:
    assert login("south").commit(RUN, 27, 1, b"ours")
    url = own_redis.url.replace("//", "//north:word@")
    for site in ("south", "north2"):
        intruder = RedisStore(url, dict.fromkeys(range(30), site).__getitem__)
        with pytest.raises(BrokerRefused, match="'north' has too few rights"):
            intruder.read(RUN, 27, 2)
        with pytest.raises(BrokerRefused, match="'north' has too few rights"):
            intruder.commit(RUN, 27, 2, b"forged")
        with pytest.raises(BrokerRefused, match="'north' has too few rights"):
            intruder.open_activation(RUN, 27, 9)
        intruder.close()
    assert login("server").latest(RUN) == {27: (1, b"ours")}


@pytest.mark.parametrize("topic", [RUNS_TOPIC, workers_topic("south"), workers_topic("north2")])
def test_a_site_can_write_only_its_own_notices(login: Login, topic: str) -> None:
    north = login("north")
    with pytest.raises(BrokerRefused, match="'north' has too few rights"):
        north.announce(topic, "worker", {}, 60.0)
    with pytest.raises(BrokerRefused, match="'north' has too few rights"):
        north.withdraw(topic, "worker")
    assert login("server").notices(topic) == {}


@pytest.mark.parametrize(
    "command",
    ["EVAL 0 0", "SCAN 0", "KEYS *", "FLUSHALL", "CONFIG GET *", "ACL LIST", "CLIENT LIST", "SHUTDOWN"],
)
@pytest.mark.usefixtures("admin")
def test_a_site_has_no_permission_for_commands_on_the_whole_server(own_redis: Service, command: str) -> None:
    with (
        Client.from_url(own_redis.url.replace("//", "//north:word@")) as client,
        pytest.raises(NoPermissionError),
    ):
        client.execute_command(*command.split())


def test_a_missing_permission_is_reported_at_connect(own_redis: Service, admin: Any) -> None:
    admin.execute_command("ACL", "SETUSER", "north", "-info")
    with pytest.raises(BrokerRefused, match=r"'north' has too few rights .*info.* extend its ACL"):
        connect_store(own_redis.url.replace("//", "//north:word@"))


def test_health_needs_info_and_is_empty_without_it(admin: Any, login: Login) -> None:
    server, north = login("server"), login("north")
    assert server.health()["keys"] == north.health()["keys"] == 0.0
    assert admin.acl_log() == []
    for user, store in (("server", server), ("north", north)):
        admin.execute_command("ACL", "SETUSER", user, "-info")
        assert store.health() == {}
    north.commit(RUN, 7, 1, b"and goes on")
    assert server.latest(RUN) == {7: (1, b"and goes on")}


def test_the_server_ignores_what_a_site_writes_about_clients_of_another(login: Login) -> None:
    north, server = login("north"), login("server")
    north.commit(RUN, 7, 1, b"its own")
    north.commit(RUN, 27, 5, b"of the south")
    north.commit(RUN, 99, 5, b"of no site")
    assert server.latest(RUN) == {7: (1, b"its own")}
    assert server.sites(RUN) == ["north"]


@pytest.mark.parametrize("fields", [{"opened": "x"}, {"kept": "1 2"}, {"kept": "1 x"}, None])
def test_a_malformed_ledger_is_reported_and_others_are_read(
    admin: Any, login: Login, fields: dict[str, str] | None
) -> None:
    server, north = login("server"), login("north")
    north.commit(RUN, 8, 1, b"sound")
    key = ledger_key("north", RUN, 7)
    if fields is None:
        admin.set(key, "text")
    else:
        admin.hset(key, mapping=fields)
    with pytest.raises(LedgerMissing, match=r"7.*start a new run"):
        north.read(RUN, 7, 4)
    server.open_activation(RUN, 8, 2)
    assert server.read(RUN, 8, 2) == b"sound"


def test_a_transaction_with_endless_conflicts_is_given_up(admin: Any, own_redis: Service) -> None:
    connection, key = RedisConnection(own_redis.url), ledger_key("north", RUN, 7)

    def change_between_read_and_write(redis: Any) -> None:
        with redis.pipeline() as transaction:
            transaction.watch(key)
            admin.hincrby(key, "opened", 1)
            transaction.multi()
            transaction.hset(key, "opened", 0)
            transaction.execute()

    with pytest.raises(UnexpectedValue):
        connection.call(change_between_read_and_write)
    connection.close()
    assert int(admin.hget(key, "opened")) > 100


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_a_malformed_notice_is_skipped(admin: Any, login: Login, body: bytes) -> None:
    topic = workers_topic("north")
    login("north").announce(topic, "worker", {"state": "idle"}, 60.0)
    admin.zadd(board_key(topic), {"odd": 2e15, b"\xff": 2e15})
    admin.set(f"{board_key(topic)}:odd", body)
    assert login("server").notices(topic) == {"worker": {"state": "idle"}}


def test_a_board_of_another_type_is_empty(admin: Any, login: Login) -> None:
    admin.sadd(board_key(workers_topic("north")), "nonsense")
    assert login("server").notices(workers_topic("north")) == {}


@pytest.mark.parametrize(
    ("facts", "seconds", "reason"),
    [
        ({"loss": float("nan")}, 60.0, "schema"),
        ({"tensor": b"bytes"}, 60.0, "schema"),
        ({"text": "x" * 70_000}, 60.0, "too_large"),
        ({}, 0.0, "schema"),
        ({}, float("inf"), "schema"),
    ],
)
def test_an_invalid_notice_is_not_written(
    login: Login, facts: dict[str, object], seconds: float, reason: str
) -> None:
    with pytest.raises(MessageRejected) as rejected:
        login("server").announce(RUNS_TOPIC, RUN, facts, seconds)
    assert rejected.value.reason == reason


def test_all_keys_of_a_transaction_are_in_one_cluster_slot() -> None:
    keys: tuple[str, ...] = (ledger_key("north", RUN, 7), clients_key("north", RUN), mark_key("north", RUN))
    assert len({key_slot(key.encode()) for key in keys}) == 1
    keys = (board_key(RUNS_TOPIC), notice_key(RUNS_TOPIC, RUN))
    assert len({key_slot(key.encode()) for key in keys}) == 1
