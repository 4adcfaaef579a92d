"""The commands of compose.yaml and of the rendered chart, run as containers run them (see cell.py), with real brokers:
the run ends with the digests of the simulation."""

import base64
import json
import math
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import pytest

from broker_config.brokers.definitions import VHOST
from ops.cli.commands.shards import write_site_shards
from ops.cli.main import main
from ops.cli.recipe_files import read_recipe
from ops.local.services import Redis
from ops.local.services.process import LOOPBACK, find_program, free_ports, wait_until
from ops.local.services.redis import redis_answers
from tests.certificates import Authority
from tests.deploy.cell import USER, Cell, build_image
from tests.deploy.composed import Service, cell_of, load, mounts_of
from tests.deploy.rendered import Manifest, example, merged, of_kind, render
from tests.deploy.running import Cluster, Running, until
from tests.deployment import write_recipe
from tests.integration.test_broker_command import written
from tests.integration.test_broker_files import without
from tests.integration.test_deployment import simulate
from tests.services import RabbitMQ, needed, private_rabbitmq

SOON = 60.0
NAMES = ["rabbitmq", "redis"]
STATISTICS = "collect_statistics_interval = 500\n"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needed(lambda: find_program("setpriv", missing="setpriv is not installed: apt install util-linux"))
    return build_image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_recipe(tmp_path_factory.mktemp("recipe"), rounds=2)
    # Long enough that a worker can be met at its task
    path.write_text(path.read_text().replace("epochs = 3", "epochs = 16"))
    return path


