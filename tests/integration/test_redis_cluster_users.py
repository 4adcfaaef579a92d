"""Users of a Redis Cluster, which Redis does not replicate: set at each node, and checked there."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from redis.exceptions import NoPermissionError

from broker_config.brokers.definitions import redis_password_hash, redis_rules
from broker_config.brokers.topology import RUNS_TOPIC, site_user, workers_topic
from broker_config.process.retry import RetryPolicy
from broker_config.protocol.errors import BrokerRefused
from broker_config.stores import connect_store
from broker_config.stores.redis.admin import AclUser, open_admin
from broker_config.stores.redis.keys import ledger_key, mark_key
from broker_config.stores.redis.room import open_room
from broker_config.stores.redis.runs import open_runs
from broker_config.stores.redis.store import RedisStore
from ops.cli.main import main
from ops.local.services.process import LOOPBACK
from tests.federation import SOON
from tests.redis_cluster import Cluster, cluster_info, known_nodes, redis_cluster
from tests.replicas import client_of
from tests.services import needed

LOGIN, FAILS_OVER_MS = "admin:secret", 1500
HASTY, PATIENT = RetryPolicy(seconds=0.0), RetryPolicy(seconds=SOON)


@pytest.fixture
def run() -> str:
    return f"run-{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With the users server, site-north and site-south at each node"""
    with ExitStack() as stack:
        opened = redis_cluster(tmp_path_factory.mktemp("guarded"), LOGIN)
        cluster = needed(lambda: stack.enter_context(opened))
        set_users(cluster, redis_password_hash("word"))
        yield cluster


def set_users(cluster: Cluster, password_hash: str | None) -> tuple[str, ...]:
    with open_admin(cluster.url(f"{LOGIN}@")) as redis:
        redis.users()
        users = ("server", site_user("north"), site_user("south"))
        redis.set_users({user: AclUser(redis_rules(user), password_hash) for user in users})
        assert redis.save_users() == []
        return tuple(redis.missing)


def login(cluster: Cluster, user: str) -> str:
    return cluster.url(f"{user}:word@")


def test_the_acl_permits_all_that_a_site_and_the_server_do(guarded: Cluster, run: str) -> None:
    with (
        closing(connect_store(login(guarded, "server"), lambda _: "north", PATIENT)) as server,
        closing(connect_store(login(guarded, site_user("north")), lambda _: "north", PATIENT)) as north,
        open_runs(login(guarded, "server")) as runs,
        open_room(login(guarded, "server"), run, lambda _: "north") as room,
    ):
        server.begin(run, "north")
        for activation in (1, 2, 3):
            server.open_activation(run, 7, activation)
            north.read(run, 7, activation, at_least=activation - 1)
            assert north.commit(run, 7, activation, b"%d" % activation)
        server.count(run, "north", 0)
        north.announce(workers_topic("north"), "worker", {"state": "idle"}, 60.0)
        server.announce(RUNS_TOPIC, run, {"round": 3}, 60.0)
        assert server.notices(workers_topic("north")) == {"worker": {"state": "idle"}}
        assert server.latest(run) == {7: (3, b"3")}
        assert server.health()["keys"] > 0
        room.make()
        north.withdraw(workers_topic("north"), "worker")
        server.withdraw(RUNS_TOPIC, run)
        assert runs.forget(run) == 1
    for node in guarded.nodes:
        with client_of(node, LOGIN) as client:
            assert client.acl_log() == []


def test_sites_are_isolated_at_every_node(guarded: Cluster, run: str) -> None:
    url = login(guarded, site_user("south"))
    with closing(RedisStore(url, lambda _: "north", HASTY)) as intruder:
        for intrusion in (
            lambda: intruder.commit(run, 7, 1, b"forged"),
            lambda: intruder.read(run, 7, 2),
            lambda: intruder.begin(run, "south"),
            lambda: intruder.announce(RUNS_TOPIC, run, {}, 60.0),
        ):
            with pytest.raises(BrokerRefused, match="'site-south' has too few rights"):
                intrusion()
    for node in guarded.nodes:
        with client_of(node, f"{site_user('south')}:word") as client:
            for command in (
                f"HMGET {ledger_key('north', run, 7)} kept",
                f"HSET {mark_key('south', run)} count 9",
                "CLUSTER FORGET x",
                "CLUSTER FAILOVER",
                "SCAN 0",
            ):
                with pytest.raises(NoPermissionError):
                    client.execute_command(*command.split())
        with client_of(node, LOGIN) as client:
            client.acl_log_reset()


def test_users_are_set_at_each_node_and_check_looks_at_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def check() -> tuple[int, str]:
        code = main(["broker", "check", "--store", login(cluster, site_user("north"))])
        return code, capsys.readouterr().out

    with ExitStack() as stack:
        opened = redis_cluster(tmp_path, LOGIN, FAILS_OVER_MS)
        cluster = needed(lambda: stack.enter_context(opened))
        set_users(cluster, redis_password_hash("word"))
        code, said = check()
        assert (code, said.count(" of a cluster) keeps ")) == (0, len(cluster.nodes)), said
        # As a replica that was started on an empty disk
        shard = cluster.shards[2]
        with client_of(shard.replica, LOGIN) as client:
            client.execute_command("ACL", "DELUSER", site_user("north"))
        code, said = check()
        assert code == 1
        assert f"wrong: Redis at {LOOPBACK}:{shard.replica.port} does not let in" in said
        assert set_users(cluster, None) == ()
        assert check()[0] == 0
        gone = f"{LOOPBACK}:{shard.primary.port}"
        shard.fail_over()
        others = [node for node in cluster.nodes if node is not shard.primary]
        cluster.until(lambda client: "cluster_state:ok" in cluster_info(client), others)
        cluster.until(lambda client: known_nodes(client).count("master,fail ") == 1, others)
        assert set_users(cluster, None) == (gone,)
        code, said = check()
        assert code == 1
        assert f"Redis at {gone}, a replica, does not answer: start it" in said
        assert f"{LOOPBACK}:{shard.replica.port}: it has no replica that could take over: start one" in said


def test_a_node_alone_is_checked_as_one_of_a_cluster(
    shared_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["broker", "check", "--store", shared_cluster.nodes[0].url]) == 1
    assert "it is a node of a cluster: write redis+cluster://" in capsys.readouterr().out
