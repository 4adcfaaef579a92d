"""The promises of every store. Add a new store to STORES."""

import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from broker_config.brokers.topology import DEFAULT_SITE
from broker_config.embedded.server import BrokerServer
from broker_config.protocol.errors import LedgerFenced, LedgerMissing, MessageRejected
from broker_config.stores import connect_store
from broker_config.stores.interface import Store
from broker_config.stores.memory.store import MemoryStore
from broker_config.transports.memory.broker import EmbeddedBroker
from tests.memory_store import new_store
from tests.redis_cluster import Cluster
from tests.sentinels import Pair
from tests.services import Service

Connect = Callable[[], Store]


@contextmanager
def memory(_: pytest.FixtureRequest) -> Iterator[Connect]:
    with tempfile.TemporaryDirectory() as directory:
        store = MemoryStore(Path(directory))
        yield lambda: store


@contextmanager
def memory_socket(_: pytest.FixtureRequest) -> Iterator[Connect]:
    with (
        tempfile.TemporaryDirectory() as directory,
        BrokerServer(EmbeddedBroker(), new_store(), Path(directory) / "broker.sock") as server,
    ):
        yield lambda: connect_store(server.url)


@contextmanager
def redis(request: pytest.FixtureRequest) -> Iterator[Connect]:
    service: Service = request.getfixturevalue("redis")
    yield lambda: connect_store(service.url)


@contextmanager
def redis_behind_sentinels(request: pytest.FixtureRequest) -> Iterator[Connect]:
    pair: Pair = request.getfixturevalue("sentinel_pair")
    yield lambda: connect_store(pair.url())


@contextmanager
def redis_in_a_cluster(request: pytest.FixtureRequest) -> Iterator[Connect]:
    cluster: Cluster = request.getfixturevalue("shared_cluster")
    # Of as many sites as it takes to have ledgers at every primary
    yield lambda: connect_store(cluster.url(), site_of=lambda client: f"site-{client % 8}")


STORES: dict[str, Callable[[pytest.FixtureRequest], AbstractContextManager[Connect]]] = {
    "memory": memory,
    "memory-socket": memory_socket,
    "redis": redis,
    "redis-sentinel": redis_behind_sentinels,
    "redis-cluster": redis_in_a_cluster,
}


@pytest.fixture(params=STORES)
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    with STORES[request.param](request) as make:
        opened: list[Store] = []

        def open_and_remember() -> Store:
            opened.append(make())
            return opened[-1]

        yield open_and_remember
        for store in opened:
            store.close()


@pytest.fixture
def store(connect: Connect) -> Store:
    return connect()


@pytest.fixture
def run() -> str:
    return f"run-{uuid.uuid4().hex}"


@pytest.fixture
def topic() -> str:
    return f"workers.{uuid.uuid4().hex}"


def test_a_run_has_begun_only_after_begin_even_if_ledgers_are_committed(
    connect: Connect, store: Store, run: str
) -> None:
    store.commit(run, 7, 1, b"ledger")
    store.begin(f"{run}-other", DEFAULT_SITE)
    with pytest.raises(LedgerMissing, match=rf"lost all .* '{run}'.* start a new run"):
        store.count(run, DEFAULT_SITE, 0)
    for _ in range(2):
        connect().begin(run, DEFAULT_SITE)
        store.count(run, DEFAULT_SITE, 0)
    assert store.clients(run) == [7]
    assert store.latest(run) == {7: (1, b"ledger")}
    for names, field in ((("a/b", DEFAULT_SITE), "run"), ((run, "a/b"), "site")):
        with pytest.raises(MessageRejected, match=field):
            store.begin(*names)
        with pytest.raises(MessageRejected, match=field):
            store.count(*names, 0)


def test_the_count_of_a_run_only_grows(connect: Connect, store: Store, run: str) -> None:
    for site in (DEFAULT_SITE, "north"):
        store.begin(run, site)
    first = connect().count(run, DEFAULT_SITE, 0)
    assert store.count(run, DEFAULT_SITE, first) > first > 0
    assert store.count(run, "north", 0) == 1


def test_a_client_that_never_committed_has_no_ledger(store: Store, run: str) -> None:
    store.open_activation(run, 7, 1)
    assert store.read(run, 7, 1) is None
    assert store.read(run, 7, 5) is None


def test_the_generation_before_an_activation_is_read_through_any_connection(
    connect: Connect, store: Store, run: str
) -> None:
    assert connect().commit(run, 7, 1, b"first")
    assert store.read(run, 7, 2) == b"first"


def test_reading_before_an_activation_does_not_return_its_own_generation(store: Store, run: str) -> None:
    store.commit(run, 7, 1, b"first")
    store.commit(run, 7, 2, b"second")
    assert store.read(run, 7, 1) is None
    assert store.read(run, 7, 2) == b"first"
    assert store.read(run, 7, 3) == b"second"


def test_reading_skips_activations_that_were_never_committed(store: Store, run: str) -> None:
    store.commit(run, 7, 1, b"first")
    store.open_activation(run, 7, 2)
    store.open_activation(run, 7, 3)
    assert store.read(run, 7, 3) == b"first"