@pytest.fixture(scope="module")
def simulated(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return simulate(recipe, tmp_path_factory.mktemp("simulated") / "run", workers=1)


# Compose


class Composed:
    """Services of compose.yaml; the folder stands for the one that it is in."""

    def __init__(self, folder: Path, recipe: Path, image: Path) -> None:
        document = load({"FEDIL_USER": f"{USER}:{USER}", "FEDIL_RECIPE": str(recipe)})
        self._services, self._secrets = document["services"], document["secrets"]
        self.folder, self._image = folder, image
        self.accounts = folder / "accounts"
        self.accounts.mkdir()
        if os.geteuid() == 0:
            os.chown(self.accounts, USER, USER)

    def once(self, name: str) -> str:
        code, said = self._cell(name).run(self.folder / name)
        assert code == 0, said
        return said

    def start(self, name: str, title: str = "") -> Running:
        return Running(self._cell(name), self.folder, title or name)

    def redis(self, port: int) -> "subprocess.Popen[bytes]":
        """By the command that compose gives its container"""
        config = self.accounts / "redis.conf"
        config.write_text(
            f"{without(config.read_text(), 'port', 'dir')}\nport {port}\nbind {LOOPBACK}\ndir /data\n"
        )
        cell = replace(self._cell("redis", ours=False), directory="/data")
        process = cell.start(self.folder / "redis", self.folder / "redis.log")
        assert wait_until(lambda: redis_answers(port), SOON), (self.folder / "redis.log").read_text()
        return process

    def service(self, name: str) -> Service:
        found: Service = self._services[name]
        return found

    def _cell(self, name: str, ours: bool = True) -> Cell:
        return cell_of(self.service(name), self._secrets, self.folder, self._image if ours else None, NAMES)


def test_compose_plays_the_run_of_the_simulation(
    recipe: Path, simulated: tuple[str, str], image: Path, tmp_path: Path
) -> None:
    composed = Composed(tmp_path, recipe, image)
    composed.once("accounts")
    config = without((composed.accounts / "rabbitmq.conf").read_text(), "load_definitions")
    (port,) = free_ports(["redis"]).values()
    definitions = composed.accounts / "definitions.json"
    redis = composed.redis(port)
    try:
        with needed(
            lambda: private_rabbitmq(tmp_path / "mq", config=config, definitions=definitions, management=True)
        ) as rabbitmq:
            ports = {"5672": rabbitmq.port, "15672": rabbitmq.ports["management"], "6379": port}
            for file in composed.accounts.glob("*.env"):
                file.write_text(
                    re.sub(r":(5672|15672|6379)\b", lambda found: f":{ports[found[1]]}", file.read_text())
                )
            assert "keeps its passwords" in composed.once("init")
            play_composed(composed, simulated)
    finally:
        redis.kill()
        redis.wait()
    composed.once("monitoring")
    volumes = {path.name for path in (tmp_path / "volumes").iterdir()}
    assert {"prometheus-files", "grafana-files", "run", "shards", "redis"} <= volumes
    assert "http://server:8265/targets" in (tmp_path / "volumes/prometheus-files/prometheus.yml").read_text()
    assert (tmp_path / "volumes/grafana-files/dashboards/fleet.json").is_file()


def test_accounts_of_the_profile_tls_name_the_authority_where_it_is_mounted(
    recipe: Path, image: Path, tmp_path: Path
) -> None:
    composed = Composed(tmp_path, recipe, image)
    composed.once("accounts-tls")
    for user in ("server", "site-default"):
        broker, store = written(composed.accounts / f"{user}.env").values()
        assert (urlsplit(broker).scheme, urlsplit(broker).query) == ("amqps", "cafile=/etc/fedil/tls/ca.pem")
        assert (urlsplit(store).scheme, urlsplit(store).query) == (
            "rediss",
            "ssl_ca_certs=/etc/fedil/tls/ca.pem",
        )
    assert "/etc/fedil/tls/server.key" in (composed.accounts / "rabbitmq.conf").read_text()
    for name in ("rabbitmq", "redis", "init", "server", "worker", "worker-gpu"):
        assert "/etc/fedil/tls" in [mount.target for mount in mounts_of(composed.service(name), tmp_path)]


def play_composed(composed: Composed, simulated: tuple[str, str]) -> None:
    with composed.start("server") as server, composed.start("worker", "first") as first:
        until(first.is_training, SOON, [server, first])
        # The grace is longer than the task: it is finished.
        assert first.terminate(seconds_of(composed.service("worker")["stop_grace_period"])) == 0
        assert not any("the task goes back" in line["message"] for line in first.logged())
        with composed.start("worker", "second") as second:
            until(lambda: server.get("/readyz")[0] == 200, SOON, [server])
            assert server.is_healthy()
            until(second.is_healthy, SOON, [server, second])
            until(lambda: server.process.poll() is not None, SOON, [server, second])
            assert not server.is_healthy()
        assert server.process.poll() == 0
        assert server.digests() == simulated


def seconds_of(text: str) -> float:
    return float(text.removesuffix("s"))


# The chart


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[RabbitMQ, Path]]:
    """With TLS only, and two sites; and the folder with their accounts."""
    folder, accounts = tmp_path / "tls", tmp_path / "accounts"
    folder.mkdir()
    certificate, key = Authority(folder).sign("broker", host="localhost")
    shutil.copy(certificate, folder / "server.pem")
    shutil.copy(key, folder / "server.key")
    ports = free_ports(["amqps", "rediss"])
    authority = "/etc/fedil/tls/ca.pem"
    addresses = (
        *("--broker-address", f"amqps://localhost:{ports['amqps']}?cafile={authority}"),
        *("--store-address", f"rediss://localhost:{ports['rediss']}/0?ssl_ca_certs={authority}"),
    )
    files = ["broker", "files", "--sites", "north,south", "--out", str(accounts), "--tls", str(folder)]
    assert main([*files, *addresses]) == 0
    mq = without(
        (accounts / "rabbitmq.conf").read_text(), "listeners.tcp", "listeners.ssl.default", "load_definitions"
    )
    mq += f"listeners.ssl.1 = {LOOPBACK}:{ports['amqps']}\n{STATISTICS}"
    (tmp_path / "redis.conf").write_text(
        without((accounts / "redis.conf").read_text(), "port", "tls-port", "dir", "aclfile")
    )
    options = [
        "--include",
        tmp_path / "redis.conf",
        "--aclfile",
        accounts / "users.acl",
        "--tls-port",
        ports["rediss"],
    ]
    definitions = accounts / "definitions.json"
    with (
        needed(
            lambda: private_rabbitmq(tmp_path / "mq", config=mq, definitions=definitions, management=True)
        ) as rabbitmq,
        needed(lambda: Redis(tmp_path / "redis", options=[str(option) for option in options])),
    ):
        yield rabbitmq, accounts


class Keda:
    """Counts as KEDA does, and starts one pod of a workload that has none and should have some."""

    def __init__(
        self, manifests: list[Manifest], secrets: dict[str, dict[str, str]], cluster: Cluster
    ) -> None:
        self._scaled = of_kind(manifests, "ScaledObject")
        (login,) = of_kind(manifests, "TriggerAuthentication").values()
        (reference,) = login["spec"]["secretTargetRef"]
        assert reference["parameter"] == "host"
        self._host = urlsplit(secrets[reference["name"]][reference["key"]])
        self._cluster = cluster
        self.pods: dict[str, Running] = {}

    def messages(self, name: str) -> int:
        (trigger,) = self._scaled[name]["spec"]["triggers"]
        about, host = trigger["metadata"], self._host
        assert (about["protocol"], about["mode"]) == ("http", "QueueLength")
        url = f"http://{host.hostname}:{host.port}/api/queues{host.path}/{quote(about['queueName'], safe='')}"
        login = base64.b64encode(f"{host.username}:{host.password}".encode()).decode()
        with urlopen(Request(url, headers={"Authorization": f"Basic {login}"}), timeout=20) as reply:
            return int(json.loads(reply.read()).get("messages", 0))

    def wanted(self, name: str) -> int:
        spec = self._scaled[name]["spec"]
        about, count = spec["triggers"][0]["metadata"], self.messages(name)
        if count <= int(about["activationValue"]):
            return int(spec["minReplicaCount"])
        return min(int(spec["maxReplicaCount"]), math.ceil(count / float(about["value"])))

    def look(self) -> int:
        """How many workloads have had a pod"""
        for name, scaled in self._scaled.items():
            there = self.pods.get(name)
            if (there is None or there.process.poll() is not None) and self.wanted(name) > 0:
                self.pods[name] = self._cluster.start("Deployment", scaled["spec"]["scaleTargetRef"]["name"])
        return len(self.pods)


