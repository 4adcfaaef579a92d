"""Redis behind Sentinels: a primary that is gone for ever costs seconds and no bit, and a replica that was behind when
it took over is noticed."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from redis import Redis as Client

from broker_config.brokers.definitions import redis_password_hash, redis_rules
from broker_config.brokers.topology import DEFAULT_SITE
from broker_config.process.retry import RetriesExhausted, RetryPolicy
from broker_config.protocol.errors import AddressWrong, BrokerRefused, FedILError, LedgerMissing
from broker_config.stores import connect_store
from broker_config.stores.redis.admin import AclUser, open_admin
from ops.cli.main import main
from ops.local.services import Redis
from ops.local.services.process import LOOPBACK, free_ports, wait_until
from server_worker.run.recipe import Recipe
from tests.federation import SOON, Federation, Hands, OverBrokers, apart, at_work, blobs_recipe
from tests.integration.test_redis import make_certificate
from tests.replicas import client_of
from tests.sentinels import SERVICE, Pair, Sentinel, redis_pair
from tests.services import Service, needed

CLIENTS = 2
RUN = "run"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield needed(lambda: stack.enter_context(redis_pair(tmp_path / "pair")))


@pytest.fixture
def recipe() -> Recipe:
    return apart(blobs_recipe(split={"clients": CLIENTS}, federation={"clients_per_round": CLIENTS}))


@pytest.fixture
def federation(recipe: Recipe, rabbitmq: Service, pair: Pair, tmp_path: Path) -> Iterator[OverBrokers]:
    with OverBrokers(recipe, tmp_path, broker_url=rabbitmq.url, store_url=pair.url()) as federation:
        yield federation


def undisturbed(recipe: Recipe, directory: Path) -> object:
    federation = Federation(recipe, directory)
    federation.play()
    return federation.fingerprint()


def play_a_round(hands: Hands) -> None:
    for task in hands.take(CLIENTS):
        hands.answer(task)


def test_a_primary_that_is_killed_for_ever_costs_seconds_and_no_bit(
    recipe: Recipe, rabbitmq: Service, pair: Pair, tmp_path: Path
) -> None:
    recipe = recipe.model_copy(update={"rounds": 6})
    with OverBrokers(recipe, tmp_path / "run", broker_url=rabbitmq.url, store_url=pair.url()) as federation:
        killed, seconds = threading.Event(), list[float]()

        def note(number: int, _: int) -> None:
            """From the server's thread, in the middle of a round"""
            if killed.is_set():
                seconds.append(time.monotonic() - began)
            elif number == 3:
                pair.primary.kill()
                killed.set()

        federation.diary.on_update, began = note, time.monotonic()
        server = federation.serve()
        with at_work(federation.participant()):
            assert killed.wait(SOON)
            began = time.monotonic()
            assert server.result(SOON).rounds_done == recipe.rounds
        print(f"progress {seconds[0]:.1f} s after the primary was killed")
        assert len(seconds) > CLIENTS
        assert federation.fingerprint() == undisturbed(recipe, tmp_path / "undisturbed")


def test_a_write_is_done_when_a_replica_has_it(pair: Pair) -> None:
    hasty = RetryPolicy(seconds=0.0)
    with (
        closing(connect_store(pair.url(), retry=hasty)) as store,
        closing(connect_store(pair.url(options="?replicas=0"), retry=hasty)) as careless,
        closing(connect_store(pair.primary.url, retry=hasty)) as direct,
    ):
        store.begin(RUN, DEFAULT_SITE)
        assert store.commit(RUN, 7, 1, b"first")
        with pair.frozen_replica():
            for waiting in (store, direct):
                with pytest.raises(RetriesExhausted, match="0 of 1 replicas of Redis have confirmed a write"):
                    waiting.commit(RUN, 7, 2, b"second")
            with pytest.raises(RetriesExhausted, match="0 of 1 replicas"):
                store.open_activation(RUN, 8, 1)
            with pytest.raises(RetriesExhausted, match="0 of 1 replicas"):
                store.count(RUN, DEFAULT_SITE, 0)
            assert careless.commit(RUN, 7, 3, b"third")
        assert not store.commit(RUN, 7, 2, b"second")
        pair.cut_replica_off()
        assert store.commit(RUN, 7, 4, b"no replica is left to wait for")
        with Client.from_url(pair.primary.url) as admin:
            admin.config_set("min-replicas-to-write", 1)
        with pytest.raises(RetriesExhausted, match="fewer replicas than its min-replicas-to-write: start"):
            store.commit(RUN, 7, 5, b"a primary that may be cut off")