def test_a_generation_older_than_the_last_two_is_missing(store: Store, run: str) -> None:
    for activation in (1, 2, 3):
        store.commit(run, 7, activation, b"%d" % activation)
    assert store.read(run, 7, 3) == b"2"
    assert store.read(run, 7, 4) == b"3"
    with pytest.raises(LedgerMissing):
        store.read(run, 7, 2)
    assert store.read(run, 7, 1) is None


def test_a_generation_of_at_least_the_given_activation_is_read(store: Store, run: str) -> None:
    store.commit(run, 7, 1, b"first")
    store.commit(run, 7, 2, b"second")
    store.open_activation(run, 7, 4)
    assert store.read(run, 7, 2, at_least=1) == b"first"
    assert store.read(run, 7, 4, at_least=1) == b"second"
    assert store.read(run, 7, 4, at_least=2) == b"second"


def test_a_generation_older_than_at_least_is_reported_missing(store: Store, run: str) -> None:
    store.commit(run, 7, 1, b"first")
    with pytest.raises(LedgerMissing, match="client 7"):
        store.read(run, 7, 3, at_least=2)


def test_no_generation_is_reported_missing_if_at_least_is_given(store: Store, run: str) -> None:
    store.open_activation(run, 7, 3)
    with pytest.raises(LedgerMissing, match="client 7"):
        store.read(run, 7, 3, at_least=2)


def test_an_empty_ledger_is_a_ledger(store: Store, run: str) -> None:
    store.commit(run, 7, 1, b"")
    assert store.read(run, 7, 2) == b""


def test_a_large_ledger_is_read_complete(store: Store, run: str) -> None:
    ledger = bytes(range(256)) * 20_000
    store.commit(run, 7, 1, ledger)
    assert store.read(run, 7, 2) == ledger


def test_a_second_commit_of_a_generation_changes_nothing(store: Store, run: str) -> None:
    assert store.commit(run, 7, 1, b"first")
    assert not store.commit(run, 7, 1, b"another")
    assert store.read(run, 7, 2) == b"first"


def test_a_second_commit_changes_nothing_after_the_next_activation_was_opened(store: Store, run: str) -> None:
    store.commit(run, 7, 1, b"first")
    store.open_activation(run, 7, 2)
    assert not store.commit(run, 7, 1, b"another")
    assert store.read(run, 7, 2) == b"first"


def test_a_commit_is_fenced_after_a_later_activation_was_opened(store: Store, run: str) -> None:
    store.open_activation(run, 7, 1)
    store.open_activation(run, 7, 2)
    with pytest.raises(LedgerFenced):
        store.commit(run, 7, 1, b"late")
    assert store.read(run, 7, 2) is None
    assert store.commit(run, 7, 2, b"in time")


def test_a_commit_is_fenced_after_a_later_commit(store: Store, run: str) -> None:
    store.commit(run, 7, 2, b"second")
    with pytest.raises(LedgerFenced):
        store.commit(run, 7, 1, b"late")
    assert store.read(run, 7, 3) == b"second"


def test_opening_an_activation_is_idempotent(store: Store, run: str) -> None:
    for _ in range(2):
        store.open_activation(run, 7, 3)
    assert store.commit(run, 7, 3, b"third")
    store.open_activation(run, 7, 3)


def test_opening_an_earlier_activation_is_fenced(store: Store, run: str) -> None:
    store.open_activation(run, 7, 3)
    with pytest.raises(LedgerFenced):
        store.open_activation(run, 7, 2)


