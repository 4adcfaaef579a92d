"""A site writes malformed or huge values under its own keys, with software of its own: the server skips them or reports
the client, and reads only a bounded number of bytes."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis as Client
from redis.exceptions import OutOfMemoryError

from broker_config.brokers.definitions import redis_rules
from broker_config.brokers.topology import site_user, workers_topic
from broker_config.protocol.errors import LedgerMissing, MessageRejected
from broker_config.stores import connect_store
from broker_config.stores.interface import Store
from broker_config.stores.redis import board as redis_board
from broker_config.stores.redis import store as redis_store
from broker_config.stores.redis.keys import board_key, clients_key, ledger_key, mark_key, notice_key
from broker_config.stores.redis.room import open_room
from broker_config.stores.redis.runs import open_runs
from broker_config.stores.redis.store import RedisStore
from server_worker.run.digests import ledger_digest
from tests.memory_store import new_store
from tests.services import Service

RUN = "run"
TOPIC = workers_topic("north")
MEGABYTE = 1_000_000
FAR_FUTURE_MS = 1e18


def owner(client: int) -> str:
    """The first hundred clients belong to site north, the next hundred to south."""
    return ("north", "south")[client // 100]


@pytest.fixture
def url_of(own_redis: Service) -> Callable[[str], str]:
    with Client.from_url(own_redis.url) as admin:
        for user in ("server", site_user("north"), site_user("south")):
            admin.execute_command("ACL", "SETUSER", user, "on", ">word", *redis_rules(user))
    return lambda user: own_redis.url.replace("//", f"//{user}:word@")


@pytest.fixture
def hostile(url_of: Callable[[str], str]) -> Iterator[Any]:
    with Client.from_url(url_of(site_user("north"))) as client:
        yield client


@pytest.fixture
def server(url_of: Callable[[str], str]) -> Iterator[RedisStore]:
    store = connect_store(url_of("server"), site_of=owner)
    assert isinstance(store, RedisStore)
    yield store
    store.close()


@pytest.fixture
def north(url_of: Callable[[str], str]) -> Iterator[Store]:
    store = connect_store(url_of(site_user("north")), site_of=lambda _: "north")
    yield store
    store.close()


@contextmanager
def taking_less_than(max_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < max_bytes
    finally:
        tracemalloc.stop()


def digest_of(ledgers: dict[int, tuple[int, bytes]]) -> str:
    store = new_store()
    for client, (activation, ledger) in ledgers.items():
        store.commit(RUN, client, activation, ledger)
    return ledger_digest(store, RUN)


# Names


@pytest.mark.parametrize(
    "name",
    [b"fedil:{north/\xff/run}:clients", b"fedil:{north/x/run}:clients", b"fedil:{north/\xff}/run}:clients"],
)
def test_a_client_list_with_a_similar_name_is_skipped(
    hostile: Any, north: Store, server: RedisStore, url_of: Callable[[str], str], name: bytes
) -> None:
    hostile.sadd(name, 0)
    assert server.clients(RUN) == []
    north.commit(RUN, 7, 1, b"ledger")
    assert server.sites(RUN) == ["north"]
    assert ledger_digest(server, RUN) == digest_of({7: (1, b"ledger")})
    with open_runs(url_of("server")) as runs:
        assert runs.ledgers()[RUN] == 1


@pytest.mark.parametrize("member", [b"\xff", b"", b"-1", b"1_0", b" 8", b"%d" % 2**63, b"9" * 5000, b"150"])
def test_members_that_are_no_clients_of_the_site_are_skipped(
    hostile: Any, north: Store, server: RedisStore, member: bytes
) -> None:
    north.commit(RUN, 7, 1, b"ledger")
    hostile.sadd(clients_key("north", RUN), member)
    assert server.clients(RUN) == [7]
    assert ledger_digest(server, RUN) == digest_of({7: (1, b"ledger")})


def test_a_listed_client_without_a_ledger_is_skipped(hostile: Any, server: RedisStore) -> None:
    hostile.sadd(clients_key("north", RUN), 8)
    assert server.latest(RUN) == {}
    assert ledger_digest(server, RUN) == digest_of({})


# Types of values


def test_a_client_list_of_another_type_is_reported(hostile: Any, server: RedisStore) -> None:
    hostile.set(clients_key("north", RUN), "text")
    with pytest.raises(LedgerMissing, match="north/run"):
        server.clients(RUN)
    with pytest.raises(LedgerMissing, match="north/run"):
        server.open_activation(RUN, 7, 1)
    server.open_activation(RUN, 107, 1)


MALFORMED: dict[str, Callable[[Any, str], object]] = {
    "a string": lambda client, key: client.set(key, "text"),
    "not a number": lambda client, key: client.hset(key, mapping={"opened": b"\xff", "kept": "1", "1": "x"}),
    "a negative number": lambda client, key: client.hset(
        key, mapping={"opened": "-1", "kept": "1", "1": "x"}
    ),
    "a number above the limit": lambda client, key: client.hset(
        key, mapping={"kept": 2**63, str(2**63): "x"}
    ),
    "twenty megabytes": lambda client, key: client.hset(key, "opened", bytes(20 * MEGABYTE)),
    "too many generations": lambda client, key: client.hset(key, "kept", "1 " * 10 * MEGABYTE),
}


@pytest.mark.parametrize("write", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_record_affects_only_its_client(
    hostile: Any, north: Store, server: RedisStore, write: Callable[[Any, str], object]
) -> None:
    north.commit(RUN, 6, 1, b"sound")
    write(hostile, ledger_key("north", RUN, 7))
    calls: list[Callable[[], object]] = [
        lambda: server.open_activation(RUN, 7, 1),
        lambda: server.read(RUN, 7, 2),
        lambda: server.record(RUN, 7),
        lambda: server.latest(RUN, [6, 7]),
    ]
    for call in calls:
        with (
            taking_less_than(MEGABYTE),
            pytest.raises(LedgerMissing, match=r"north/run}:ledger:7.*start a new run"),
        ):
            call()
    assert server.read(RUN, 6, 2) == b"sound"


# Sizes of ledgers


def test_a_ledger_above_the_size_limit_is_not_read(
    hostile: Any, north: Store, server: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "MAX_LEDGER_BYTES", MEGABYTE)
    assert north.commit(RUN, 7, 1, bytes(MEGABYTE))
    assert server.read(RUN, 7, 2) == bytes(MEGABYTE)
    with pytest.raises(MessageRejected, match="too_large"):
        north.commit(RUN, 7, 2, bytes(MEGABYTE + 1))
    hostile.hset(ledger_key("north", RUN, 7), "1", bytes(20 * MEGABYTE))
    with taking_less_than(MEGABYTE), pytest.raises(LedgerMissing, match="north/run}:ledger:7"):
        server.read(RUN, 7, 2)
    with taking_less_than(MEGABYTE), pytest.raises(LedgerMissing, match="north/run}:ledger:7"):
        server.latest(RUN)


def test_only_the_newest_generation_is_read(hostile: Any, north: Store, server: RedisStore) -> None:
    for activation in (1, 2):
        north.commit(RUN, 7, activation, b"ledger %d" % activation)
    hostile.hset(
        ledger_key("north", RUN, 7), mapping={"1": bytes(20 * MEGABYTE), "more": bytes(20 * MEGABYTE)}
    )
    with taking_less_than(MEGABYTE):
        assert server.latest(RUN) == {7: (2, b"ledger 2")}


def test_a_client_list_above_the_size_limit_is_not_read(
    hostile: Any, server: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "MAX_CLIENTS_BYTES", 10 * MEGABYTE)
    hostile.sadd(clients_key("north", RUN), *(bytes([number]) * MEGABYTE for number in range(20)))
    with taking_less_than(MEGABYTE), pytest.raises(LedgerMissing, match="north/run"):
        server.clients(RUN)


def test_the_digest_holds_few_ledgers_in_memory(north: Store, server: RedisStore) -> None:
    ledgers = {client: (2, bytes([client]) * MEGABYTE) for client in range(100)}
    for client, (activation, ledger) in ledgers.items():
        north.commit(RUN, client, 1, ledger)
        north.commit(RUN, client, activation, ledger)
    expected = digest_of(ledgers)
    with taking_less_than(50 * MEGABYTE):
        assert ledger_digest(server, RUN) == expected


# Sizes of notices


def write_notice(client: Any, name: str | bytes, body: bytes) -> None:
    client.zadd(board_key(TOPIC), {name: FAR_FUTURE_MS})
    if isinstance(name, str):
        client.set(notice_key(TOPIC, name), body)


def test_a_notice_above_the_size_limit_is_not_read(hostile: Any, north: Store, server: RedisStore) -> None:
    north.announce(TOPIC, "worker", {"state": "idle"}, 60.0)
    for number in range(5):
        write_notice(hostile, f"long-{number}", b'{"x": "%s"}' % (b"x" * 20 * MEGABYTE))
    write_notice(hostile, "just-too-long", b'{"x": "%s"}' % (b"x" * redis_board.MAX_FACTS_BYTES))
    with taking_less_than(MEGABYTE):
        assert server.notices(TOPIC) == {"worker": {"state": "idle"}}


def test_a_notice_of_the_maximum_size_is_read(north: Store, server: RedisStore) -> None:
    facts = {"x": "x" * (redis_board.MAX_FACTS_BYTES - len('{"x": ""}'))}
    north.announce(TOPIC, "worker", facts, 60.0)
    assert server.notices(TOPIC) == {"worker": facts}


def test_only_the_maximum_number_of_notices_is_read(hostile: Any, server: RedisStore) -> None:
    with hostile.pipeline(transaction=False) as pipeline:
        for number in range(3 * redis_board.MAX_NOTICES):
            write_notice(pipeline, f"worker-{number}", b"{}")
        pipeline.execute()
    assert len(server.notices(TOPIC)) == redis_board.MAX_NOTICES


def test_only_as_many_notices_as_fit_the_total_size_are_read(hostile: Any, server: RedisStore) -> None:
    for number in range(200):
        write_notice(hostile, f"worker-{number}", b'{"x": "%s"}' % (b"x" * 60_000))
    with taking_less_than(20 * MEGABYTE):
        assert 10 < len(server.notices(TOPIC)) < 100


def test_names_above_the_size_limit_are_not_read(hostile: Any, server: RedisStore) -> None:
    for number in range(20):
        write_notice(hostile, bytes([number]) * MEGABYTE, b"")
    with taking_less_than(MEGABYTE):
        assert server.notices(TOPIC) == {}


def test_notices_of_another_type_are_skipped(hostile: Any, north: Store, server: RedisStore) -> None:
    north.announce(TOPIC, "worker", {"state": "idle"}, 60.0)
    for name in ("list", "x" * (redis_board.MAX_NAME_LENGTH + 1), b"\xff\xfe"):
        hostile.zadd(board_key(TOPIC), {name: FAR_FUTURE_MS})
    hostile.sadd(notice_key(TOPIC, "list"), "text")
    assert server.notices(TOPIC) == {"worker": {"state": "idle"}}
    hostile.delete(board_key(TOPIC))
    hostile.set(board_key(TOPIC), "text")
    assert server.notices(TOPIC) == {}


# Memory


def test_what_belongs_to_no_run_is_deleted_when_little_memory_is_left_and_the_site_is_named(
    own_redis: Service, url_of: Callable[[str], str], hostile: Any, north: Store, server: RedisStore
) -> None:
    for run in (RUN, "another"):
        server.begin(run, "north")
    for client in (7, 8):
        assert north.commit(RUN, client, 1, bytes(MEGABYTE))
    north.announce(TOPIC, "worker", {"state": "idle"}, 60.0)
    kept = {clients_key("north", RUN), *(ledger_key("north", RUN, client) for client in (7, 8))}
    kept |= {ledger_key("north", "another", 99), "fedil:board:{workers.north}"}
    kept.add("fedil:board:{workers.north}:worker")
    hostile.hset(ledger_key("north", "another", 99), "1", "x")  # that run's own server knows its clients
    own = ledger_key("north", RUN, 7)
    garbage = [ledger_key("north", "mine", 1), ledger_key("north", RUN, 107), "fedil:{north/x", f"{own}x"]
    garbage += [
        own.replace(":7", ":007"),
        "fedil:{north/\N{SNOWMAN}}:clients",
        f"{own}\n",
        "fedil:{north/}:clients",
    ]
    for name in garbage:
        hostile.hset(name, "1", bytes(MEGABYTE))
    hostile.set("fedil:board:{workers.north}:long", bytes(2 * MEGABYTE))
    with Client.from_url(own_redis.url) as admin, open_room(url_of("server"), RUN, _site_or_none) as room:
        admin.config_set("maxmemory", 1000 * MEGABYTE)
        assert room.make() == {}
        assert admin.exists(*garbage) == len(garbage)
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] - MEGABYTE)
        with pytest.raises(OutOfMemoryError):
            hostile.hset(ledger_key("north", "mine", 2), "1", "x")
        taken = room.make()
        found = {name.decode() for name in admin.keys("fedil:*")}
        assert found == kept | {mark_key("north", RUN), mark_key("north", "another")}
    assert list(taken) == ["north"]
    assert taken["north"].deleted_bytes > 8 * MEGABYTE
    assert taken["north"].num_bytes > 10 * MEGABYTE
    assert server.latest(RUN).keys() == {7, 8}
    assert north.commit(RUN, 8, 2, b"ledger")


def _site_or_none(client: int) -> str | None:
    return owner(client) if client < 200 else None


def test_notices_beyond_what_workers_need_are_deleted(
    own_redis: Service, url_of: Callable[[str], str], hostile: Any
) -> None:
    with hostile.pipeline(transaction=False) as pipeline:
        for number in range(100):
            write_notice(pipeline, f"worker-{number}", bytes(MEGABYTE // 2))
        pipeline.execute()
    with Client.from_url(own_redis.url) as admin, open_room(url_of("server"), RUN, _site_or_none) as room:
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] - MEGABYTE)
        room.make()
        assert admin.info("memory")["used_memory"] < 30 * MEGABYTE