def test_a_replica_that_takes_over_has_all_that_was_confirmed(pair: Pair) -> None:
    clients = range(50)
    with closing(connect_store(pair.url(), retry=RetryPolicy(seconds=SOON))) as store:
        store.begin(RUN, DEFAULT_SITE)
        for client in clients:
            store.commit(RUN, client, 1, b"%d" % client)
        count, before = store.count(RUN, DEFAULT_SITE, 0), store.server_id
        pair.primary.kill()
        assert store.count(RUN, DEFAULT_SITE, count) == count + 1
        assert store.server_id != before
        assert store.latest(RUN) == {client: (1, b"%d" % client) for client in clients}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("/ledgers/", "/others/"),
            "the Sentinels that answer know no service 'others': check the name after the hosts",
        ),
        (
            ("/0", "/0?sentinel_password=s3cret"),
            "a Sentinel does not let FedIL in .*: check sentinel_username",
        ),
        (("redis+", "rediss+"), "is away"),
        (("/ledgers/", "//"), "the store's URL names no service of the Sentinels: write redis"),
        ((f"//{LOOPBACK}:", "//:s3cret/"), "the store's URL has no list of hosts of Sentinels: write redis"),
        (("/0", "/zero"), "the store's URL has a database that is no number: write redis"),
        (("/0", "/0?replicas=some"), "the store's URL has a wrong option: write replicas=1"),
        (("+sentinel", "+proxy"), "the scheme must be one of memory, redis, rediss, redis\\+sentinel"),
    ],
)
def test_an_address_that_is_wrong_is_named_without_its_password(
    sentinel_pair: Pair, change: tuple[str, str], said: str
) -> None:
    url = sentinel_pair.url()
    assert change[0] in url
    with pytest.raises(FedILError, match=said) as raised:
        connect_store(url.replace(*change), retry=RetryPolicy(seconds=0.0))
    assert "s3cret" not in str(raised.value)
    waits = "is away" in said or "that answer" in said
    assert isinstance(raised.value, RetriesExhausted if waits else AddressWrong | BrokerRefused)


def test_tls_is_used_for_redis_and_for_the_sentinels(tmp_path: Path) -> None:
    certificate, ports = make_certificate(tmp_path / "ours.pem"), free_ports(["redis", "sentinel"])
    files = {f"tls-{kind}": str(certificate) for kind in ("cert-file", "key-file", "ca-cert-file")}
    ours = files | {"tls-auth-clients": "optional", "tls-replication": "yes"}

    def options(port: str) -> dict[str, str]:
        return ours | {"tls-port": str(ports[port])}

    words = [word for name, value in options("redis").items() for word in (f"--{name}", value)]
    lines = [f"{name} {value}" for name, value in options("sentinel").items()]
    with (
        needed(lambda: Redis(tmp_path / "redis", options=words)) as redis,
        Sentinel(tmp_path / "sentinel", redis, ports["redis"], lines),
    ):
        url = f"rediss+sentinel://{LOOPBACK}:{ports['sentinel']}/{SERVICE}/0"
        patient, hasty = RetryPolicy(seconds=SOON), RetryPolicy(seconds=0.0)
        with closing(connect_store(f"{url}?ssl_ca_certs={certificate}", retry=patient)) as store:
            assert store.commit(RUN, 7, 1, b"ledger")
        with pytest.raises(BrokerRefused, match=f"no TLS with Redis at {SERVICE}.*: check ssl_ca_certs"):
            connect_store(url, retry=hasty)


def test_a_run_that_loses_a_part_of_a_round_in_a_failover_says_so_and_goes_on_when_started_again(
    federation: OverBrokers, pair: Pair, tmp_path: Path
) -> None:
    hands, server = Hands(federation), federation.serve()
    play_a_round(hands)
    first, second = hands.take(CLIENTS)
    pair.cut_replica_off()
    counted = threading.Event()
    federation.diary.on_update = lambda *_: counted.set()
    hands.answer(first)
    assert counted.wait(SOON)
    pair.fail_over()
    hands.answer(second)
    with pytest.raises(FedILError, match=r"has lost what clients committed since.*: start the server again"):
        server.result(SOON)
    with federation.resumed() as again:
        rest = again.serve()
        (repeated,) = hands.take(1)
        assert (repeated.client, repeated.activation) == (first.client, first.activation)
        hands.answer(repeated)
        play_a_round(hands)
        rest.result(SOON)
        assert [record.refused for record in again.diary.records] == [{"ledger_missing": 1}, {}]
        assert again.fingerprint() == undisturbed(federation.recipe, tmp_path / "undisturbed")


