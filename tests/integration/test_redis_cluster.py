"""A Redis Cluster as the store: a primary that is gone for ever costs seconds and no bit. A replica that was behind is
noticed when it takes over, though the other shards have lost nothing."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from broker_config.process.retry import RetriesExhausted, RetryPolicy
from broker_config.protocol.errors import AddressWrong, BrokerRefused, FedILError, LedgerMissing
from broker_config.stores import connect_store
from broker_config.stores.redis.keys import clients_key, ledger_key, mark_key
from broker_config.stores.redis.room import open_room
from broker_config.stores.redis.runs import open_runs
from client_worker.participant import Participant
from ops.local.services import Redis
from ops.local.services.process import LOOPBACK, free_ports
from server_worker.run.recipe import Recipe
from tests.federation import SOON, Federation, Hands, OverBrokers, at_work, blobs_recipe
from tests.integration.test_redis import make_certificate
from tests.redis_cluster import Cluster, ClusterNode, redis_cluster
from tests.replicas import client_of
from tests.services import Service, needed

FAILS_OVER_MS = 1500
HASTY, PATIENT = RetryPolicy(seconds=0.0), RetryPolicy(seconds=SOON)


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield needed(
            lambda: stack.enter_context(redis_cluster(tmp_path / "cluster", node_timeout_ms=FAILS_OVER_MS))
        )


@pytest.fixture
def run() -> str:
    return f"run-{uuid.uuid4().hex}"


def sites_apart(cluster: Cluster, run: str) -> tuple[str, ...]:
    """A site for each shard, in their order: its ledgers of this run are there."""
    found: dict[Redis, str] = {}
    while len(found) < len(cluster.shards):
        site = f"site-{uuid.uuid4().hex[:10]}"
        found.setdefault(cluster.shard_of(mark_key(site, run)).primary, site)
    return tuple(found[shard.primary] for shard in cluster.shards)


def recipe_over(cluster: Cluster, **changes: Any) -> Recipe:
    """Two clients, of two sites at two shards"""
    run = f"blobs-{uuid.uuid4().hex[:10]}"
    federation = {"clients_per_round": 2, "sites": dict.fromkeys(sites_apart(cluster, run)[:2], 1)}
    return blobs_recipe(name=run, split={"clients": 2}, federation=federation, **changes)


@pytest.fixture
def federation(rabbitmq: Service, own_cluster: Cluster, tmp_path: Path) -> Iterator[OverBrokers]:
    recipe, place = recipe_over(own_cluster), tmp_path / "run"
    with OverBrokers(recipe, place, broker_url=rabbitmq.url, store_url=own_cluster.url()) as federation:
        yield federation


def undisturbed(recipe: Recipe, directory: Path) -> object:
    federation = Federation(recipe, directory)
    federation.play()
    return federation.fingerprint()


def worker_of(federation: OverBrokers, site: str) -> Participant:
    transport = federation.connect()
    return Participant(transport, federation.trainer(transport), site)


def test_a_primary_that_is_killed_for_ever_costs_no_bit(
    federation: OverBrokers, own_cluster: Cluster, tmp_path: Path
) -> None:
    sites, killed = list(federation.recipe.sites), threading.Event()

    def note(number: int, _: int) -> None:
        """From the server's thread, in the middle of a round"""
        if number == 2 and not killed.is_set():
            own_cluster.shard_of(mark_key(sites[1], federation.recipe.name)).primary.kill()
            killed.set()

    federation.diary.on_update = note
    server = federation.serve()
    with at_work(worker_of(federation, sites[0])), at_work(worker_of(federation, sites[1])):
        outcome = server.result(SOON)
    assert killed.is_set()
    assert outcome.rounds_done == federation.recipe.rounds
    assert federation.fingerprint() == undisturbed(federation.recipe, tmp_path / "undisturbed")


def test_a_run_of_which_one_shard_loses_a_part_of_a_round_says_so_and_goes_on_when_started_again(
    federation: OverBrokers, own_cluster: Cluster, tmp_path: Path
) -> None:
    kept, lost = (Hands(federation, site) for site in federation.recipe.sites)
    shard = own_cluster.shard_of(mark_key(list(federation.recipe.sites)[1], federation.recipe.name))
    server = federation.serve()
    for hands in (kept, lost):
        hands.answer(*hands.take(1))
    (task,) = lost.take(1)
    shard.cut_replica_off()
    counted = threading.Event()
    federation.diary.on_update = lambda *_: counted.set()
    lost.answer(task)
    assert counted.wait(SOON)
    shard.fail_over()
    kept.answer(*kept.take(1))
    with pytest.raises(FedILError, match=r"has lost what clients committed since.*: start the server again"):
        server.result(SOON)
    with federation.resumed() as again:
        rest = again.serve()
        (repeated,) = lost.take(1)
        assert (repeated.client, repeated.activation) == (task.client, task.activation)
        lost.answer(repeated)
        for hands in (kept, lost):
            hands.answer(*hands.take(1))
        rest.result(SOON)
        assert [record.refused for record in again.diary.records] == [{"ledger_missing": 1}, {}]
        assert again.fingerprint() == undisturbed(federation.recipe, tmp_path / "undisturbed")


