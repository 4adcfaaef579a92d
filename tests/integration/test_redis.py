"""Redis as the store, treated badly: killed, restarted empty, full, read-only, cut off in the middle of a reply."""

import logging
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from redis import Redis as Client
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from broker_config.protocol.errors import (
    BrokerRefused,
    BrokerUnavailable,
    FedILError,
    LedgerFenced,
    LedgerMissing,
)
from broker_config.protocol.messages import LEDGER_KIND
from broker_config.protocol.wire import encode_arrays
from broker_config.stores import connect_store
from broker_config.stores.redis.keys import ledger_key
from broker_config.stores.redis.store import RedisStore
from broker_config.transports.reconnecting import GivenUp, Patience
from fedil_model.methods.fedil.ledger import Ledger
from ops.local.services import Service, private_redis, redis_service
from ops.local.services.process import free_ports
from tests.integration.cut_connection import Wire, wire_to
from tests.services import needed

RUN = "run"


@pytest.fixture
def admin(own_redis: Service) -> Iterator[Any]:
    with Client.from_url(own_redis.url) as client:
        yield client


@pytest.fixture
def store(own_redis: Service) -> Iterator[RedisStore]:
    with opened(own_redis.url) as store:
        yield store


@contextmanager
def opened(url: str, patience: Patience | None = None) -> Iterator[RedisStore]:
    store = RedisStore(url, patience=patience or Patience(seconds=60.0))
    try:
        yield store
    finally:
        store.close()


def test_of_identical_commits_from_many_threads_each_has_one_effect(redis: Service) -> None:
    threads, clients = 16, 50
    start = threading.Barrier(threads)
    with opened(redis.url) as store, ThreadPoolExecutor(threads) as pool:

        def commit_all(_: int) -> list[bool]:
            start.wait()
            return [
                store.commit("threads", client, activation, b"%d %d" % (client, activation))
                for activation in (1, 2, 3)
                for client in range(clients)
            ]

        written = [wrote for answers in pool.map(commit_all, range(threads)) for wrote in answers]
        assert sum(written) == 3 * clients
        assert store.latest("threads") == {client: (3, b"%d 3" % client) for client in range(clients)}


def test_what_was_committed_survives_kill_9(own_redis: Service, store: RedisStore) -> None:
    for client in range(20):
        store.commit(RUN, client, 1, b"first %d" % client)
        store.commit(RUN, client, 2, b"second %d" % client)
    store.open_activation(RUN, 7, 9)
    before = store.latest(RUN)
    own_redis.kill()
    own_redis.start()
    assert store.latest(RUN) == before
    assert store.read(RUN, 3, 2, at_least=1) == b"first 3"
    with pytest.raises(LedgerFenced):
        store.commit(RUN, 7, 8, b"late")