def test_a_run_that_loses_what_its_checkpoint_needs_in_a_failover_stops_and_names_it(
    federation: OverBrokers, pair: Pair
) -> None:
    hands, server = Hands(federation), federation.serve()
    first, second = hands.take(CLIENTS)
    pair.cut_replica_off()
    hands.answer(first)
    hands.answer(second)
    tasks = hands.take(CLIENTS)
    pair.fail_over()
    for task in tasks:
        hands.give_back(task)
    gone_back = rf"Redis at {SERVICE} .* has gone back to an earlier state of run"
    with at_work(federation.participant()), pytest.raises(LedgerMissing, match=gone_back):
        server.result(SOON)
    with federation.resumed() as again, pytest.raises(LedgerMissing, match=gone_back):
        again.serve().result(SOON)


def test_a_ledger_that_was_lost_before_its_update_arrived_is_asked_for_again(
    federation: OverBrokers, pair: Pair, tmp_path: Path
) -> None:
    hands, server = Hands(federation), federation.serve()
    first, second = hands.take(CLIENTS)
    pair.cut_replica_off()
    update = hands.train(first)
    pair.fail_over()
    hands.send(update)
    hands.settle(first)
    hands.answer(second)
    (repeated,) = hands.take(1)
    assert (repeated.client, repeated.activation) == (first.client, first.activation)
    hands.answer(repeated)
    for _ in range(federation.recipe.rounds - 1):
        play_a_round(hands)
    server.result(SOON)
    assert federation.diary.records[0].refused == {"ledger_missing": 1}
    assert federation.fingerprint() == undisturbed(federation.recipe, tmp_path / "undisturbed")


def test_users_are_set_at_the_primary_and_at_its_replicas_and_check_looks_at_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    acls = {name: tmp_path / f"{name}.acl" for name in ("primary", "replica")}
    for acl in acls.values():
        acl.write_text("user default off\nuser admin on >secret ~* &* +@all\n")
    options = {name: ("--aclfile", str(acl)) for name, acl in acls.items()}
    with ExitStack() as stack:
        opened = redis_pair(tmp_path, options["primary"], options["replica"], login="admin:secret")
        pair = needed(lambda: stack.enter_context(opened))
        admin, store = pair.url("admin:secret@"), pair.url("site-north:word@")

        def set_users(password_hash: str | None) -> tuple[str, ...]:
            with open_admin(admin) as redis:
                redis.set_users({"site-north": AclUser(redis_rules("site-north"), password_hash)})
                assert redis.save_users() == []
                return tuple(redis.missing)

        assert set_users(redis_password_hash("word")) == ()
        # As a replica that was started on an empty disk
        with client_of(pair.replica, pair.login) as client:
            client.execute_command("ACL", "DELUSER", "site-north")
        assert main(["broker", "check", "--store", store]) == 1
        assert f"wrong: Redis at {LOOPBACK}:{pair.replica.port} does not let in" in capsys.readouterr().out
        assert set_users(None) == ()
        assert main(["broker", "check", "--store", store]) == 0
        said = capsys.readouterr().out
        assert said.count("(primary behind Sentinels) keeps what it confirms") == 1
        assert said.count("(replica behind Sentinels) keeps what it confirms") == 1
        pair.fail_over()
        with closing(connect_store(store, site_of=lambda _: "north")) as north:
            assert north.commit(RUN, 7, 1, b"ledger")
        with Client.from_url(pair.sentinel.url) as sentinel:
            assert wait_until(lambda: sentinel.sentinel_slaves(SERVICE)[0]["is_sdown"], SOON)
        gone = f"{LOOPBACK}:{pair.primary.port}"
        assert set_users(None) == (gone,)
        assert main(["broker", "check", "--store", store]) == 1
        assert f"{gone}, a replica, does not answer: start it" in capsys.readouterr().out