def test_a_run_of_which_one_shard_loses_what_the_checkpoint_needs_stops_and_names_it(
    federation: OverBrokers, own_cluster: Cluster
) -> None:
    kept, lost = (Hands(federation, site) for site in federation.recipe.sites)
    site = list(federation.recipe.sites)[1]
    shard = own_cluster.shard_of(mark_key(site, federation.recipe.name))
    server = federation.serve()
    tasks = [(hands, hands.take(1)[0]) for hands in (kept, lost)]
    shard.cut_replica_off()
    for hands, task in tasks:
        hands.answer(task)
    (task,) = kept.take(1)
    shard.fail_over()
    kept.answer(task)
    replica = f"Redis at {LOOPBACK}:{shard.replica.port}"
    gone_back = f"{replica} has gone back to an earlier state of run '{federation.recipe.name}', site {site}"
    with at_work(worker_of(federation, site)), pytest.raises(LedgerMissing, match=gone_back):
        server.result(SOON)
    with federation.resumed() as again, pytest.raises(LedgerMissing, match=gone_back):
        again.serve().result(SOON)


def test_a_write_is_done_when_a_replica_of_its_node_has_it(shared_cluster: Cluster, run: str) -> None:
    near, far, _ = sites_apart(shared_cluster, run)
    with closing(connect_store(shared_cluster.url(), [near, far].__getitem__, HASTY)) as store:
        for client, site in enumerate((near, far)):
            store.begin(run, site)
            assert store.commit(run, client, 1, b"first")
        with shared_cluster.shard_of(mark_key(near, run)).frozen_replica():
            with pytest.raises(RetriesExhausted, match="0 of 1 replicas of Redis have confirmed a write"):
                store.commit(run, 0, 2, b"second")
            assert store.commit(run, 1, 2, b"second")
            assert store.count(run, far, 0) == 1
        assert store.latest(run) == {0: (2, b"second"), 1: (2, b"second")}


def test_a_slot_that_moves_is_waited_for_and_found(shared_cluster: Cluster, run: str) -> None:
    source, target = (shard.primary for shard in shared_cluster.shards[:2])
    site = sites_apart(shared_cluster, run)[0]
    keys = [ledger_key(site, run, 7), clients_key(site, run), mark_key(site, run)]
    slot = key_slot(keys[0].encode())
    with (
        client_of(source) as here,
        client_of(target) as there,
        ExitStack() as stack,
    ):
        store, writer, reader = (
            stack.enter_context(closing(connect_store(shared_cluster.url(), lambda _: site, HASTY)))
            for _ in range(3)
        )
        ids = [each.execute_command("CLUSTER", "MYID") for each in (here, there)]
        store.begin(run, site)
        store.commit(run, 7, 1, b"ledger")
        for each in (writer, reader):
            assert each.clients(run) == [7]
        there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        here.execute_command("MIGRATE", LOOPBACK, target.port, "", 0, 5000, "KEYS", *keys)
        with pytest.raises(RetriesExhausted, match=f"slot {slot} is being moved to {LOOPBACK}:{target.port}"):
            store.read(run, 7, 2)
        for client in (there, here):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        with pytest.raises(RetriesExhausted, match=f"slot {slot} has moved to {LOOPBACK}:{target.port}"):
            writer.commit(run, 7, 2, b"later")
        assert writer.commit(run, 7, 2, b"later")
        assert store.count(run, site, 0) == 1
        assert reader.latest(run) == {7: (2, b"later")}


def test_runs_are_listed_and_removed_at_all_shards(shared_cluster: Cluster, run: str) -> None:
    sites = sites_apart(shared_cluster, run)
    with (
        closing(connect_store(shared_cluster.url(), sites.__getitem__, PATIENT)) as store,
        open_runs(shared_cluster.url()) as runs,
    ):
        for client, site in enumerate(sites):
            store.begin(run, site)
            store.commit(run, client, 1, b"ledger")
        assert store.clients(run) == [0, 1, 2]
        assert store.health()["keys"] >= 9
        assert runs.ledgers()[run] == 3
        assert runs.sites(run) == sorted(sites)
        assert runs.forget(run) == 3
        assert run not in runs.ledgers()
        assert store.latest(run) == {}