def test_exactly_one_of_many_concurrent_identical_commits_writes(connect: Connect, run: str) -> None:
    stores = [connect() for _ in range(8)]
    start = threading.Barrier(len(stores))
    written: list[bool] = []

    def commit(store: Store) -> None:
        start.wait()
        written.extend([store.commit(run, client, 1, b"same") for client in range(5)])

    threads = [threading.Thread(target=commit, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(written) == [False] * 35 + [True] * 5


def test_runs_and_clients_are_independent(store: Store, run: str) -> None:
    store.commit(run, 7, 1, b"ours")
    store.open_activation(run, 7, 9)
    assert store.commit(run, 70, 1, b"another client")
    assert store.commit(f"{run}-other", 7, 1, b"another run")
    assert store.read(run, 7, 9) == b"ours"
    assert store.read(run, 70, 2) == b"another client"
    assert store.read(f"{run}-other", 7, 2) == b"another run"


def test_clients_are_listed_in_order_from_their_first_open_activation(store: Store, run: str) -> None:
    assert store.clients(run) == []
    for client in (12, 7, 100):
        store.commit(run, client, 1, b"ledger")
    store.open_activation(run, 99, 1)
    store.commit(f"{run}-other", 8, 1, b"not ours")
    assert store.clients(run) == [7, 12, 99, 100]
    with pytest.raises(MessageRejected, match="run"):
        store.clients("a/b")


def test_latest_returns_the_newest_generation_of_each_client_of_the_run(store: Store, run: str) -> None:
    store.commit(run, 7, 1, b"old")
    store.commit(run, 7, 4, b"new")
    store.commit(run, 12, 2, b"")
    store.open_activation(run, 7, 5)
    store.open_activation(run, 99, 1)
    store.commit(f"{run}-other", 8, 1, b"not ours")
    assert store.latest(run) == {7: (4, b"new"), 12: (2, b"")}


def test_latest_of_given_clients_returns_only_theirs(store: Store, run: str) -> None:
    for client in (7, 8, 12):
        store.commit(run, client, 1, b"old")
    store.commit(run, 12, 2, b"new")
    store.open_activation(run, 99, 1)
    assert store.latest(run, [12, 7, 99, 100]) == {7: (1, b"old"), 12: (2, b"new")}
    assert store.latest(run, []) == {}
    with pytest.raises(MessageRejected, match="client"):
        store.latest(run, [7, -1])


def test_latest_of_more_clients_than_one_batch_is_complete(store: Store, run: str) -> None:
    for client in range(45):
        store.commit(run, client, 1, b"%d" % client)
    assert store.latest(run) == {client: (1, b"%d" % client) for client in range(45)}


def test_ledgers_returns_the_given_generations_that_are_kept(store: Store, run: str) -> None:
    for client in range(25):  # more than one batch
        for activation in (1, 2, 3):
            store.open_activation(run, client, activation)
            store.commit(run, client, activation, b"%d of %d" % (activation, client))
    asked = {client: 2 + client % 2 for client in range(25)}
    assert store.ledgers(run, asked) == {c: b"%d of %d" % (asked[c], c) for c in asked}
    assert store.ledgers(run, {0: 1, 1: 4, 2: 3, 99: 1}) == {2: b"3 of 2"}
    assert store.ledgers(run, {}) == {}
    with pytest.raises(MessageRejected):
        store.ledgers(run, {7: 1, -1: 1})


def test_latest_of_an_unknown_run_is_empty(store: Store, run: str) -> None:
    assert store.latest(run) == {}


@pytest.mark.parametrize("name", ["", "..", "a/b", "../../etc", "a b", "a\n", "ü", "x" * 81])
def test_an_invalid_run_name_is_rejected(store: Store, name: str) -> None:
    with pytest.raises(MessageRejected, match="run"):
        store.commit(name, 7, 1, b"ledger")


def test_a_negative_client_is_rejected(store: Store, run: str) -> None:
    with pytest.raises(MessageRejected, match="client"):
        store.commit(run, -1, 1, b"ledger")


def test_a_notice_is_visible_to_all_connections_until_it_is_withdrawn(
    connect: Connect, store: Store, topic: str
) -> None:
    connect().announce(topic, "worker-1", {"state": "idle"}, 60.0)
    connect().announce(topic, "worker-2", {"state": "busy"}, 60.0)
    assert store.notices(topic) == {"worker-1": {"state": "idle"}, "worker-2": {"state": "busy"}}
    connect().withdraw(topic, "worker-1")
    assert store.notices(topic) == {"worker-2": {"state": "busy"}}


def test_a_notice_replaces_one_with_the_same_name(store: Store, topic: str) -> None:
    store.announce(topic, "worker", {"state": "idle", "device": "cpu"}, 60.0)
    store.announce(topic, "worker", {"state": "busy"}, 60.0)
    assert store.notices(topic) == {"worker": {"state": "busy"}}


def test_a_notice_expires_unless_it_is_renewed(store: Store, topic: str) -> None:
    store.announce(topic, "stays", {}, 0.05)
    store.announce(topic, "fades", {}, 0.05)
    store.announce(topic, "stays", {"renewed": True}, 600.0)
    deadline = time.monotonic() + 60.0
    while "fades" in store.notices(topic) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert store.notices(topic) == {"stays": {"renewed": True}}


def test_topics_are_independent(store: Store, topic: str) -> None:
    store.announce(topic, "worker", {"of": "ours"}, 60.0)
    store.announce(f"{topic}2", "worker", {"of": "another"}, 60.0)
    store.withdraw(f"{topic}2", "worker")
    assert store.notices(topic) == {"worker": {"of": "ours"}}
    assert store.notices(f"{topic}2") == {}


def test_withdrawing_is_idempotent(store: Store, topic: str) -> None:
    store.withdraw(topic, "unknown")
    assert store.notices(topic) == {}


def test_facts_of_plain_values_are_read_unchanged(store: Store, topic: str) -> None:
    facts = {
        "text": "θ′",
        "whole": 2**53,
        "half": 0.5,
        "yes": True,
        "none": None,
        "nested": {"list": [1, []]},
    }
    store.announce(topic, "host-12-3f.2", facts, 60.0)
    assert store.notices(topic) == {"host-12-3f.2": facts}


def test_health_contains_only_numbers(store: Store) -> None:
    health = store.health()
    assert health.keys() in (set(), {"used_memory_bytes", "evicted_keys", "keys"})
    assert all(isinstance(value, float) and value >= 0 for value in health.values())