def secrets_of(rabbitmq: RabbitMQ, accounts: Path) -> dict[str, dict[str, str]]:
    """As README.md says how to make them"""
    for command in (
        ("add_user", "keda", "its-password"),
        ("set_user_tags", "keda", "monitoring"),
        ("set_permissions", "-p", VHOST, "keda", "^$", "^$", "^$"),
    ):
        rabbitmq.ctl(*command)
    host = rabbitmq.management_url.replace("//", "//keda:its-password@") + f"/{VHOST}"
    return {
        "fedil-server": written(accounts / "server.env"),
        "fedil-site-north": written(accounts / "site-north.env"),
        "fedil-site-south": written(accounts / "site-south.env"),
        "fedil-ca": {"ca.pem": (accounts.parent / "tls" / "ca.pem").read_text()},
        "fedil-keda": {"host": host},
    }


def test_the_chart_plays_the_run_of_the_simulation_with_workers_from_zero(
    brokers: tuple[RabbitMQ, Path], recipe: Path, simulated: tuple[str, str], image: Path, tmp_path: Path
) -> None:
    rabbitmq, accounts = brokers
    text = recipe.read_text() + "site_timeout_seconds = 1.0\n[federation.sites]\nnorth = 6\nsouth = 6\n"
    changes = {"recipe": text, "data": {"existingClaim": ""}, "worker": {"graceSeconds": 0}}
    changes["sites"] = {"south": {"processes": 1}}
    manifests, secrets = render(merged(example("production"), changes)), secrets_of(rabbitmq, accounts)
    (tmp_path / "sites.toml").write_text(text)
    with Cluster(manifests, secrets, tmp_path / "pods", image) as cluster:
        # North's pods make their shards; south has its own.
        write_site_shards(
            read_recipe(str(tmp_path / "sites.toml"), []), "south", cluster.claim("south-shards")
        )
        keda = Keda(manifests, secrets, cluster)
        assert [keda.wanted(f"demo-worker-{site}") for site in ("north", "south")] == [0, 0]
        servers = [cluster.start("StatefulSet", "demo-server") for _ in range(2)]
        until(lambda: any(server.get("/readyz")[0] == 200 for server in servers), SOON, servers)
        leader = next(server for server in servers if server.get("/readyz")[0] == 200)
        (other,) = [server for server in servers if server is not leader]
        until(lambda: "standby" in other.get("/readyz")[1], SOON, servers)
        for name in ("startupProbe", "livenessProbe"):
            assert all(cluster.probe("StatefulSet", "demo-server", name, server) for server in servers)

        until(lambda: keda.look() == 2, SOON, cluster.pods)
        hand_a_task_back(keda, cluster)
        until(lambda: keda.look() and leader.digests(), SOON, cluster.pods)
        assert leader.digests() == simulated

        # The servers stay, where a process that ends would be started again and again; and there is nothing left to do.
        until(lambda: other.digests() or leader.process.poll() is not None, SOON, cluster.pods)
        assert other.digests() == simulated
        assert {server.process.poll() for server in servers} == {None}
        assert [server.get("/readyz") for server in servers] == [(503, "done\n")] * 2
        until(
            lambda: keda.wanted("demo-worker-north") == keda.wanted("demo-worker-south") == 0,
            SOON,
            cluster.pods,
        )
        seconds = of_kind(manifests, "StatefulSet")["demo-server"]["spec"]["template"]["spec"]
        assert [server.terminate(seconds["terminationGracePeriodSeconds"]) for server in servers] == [0, 0]


def hand_a_task_back(keda: Keda, cluster: Cluster) -> None:
    """A worker gets SIGTERM in the middle of its task, as when its node is drained."""
    name = "demo-worker-north"
    worker = keda.pods[name]
    until(worker.is_training, SOON, cluster.pods)
    worker.process.send_signal(signal.SIGSTOP)
    # Its task is unacknowledged, and counts.
    until(lambda: keda.messages(name) >= 1, 10, cluster.pods)
    worker.process.send_signal(signal.SIGTERM)
    worker.process.send_signal(signal.SIGCONT)
    assert worker.process.wait(30) == 0  # 30 s of terminationGracePeriodSeconds, --grace being 0
    assert any("asked to stop, the task goes back" in line["message"] for line in worker.logged())
    keda.look()
    again = keda.pods[name]
    assert again is not worker, "the task is in the queue again"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        until(lambda probe=probe: cluster.probe("Deployment", name, probe, again), SOON, cluster.pods)  # type: ignore[misc]