def test_room_is_made_at_the_node_that_is_nearly_full(shared_cluster: Cluster, run: str) -> None:
    sites, garbage = sites_apart(shared_cluster, run), f"garbage-{uuid.uuid4().hex}"
    shard = shared_cluster.shard_of(ledger_key(sites[0], garbage, 0))
    full, site_there = shard.primary, sites[shared_cluster.shards.index(shard)]
    with (
        client_of(full) as admin,
        closing(connect_store(shared_cluster.url(), sites.__getitem__, PATIENT)) as store,
        open_room(shared_cluster.url(), run, lambda client: dict(enumerate(sites)).get(client)) as room,
    ):
        for client, site in enumerate(sites):
            store.begin(run, site)
            store.commit(run, client, 1, b"ledger")
        store.commit(garbage, 0, 1, bytes(1_000_000))
        assert room.make() == {}
        admin.config_set("maxmemory", admin.info("memory")["used_memory"])
        try:
            taken = room.make()
        finally:
            admin.config_set("maxmemory", 0)
        assert taken[sites[0]].deleted_bytes > 1_000_000
        assert taken[site_there].num_bytes > 0
        assert store.latest(garbage) == {}
        assert store.latest(run).keys() == {0, 1, 2}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((f"//{LOOPBACK}:", "//:s3cret/"), "the store's URL has no list of hosts of nodes: write redis"),
        (("/?", "/1?"), "the store's URL has a database, but a cluster has only database 0: write redis"),
        (("/?", "/?db=1&"), "a cluster has only database 0: write redis"),
        (("replicas=1", "replicas=some"), "the store's URL has a wrong option: write replicas=1"),
        (("replicas=1", "socket_timeout=s3"), "the store's URL cannot be read"),
    ],
)
def test_an_address_that_is_wrong_is_named_without_its_password(
    shared_cluster: Cluster, change: tuple[str, str], said: str
) -> None:
    url = shared_cluster.url(options="?replicas=1")
    assert change[0] in url
    with pytest.raises(FedILError, match=said) as raised:
        connect_store(url.replace(*change), retry=HASTY)
    assert "s3cret" not in str(raised.value)
    assert isinstance(raised.value, AddressWrong)


def test_a_cluster_of_which_no_named_node_answers_is_waited_for() -> None:
    gone = f"{LOOPBACK}:{free_ports(['gone'])['gone']}"
    with pytest.raises(
        RetriesExhausted, match=rf"Redis at {gone} \(Redis Cluster\) is away .*see that it runs"
    ):
        connect_store(f"redis+cluster://{gone}/", retry=HASTY)


def test_one_kind_of_address_is_not_taken_for_the_other(shared_cluster: Cluster, redis: Service) -> None:
    for node in (shared_cluster.nodes[0], shared_cluster.nodes[-1]):
        with pytest.raises(BrokerRefused, match=r"is a node of a cluster: write redis\+cluster://user"):
            connect_store(node.url, retry=HASTY)
    with pytest.raises(BrokerRefused, match="is in no cluster: write redis://"):
        connect_store(redis.url.replace("redis://", "redis+cluster://"), retry=HASTY)


def test_a_cluster_of_which_slots_have_no_node_is_waited_for(tmp_path: Path) -> None:
    with needed(lambda: ClusterNode(tmp_path)) as node, client_of(node) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 9999)
        url = node.url.replace("redis://", "redis+cluster://")
        with pytest.raises(
            RetriesExhausted, match=r"has slots without a node .*10000 of 16384.*: see that its nodes run"
        ):
            connect_store(url, retry=HASTY)


def test_tls_is_used_for_all_nodes(tmp_path: Path) -> None:
    certificate, port = make_certificate(tmp_path / "ours.pem"), free_ports(["tls"])["tls"]
    files = {f"--tls-{kind}": str(certificate) for kind in ("cert-file", "key-file", "ca-cert-file")}
    ours = files | {"--tls-auth-clients": "optional", "--tls-port": str(port), "--tls-cluster": "yes"}
    options = [word for option in ours.items() for word in option]
    with needed(lambda: ClusterNode(tmp_path / "node", options=options)) as node, client_of(node) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        url = f"rediss+cluster://localhost:{port}/0"
        with closing(connect_store(f"{url}?ssl_ca_certs={certificate}", retry=PATIENT)) as store:
            assert store.commit("run", 7, 1, b"ledger")
        with pytest.raises(BrokerRefused, match=r"no TLS with Redis at localhost.*: check ssl_ca_certs"):
            connect_store(url, retry=HASTY)
