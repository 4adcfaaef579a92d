"""The Redis store when Redis is killed, loses its data, is full or read-only, or its replies are lost."""

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

from broker_config.process.retry import RetriesExhausted, RetryPolicy
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
from fedil_model.methods.fedil.ledger import Ledger
from ops.local.services import Redis
from ops.local.services.process import free_ports, wait_until
from tests.integration.lossy_proxy import Proxy, proxy_to
from tests.services import Service, needed, redis_service

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
def opened(url: str, retry: RetryPolicy | None = None) -> Iterator[RedisStore]:
    store = RedisStore(url, retry=retry or RetryPolicy(seconds=60.0))
    try:
        yield store
    finally:
        store.close()


def test_each_of_many_identical_commits_from_threads_has_one_effect(redis: Service) -> None:
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


def test_commits_survive_sigkill_of_redis(own_redis: Service, store: RedisStore) -> None:
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


def test_a_commit_waits_for_an_unavailable_redis(
    own_redis: Service, store: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    store.open_activation(RUN, 7, 1)
    own_redis.kill()
    waiting = threading.Event()
    with logged("trying again", waiting), ThreadPoolExecutor(2) as pool:
        commits = [pool.submit(store.commit, RUN, client, 1, b"ledger") for client in (7, 8)]
        assert waiting.wait(60.0)
        own_redis.start()
        assert [commit.result(60.0) for commit in commits] == [True, True]
    assert store.latest(RUN) == {7: (1, b"ledger"), 8: (1, b"ledger")}
    said = [record.getMessage() for record in caplog.records]
    waits = [line for line in said if "trying again" in line]
    assert len(waits) == len(set(waits)) > 0
    assert sum("is back" in line for line in said) == 1


def test_calls_wait_for_a_redis_that_is_loading_its_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # 0.1 ms per key; Redis handles network events after every thousand keys.
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
    pytest.fail("Redis never reported that it was loading")


def test_exhausted_retries_name_the_endpoint_and_the_remedy(own_redis: Service) -> None:
    own_redis.kill()
    where = urlsplit(own_redis.url).netloc
    with (
        opened(own_redis.url, RetryPolicy(seconds=0.2)) as store,
        pytest.raises(BrokerUnavailable, match=f"{where} .*see that it runs"),
    ):
        store.commit(RUN, 7, 1, b"ledger")


def test_a_stopping_process_does_not_wait(own_redis: Service) -> None:
    own_redis.kill()
    with opened(own_redis.url, RetryPolicy(stop=lambda: True)) as store, pytest.raises(RetriesExhausted):
        store.commit(RUN, 7, 1, b"ledger")


def test_close_ends_a_waiting_call(own_redis: Service) -> None:
    own_redis.kill()
    waiting = threading.Event()
    with (
        opened(own_redis.url, RetryPolicy()) as store,
        logged("trying again", waiting),
        ThreadPoolExecutor(1) as pool,
    ):
        commit = pool.submit(store.commit, RUN, 7, 1, b"ledger")
        assert waiting.wait(60.0)
        store.close()
        with pytest.raises(BrokerUnavailable, match="closed"):
            commit.result(60.0)


def test_lost_data_is_detected_by_at_least(tmp_path: Path) -> None:
    options = ("--appendonly", "no")
    with needed(lambda: redis_service(tmp_path, options=options)) as service, opened(service.url) as store:
        store.commit(RUN, 7, 1, b"first")
        service.kill()
        service.start()
        store.open_activation(RUN, 7, 2)
        with pytest.raises(LedgerMissing, match=r"lost .* activation 1: it runs without persistence or was"):
            store.read(RUN, 7, 2, at_least=1)


def test_a_redis_without_an_append_only_file_is_logged(
    admin: Any, own_redis: Service, caplog: pytest.LogCaptureFixture
) -> None:
    connect_store(own_redis.url).close()
    assert not caplog.records
    admin.config_set("appendonly", "no")
    connect_store(own_redis.url).close()
    assert "appendonly yes" in caplog.text


def test_a_replica_is_refused_with_the_address_of_its_primary(admin: Any, own_redis: Service) -> None:
    admin.replicaof("127.0.0.1", 1)
    with pytest.raises(BrokerRefused, match=r"replica-read-only.*127\.0\.0\.1:1$"):
        connect_store(own_redis.url)


def test_calls_wait_for_a_primary_that_became_a_replica(admin: Any, store: RedisStore) -> None:
    store.commit(RUN, 7, 1, b"first")
    admin.replicaof("127.0.0.1", 1)
    waiting = threading.Event()
    with logged("trying again", waiting), ThreadPoolExecutor(1) as pool:
        commit = pool.submit(store.commit, RUN, 7, 2, b"second")
        assert waiting.wait(60.0)
        admin.replicaof("NO", "ONE")
        assert commit.result(60.0)
    assert store.read(RUN, 7, 3) == b"second"


def test_an_eviction_policy_that_may_evict_ledgers_is_refused(admin: Any, own_redis: Service) -> None:
    admin.config_set("maxmemory", "100mb")
    admin.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(BrokerRefused, match="maxmemory-policy noeviction"):
        connect_store(own_redis.url)
    # This policy evicts only keys that expire, and ledgers do not.
    admin.config_set("maxmemory-policy", "volatile-lru")
    connect_store(own_redis.url).close()


def test_calls_wait_for_a_full_redis_and_name_the_remedy(
    admin: Any, own_redis: Service, store: RedisStore
) -> None:
    store.commit(RUN, 7, 1, b"first")
    admin.config_set("maxmemory", 1)
    with opened(own_redis.url, RetryPolicy(seconds=0.0)) as hasty:
        with pytest.raises(RetriesExhausted, match="maxmemory"):
            hasty.commit(RUN, 7, 2, b"second")
        with pytest.raises(RetriesExhausted, match="maxmemory"):
            hasty.announce("runs", RUN, {}, 60.0)
    assert store.read(RUN, 7, 2) == b"first"
    waiting = threading.Event()
    with logged("raise maxmemory", waiting), ThreadPoolExecutor(1) as pool:
        commit = pool.submit(store.commit, RUN, 7, 2, b"second")
        assert waiting.wait(60.0)
        admin.config_set("maxmemory", 0)
        assert commit.result(60.0)


def test_calls_wait_for_a_redis_that_cannot_write_to_its_disk(admin: Any, store: RedisStore) -> None:
    store.commit(RUN, 7, 1, b"first")
    # A folder in the place of the snapshot file makes snapshots fail.
    (Path(admin.config_get("dir")["dir"]) / admin.config_get("dbfilename")["dbfilename"]).mkdir()
    admin.config_set("save", "3600 1")
    admin.bgsave()
    assert wait_until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err", 60.0)
    waiting = threading.Event()
    with logged("cannot write to its disk", waiting), ThreadPoolExecutor(1) as pool:
        commit = pool.submit(store.commit, RUN, 7, 2, b"second")
        assert waiting.wait(60.0)
        admin.config_set("stop-writes-on-bgsave-error", "no")
        assert commit.result(60.0)
    assert store.read(RUN, 7, 3) == b"second"


@pytest.mark.parametrize("credentials", ["site-north:wrong-secret", "unknown:wrong-secret", ":wrong-secret"])
def test_wrong_credentials_are_refused_with_the_name_of_the_user(
    admin: Any, own_redis: Service, credentials: str
) -> None:
    admin.acl_setuser("default", passwords=["+right"])
    with pytest.raises(BrokerRefused) as refused:
        connect_store(own_redis.url.replace("//", f"//{credentials}@"))
    assert repr(credentials.partition(":")[0] or "default") in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_missing_password_is_reported(admin: Any, own_redis: Service) -> None:
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
def test_no_error_contains_the_password(url: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(FedILError) as raised:
        connect_store(url, retry=RetryPolicy(seconds=0.1))
    assert said in str(raised.value)
    assert "cret" not in str(raised.value) + caplog.text


@pytest.mark.parametrize("command", [b"WATCH", b"HMGET", b"SADD", b"EXEC"])
def test_a_lost_reply_has_no_second_effect(redis: Service, command: bytes) -> None:
    sound_run, lossy_run = f"sound-{command.decode()}", f"lossy-{command.decode()}"
    with opened(redis.url) as store, opened_through_a_proxy(redis) as (lossy, proxy):
        store.open_activation(sound_run, 7, 1)
        proxy.drop_reply_to(command)
        lossy.open_activation(lossy_run, 7, 1)
        for activation in (1, 2, 3):
            store.commit(sound_run, 7, activation, b"%d" % activation)
            proxy.drop_reply_to(command)
            lossy.commit(lossy_run, 7, activation, b"%d" % activation)
        assert proxy.drops == 4
    with Client.from_url(redis.url) as client:
        sound, lossy_record = (
            client.hgetall(ledger_key("default", run, 7)) for run in (sound_run, lossy_run)
        )
    assert sound[b"kept"] == b"2 3"
    assert lossy_record == sound


def test_a_lost_reply_to_a_notice_has_no_second_effect(redis: Service) -> None:
    with opened_through_a_proxy(redis) as (store, proxy):
        proxy.drop_reply_to(b"ZADD")
        store.announce("lossy", "worker", {"state": "idle"}, 60.0)
        assert store.notices("lossy") == {"worker": {"state": "idle"}}
        proxy.drop_reply_to(b"ZREM")
        store.withdraw("lossy", "worker")
        assert store.notices("lossy") == {}
        assert proxy.drops == 2


def test_a_ledger_takes_less_than_three_and_a_half_bytes_per_sample(admin: Any, store: RedisStore) -> None:
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


def test_health_counts_memory_keys_and_evictions(admin: Any, own_redis: Service, store: RedisStore) -> None:
    before = store.health()
    assert before["used_memory_bytes"] > 0
    assert (before["keys"], before["evicted_keys"]) == (0.0, 0.0)
    store.commit(RUN, 7, 1, bytes(1_000_000))
    with Client.from_url(own_redis.url, db=3) as another:
        another.set("elsewhere", "counts too, in the same memory")
    after = store.health()
    assert after["used_memory_bytes"] > before["used_memory_bytes"] + 1_000_000
    assert after["keys"] == 3.0  # the ledger, the client list and the key in the other database
    admin.set("fades", bytes(5_000_000), ex=3600)
    admin.config_set("maxmemory-policy", "volatile-lru")
    admin.config_set("maxmemory", int(after["used_memory_bytes"]))
    with suppress(RedisError):
        admin.set("pushes it out", "value")
    assert store.health()["evicted_keys"] == 1.0


def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    ours, strangers = (make_certificate(tmp_path / f"{name}.pem") for name in ("ours", "strangers"))
    port = free_ports(["tls"])["tls"]

    def url(certificate: Path, authority: Path) -> str:
        options = f"ssl_ca_certs={authority}&ssl_certfile={certificate}&ssl_keyfile={certificate}"
        return f"rediss://127.0.0.1:{port}/0?{options}"

    tls = f"--tls-port {port} --tls-cert-file {ours} --tls-key-file {ours} --tls-ca-cert-file {ours}".split()
    with needed(lambda: Redis(tmp_path / "redis", options=tls)):
        store = connect_store(url(ours, ours))
        assert store.commit(RUN, 7, 1, b"ledger")
        store.close()
        for wrong in (url(ours, strangers), url(ours, tmp_path / "nowhere.pem")):
            with pytest.raises(BrokerRefused, match="check ssl_ca_certs"):
                connect_store(wrong)
        # The reason may or may not arrive before the connection is closed.
        with pytest.raises((BrokerRefused, BrokerUnavailable), match="ssl_certfile"):
            connect_store(url(strangers, ours), retry=RetryPolicy(seconds=0.1))


def make_certificate(path: Path) -> Path:
    """A self-signed certificate with its key in the same file."""
    subject = "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 {subject}".split()
    done = subprocess.run([*command, "-keyout", path], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + done.stdout)
    return path


@contextmanager
def logged(text: str, event: threading.Event) -> Iterator[None]:
    """Sets `event` when a log line with `text` is written."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                event.set()

    handler = Handler()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


@contextmanager
def opened_through_a_proxy(redis: Service) -> Iterator[tuple[RedisStore, Proxy]]:
    there = urlsplit(redis.url)
    assert there.hostname
    assert there.port
    with proxy_to(there.hostname, there.port) as proxy, opened(f"redis://127.0.0.1:{proxy.port}/0") as store:
        yield store, proxy