def test_a_commit_waits_for_a_redis_that_is_away(
    own_redis: Service, store: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store.open_activation(RUN, 7, 1)
    own_redis.kill()
    waits = threading.Event()
    with heard("trying again", waits), ThreadPoolExecutor(2) as pool:
        commits = [pool.submit(store.commit, RUN, client, 1, b"ledger") for client in (7, 8)]
        assert waits.wait(60.0)
        own_redis.start()
        assert [commit.result(60.0) for commit in commits] == [True, True]
    assert store.latest(RUN) == {7: (1, b"ledger"), 8: (1, b"ledger")}
    said = [record.getMessage() for record in caplog.records]
    assert sum("trying again" in line for line in said) == 1
    assert sum("is back" in line for line in said) == 1


def test_a_redis_that_is_still_loading_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A tenth of a millisecond a key, and a look at the network after every thousand.
    slow = ("--key-load-delay", "100")
    with (
        needed(lambda: redis_service(tmp_path, options=slow)) as service,
        opened(service.url) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        store.commit(RUN, 7, 1, b"ledger")
        write_many_keys(service.url)
        service.kill()
        started = pool.submit(service.start)
        wait_until_it_loads(service.url)
        store.check()
        assert store.latest(RUN) == {7: (1, b"ledger")}
        started.result(60.0)
    assert "loading" in caplog.text


def write_many_keys(url: str) -> None:
    with Client.from_url(url) as client, client.pipeline(transaction=False) as pipeline:
        for number in range(20_000):
            pipeline.set(f"other:{number}", "value")
        pipeline.execute()


def wait_until_it_loads(url: str) -> None:
    deadline = time.monotonic() + 60.0
    with Client.from_url(url, retry=Retry(NoBackoff(), 0)) as client:
        while time.monotonic() < deadline:
            with suppress(RedisError):
                if client.info("persistence")["loading"]:
                    return
            time.sleep(0.01)
    pytest.fail("it never said that it was loading")


def test_patience_ends_and_the_error_says_where(own_redis: Service) -> None:
    own_redis.kill()
    where = urlsplit(own_redis.url).netloc
    with (
        opened(own_redis.url, Patience(seconds=0.2)) as store,
        pytest.raises(BrokerUnavailable, match=f"{where} .*see that it runs"),
    ):
        store.commit(RUN, 7, 1, b"ledger")


def test_who_is_asked_to_stop_does_not_wait(own_redis: Service) -> None:
    own_redis.kill()
    with opened(own_redis.url, Patience(stop=lambda: True)) as store, pytest.raises(GivenUp):
        store.commit(RUN, 7, 1, b"ledger")


def test_closing_ends_the_waiting(own_redis: Service) -> None:
    own_redis.kill()
    waits = threading.Event()
    with (
        opened(own_redis.url, Patience()) as store,
        heard("trying again", waits),
        ThreadPoolExecutor(1) as pool,
    ):
        commit = pool.submit(store.commit, RUN, 7, 1, b"ledger")
        assert waits.wait(60.0)
        store.close()
        with pytest.raises(BrokerUnavailable, match="closed"):
            commit.result(60.0)


def test_a_redis_that_forgot_is_found_out_by_who_knows_what_was_there(tmp_path: Path) -> None:
    options = ("--appendonly", "no")
    with needed(lambda: redis_service(tmp_path, options=options)) as service, opened(service.url) as store:
        store.commit(RUN, 7, 1, b"first")
        service.kill()
        service.start()
        store.open_activation(RUN, 7, 2)
        with pytest.raises(LedgerMissing, match=r"lost .* activation 1: it runs without persistence or was"):
            store.read(RUN, 7, 2, at_least=1)


def test_a_store_without_an_append_only_file_is_warned_about(
    admin: Any, own_redis: Service, caplog: pytest.LogCaptureFixture
) -> None:
    connect_store(own_redis.url).close()
    assert not caplog.records
    admin.config_set("appendonly", "no")
    connect_store(own_redis.url).close()
    assert "appendonly yes" in caplog.text


def test_a_replica_is_refused_in_favour_of_its_primary(admin: Any, own_redis: Service) -> None:
    admin.replicaof("127.0.0.1", 1)
    with pytest.raises(BrokerRefused, match=r"replica-read-only.*127\.0\.0\.1:1$"):
        connect_store(own_redis.url)


def test_a_primary_that_becomes_a_replica_is_waited_for(admin: Any, store: RedisStore) -> None:
    store.commit(RUN, 7, 1, b"first")
    admin.replicaof("127.0.0.1", 1)
    waits = threading.Event()
    with heard("trying again", waits), ThreadPoolExecutor(1) as pool:
        commit = pool.submit(store.commit, RUN, 7, 2, b"second")
        assert waits.wait(60.0)
        admin.replicaof("NO", "ONE")
        assert commit.result(60.0)
    assert store.read(RUN, 7, 3) == b"second"


def test_an_eviction_policy_that_may_drop_ledgers_is_refused(admin: Any, own_redis: Service) -> None:
    admin.config_set("maxmemory", "100mb")
    admin.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(BrokerRefused, match="maxmemory-policy noeviction"):
        connect_store(own_redis.url)
    # Ledgers do not expire, so this one does not touch them.
    admin.config_set("maxmemory-policy", "volatile-lru")
    connect_store(own_redis.url).close()


def test_a_full_redis_is_waited_for_and_says_what_it_needs(
    admin: Any, own_redis: Service, store: RedisStore
) -> None:
    store.commit(RUN, 7, 1, b"first")
    admin.config_set("maxmemory", 1)
    with opened(own_redis.url, Patience(seconds=0.0)) as hasty:
        with pytest.raises(GivenUp, match="maxmemory"):
            hasty.commit(RUN, 7, 2, b"second")
        with pytest.raises(GivenUp, match="maxmemory"):
            hasty.announce("runs", RUN, {}, 60.0)
    assert store.read(RUN, 7, 2) == b"first"
    waits = threading.Event()
    with heard("raise maxmemory", waits), ThreadPoolExecutor(1) as pool:
        commit = pool.submit(store.commit, RUN, 7, 2, b"second")
        assert waits.wait(60.0)
        admin.config_set("maxmemory", 0)
        assert commit.result(60.0)


def test_a_redis_that_cannot_write_to_its_disk_is_waited_for(admin: Any, store: RedisStore) -> None:
    store.commit(RUN, 7, 1, b"first")
    # A folder where the snapshot's file should be.
    (Path(admin.config_get("dir")["dir"]) / admin.config_get("dbfilename")["dbfilename"]).mkdir()
    admin.config_set("save", "3600 1")
    admin.bgsave()
    wait_until_a_snapshot_failed(admin)
    waits = threading.Event()
    with heard("cannot write to its disk", waits), ThreadPoolExecutor(1) as pool:
        commit = pool.submit(store.commit, RUN, 7, 2, b"second")
        assert waits.wait(60.0)
        admin.config_set("stop-writes-on-bgsave-error", "no")
        assert commit.result(60.0)
    assert store.read(RUN, 7, 3) == b"second"


def wait_until_a_snapshot_failed(admin: Any) -> None:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        if admin.info("persistence")["rdb_last_bgsave_status"] == "err":
            return
        time.sleep(0.01)
    pytest.fail("the snapshot did not fail")


@pytest.mark.parametrize("who", ["site-north:wrong-secret", "nobody:wrong-secret", ":wrong-secret"])
def test_wrong_credentials_are_refused_at_once_and_the_user_is_named(
    admin: Any, own_redis: Service, who: str
) -> None:
    admin.acl_setuser("default", passwords=["+right"])
    with pytest.raises(BrokerRefused) as refused:
        connect_store(own_redis.url.replace("//", f"//{who}@"))
    assert repr(who.partition(":")[0] or "default") in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_password_that_is_missing_is_asked_for(admin: Any, own_redis: Service) -> None:
    admin.acl_setuser("default", passwords=["+right"])
    with pytest.raises(BrokerRefused, match="wants a password"):
        connect_store(own_redis.url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://user:se/cret@host:6379/0", "%2F"),
        ("redis://user:secret@host:6379/0?ssl_ca_certs=ca.pem", "ssl_ca_certs"),
        ("redis://user:secret@host:6379/0?socket_timeout=long", "socket_timeout"),
        ("reddis://user:secret@host:6379/0", "one of memory"),
        ("redis://user:secret@127.0.0.1:1/0", "127.0.0.1:1 is away"),
    ],
)
def test_no_error_tells_a_password(url: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(FedILError) as raised:
        connect_store(url, patience=Patience(seconds=0.1))
    assert said in str(raised.value)
    assert "cret" not in str(raised.value) + caplog.text


@pytest.mark.parametrize("command", [b"WATCH", b"HMGET", b"SADD", b"EXEC"])
def test_a_lost_reply_doubles_nothing(redis: Service, command: bytes) -> None:
    whole_run, cut_run = f"whole-{command.decode()}", f"cut-{command.decode()}"
    with opened(redis.url) as store, opened_through_a_wire(redis) as (lossy, wire):
        store.open_activation(whole_run, 7, 1)
        wire.cut_after(command)
        lossy.open_activation(cut_run, 7, 1)
        for activation in (1, 2, 3):
            store.commit(whole_run, 7, activation, b"%d" % activation)
            wire.cut_after(command)
            lossy.commit(cut_run, 7, activation, b"%d" % activation)
        assert wire.cuts == 4
    with Client.from_url(redis.url) as client:
        whole, cut = (client.hgetall(ledger_key("default", run, 7)) for run in (whole_run, cut_run))
    assert whole[b"kept"] == b"2 3"
    assert cut == whole


def test_a_lost_reply_to_a_notice_changes_nothing(redis: Service) -> None:
    with opened_through_a_wire(redis) as (store, wire):
        wire.cut_after(b"ZADD")
        store.announce("lossy", "worker", {"state": "idle"}, 60.0)
        assert store.notices("lossy") == {"worker": {"state": "idle"}}
        wire.cut_after(b"ZREM")
        store.withdraw("lossy", "worker")
        assert store.notices("lossy") == {}
        assert wire.cuts == 2


def test_a_ledger_takes_little_more_than_its_two_bytes_a_sample(admin: Any, store: RedisStore) -> None:
    samples, generations, clients = 5000, 2, 100
    ledger = Ledger(
        np.full(samples, 3, np.uint8), np.full(samples, 9, np.int16), np.ones(samples, np.bool_)
    ).to_arrays()
    body = b"".join(encode_arrays(LEDGER_KIND, {}, ledger))
    store.commit(RUN, 0, 1, body)
    before = admin.info("memory")["used_memory"]
    for client in range(1, clients + 1):
        for activation in range(1, generations + 2):
            store.commit(RUN, client, activation, body)
    used = admin.info("memory")["used_memory"] - before
    assert used / (samples * generations * clients) < 3.5
    assert admin.memory_usage(ledger_key("default", RUN, 1), samples=0) / (samples * generations) < 3.5


def test_health_counts_memory_keys_and_what_was_evicted(
    admin: Any, own_redis: Service, store: RedisStore
) -> None:
    before = store.health()
    assert before["used_memory_bytes"] > 0
    assert (before["keys"], before["evicted_keys"]) == (0.0, 0.0)
    store.commit(RUN, 7, 1, bytes(1_000_000))
    with Client.from_url(own_redis.url, db=3) as another:
        another.set("elsewhere", "counts too: it is the same memory")
    after = store.health()
    assert after["used_memory_bytes"] > before["used_memory_bytes"] + 1_000_000
    assert after["keys"] == 3.0  # the ledger, the list of clients, and the other
    admin.set("fades", bytes(5_000_000), ex=3600)
    admin.config_set("maxmemory-policy", "volatile-lru")
    admin.config_set("maxmemory", int(after["used_memory_bytes"]))
    with suppress(RedisError):
        admin.set("pushes it out", "value")
    assert store.health()["evicted_keys"] == 1.0


def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    ours, strangers = (make_certificate(tmp_path / f"{name}.pem") for name in ("ours", "strangers"))
    port = free_ports(["tls"])["tls"]

    def url(certificate: Path, authority: Path) -> str:
        options = f"ssl_ca_certs={authority}&ssl_certfile={certificate}&ssl_keyfile={certificate}"
        return f"rediss://127.0.0.1:{port}/0?{options}"

    tls = f"--tls-port {port} --tls-cert-file {ours} --tls-key-file {ours} --tls-ca-cert-file {ours}".split()
    with needed(lambda: private_redis(tmp_path / "redis", options=tls)):
        store = connect_store(url(ours, ours))
        assert store.commit(RUN, 7, 1, b"ledger")
        store.close()
        for wrong in (url(ours, strangers), url(ours, tmp_path / "nowhere.pem")):
            with pytest.raises(BrokerRefused, match="check ssl_ca_certs"):
                connect_store(wrong)
        # Whether the reason comes before the end of the connection is a matter of luck.
        with pytest.raises((BrokerRefused, BrokerUnavailable), match="ssl_certfile"):
            connect_store(url(strangers, ours), patience=Patience(seconds=0.1))


def make_certificate(path: Path) -> Path:
    """Signed by itself, its key in the same file."""
    subject = "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 {subject}".split()
    done = subprocess.run([*command, "-keyout", path], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + done.stdout)
    return path


@contextmanager
def heard(text: str, event: threading.Event) -> Iterator[None]:
    """Sets `event` when a log line with `text` is written."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                event.set()

    listener = Listener()
    logging.getLogger().addHandler(listener)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(listener)


@contextmanager
def opened_through_a_wire(redis: Service) -> Iterator[tuple[RedisStore, Wire]]:
    there = urlsplit(redis.url)
    assert there.hostname
    assert there.port
    with wire_to(there.hostname, there.port) as wire, opened(f"redis://127.0.0.1:{wire.port}/0") as store:
        yield store, wire
