"""A deployment on one machine: RabbitMQ and Redis of its own, the server and its workers as processes, all of it in
the run's folder. Running it again goes on where it was."""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from broker_config.process.addresses import WebAddress
from broker_config.process.http import check_free
from broker_config.protocol.errors import FedILError
from client_worker.pool import WorkerPool
from ops.cli.invocation import STARTED_AS
from ops.local.services import Prometheus, RabbitMQ, Redis, ServiceMissing
from ops.local.services.process import LOOPBACK, GuardedProcess, PrivateService, free_ports
from ops.local.workers import start_workers
from ops.monitoring.files import Places, prometheus_files, write_monitoring
from server_worker.run.folder import RunDir
from server_worker.run.lock import sole_use
from server_worker.run.recipe import Recipe

_LOOK_SECONDS = 0.2
_RETRY_SECONDS = 5.0
_SCRAPE_SECONDS = 5
_ANY_INTERFACE = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Cluster:
    recipe: Recipe
    recipe_file: Path
    overrides: Sequence[str]
    run_dir: Path
    workers: int
    device: str
    again: str
    """The command line that goes on with this"""
    web: WebAddress | None = None
    tensorboard: bool = False
    rounds: int | None = None
    """To which the run goes, whatever the recipe says"""


def services_of(run_dir: Path) -> Path:
    return run_dir / "services"


def has_redis(run_dir: Path) -> bool:
    return (services_of(run_dir) / "redis").is_dir()


@contextmanager
def redis_left_by(run_dir: Path) -> Iterator[str]:
    """The URL of the Redis of a cluster that has ended, which is started for a moment: to read what it has kept."""
    services = services_of(run_dir)
    with sole_use(services), Redis(services / "redis") as redis:
        yield redis.url


def say(text: str) -> None:
    print(f"cluster: {text}", flush=True)


def run_cluster(cluster: Cluster, stop: threading.Event) -> int:
    """The server's exit code. Blocks until it has ended, by itself or because `stop` was set."""
    services = services_of(cluster.run_dir)
    with ExitStack() as stack:
        # Two nodes on the same data would destroy it.
        stack.enter_context(sole_use(services))
        say("starting RabbitMQ and Redis")
        rabbitmq = RabbitMQ(services / "rabbitmq", plugins=["prometheus"])
        stack.enter_context(gently(rabbitmq))
        redis = stack.enter_context(gently(Redis(services / "redis")))
        broker, store = rabbitmq.url, redis.url
        say(f"broker {broker}  store {store}")
        for service in (rabbitmq, redis):
            stack.enter_context(kept_running(service, say))
        watch_if_possible(cluster, rabbitmq, stack)
        write_missing_shards(cluster)
        connection = ["--broker", broker, "--store", store, "--device", cluster.device]
        pools = [
            stack.enter_context(workers_of(site, cluster, count, connection, stop))
            for site, count in shares(cluster.workers, list(cluster.recipe.sites)).items()
        ]
        server = stack.enter_context(start_server(cluster, connection))
        while server.poll() is None and not stop.wait(_LOOK_SECONDS):
            pass
        server.terminate()  # it ends once what is under way is safe
        code = server.wait()
        for pool in pools:
            if pool.failure:
                raise pool.failure
        return code


@contextmanager
def gently(service: PrivateService) -> Iterator[PrivateService]:
    """Its data will be used again, so it may say goodbye; a second Ctrl-C kills it."""
    with service:
        yield service
        service.stop()


@contextmanager
def kept_running(service: PrivateService, say: Callable[[str], None]) -> Iterator[None]:
    """Starts a broker that has died again, since all processes wait for it; in a thread, because it takes a while."""
    closing = threading.Event()

    def watch() -> None:
        while not closing.wait(_LOOK_SECONDS):
            if not service.running:
                say(f"{service.name} has died; starting it again")
                try:
                    service.start()
                    say(f"{service.name} is back")
                except (FedILError, OSError) as error:
                    said = str(error).partition("\n")[0].rstrip(":")
                    say(f"{said}; trying again in {_RETRY_SECONDS:.0f} s")
                    closing.wait(_RETRY_SECONDS)

    thread = threading.Thread(target=watch, name=f"fedil-{service.name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()


def watch_if_possible(cluster: Cluster, rabbitmq: RabbitMQ, stack: ExitStack) -> None:
    if cluster.web is None:
        say("no metrics are kept: --web is off")
        return
    folder = services_of(cluster.run_dir) / "prometheus"
    host = LOOPBACK if cluster.web.host in _ANY_INTERFACE else cluster.web.host
    servers = (str(replace(cluster.web, host=host)),)
    places = Places(servers, (rabbitmq.metrics_place,), every_seconds=_SCRAPE_SECONDS)
    files = prometheus_files(places)
    list(write_monitoring(folder, files, overwrite=True))
    try:
        prometheus = stack.enter_context(gently(Prometheus(folder, files["prometheus.yml"])))
    except ServiceMissing as missing:
        say(f"no metrics are kept: {missing}")
    else:
        say(f"Prometheus {prometheus.url}  (its alerts: {prometheus.url}/alerts)")


def with_a_port(address: WebAddress | None) -> WebAddress | None:
    """One that is decided now, so that others can be told of it. Not the usual one, unless it was asked for: before
    the server has it, any other run on this machine might take that. Raises PortTaken, before brokers are started."""
    if address is not None:
        check_free(address)
    if address is None or (address.port and address.fixed):
        return address
    return replace(address, port=free_ports(["web"])["web"])


def write_missing_shards(cluster: Cluster) -> None:
    # Here, not above: they load torch, and a missing program is told before.
    from client_worker.shards import has_shards
    from ops.cli.commands.shards import write_site_shards

    for site in cluster.recipe.sites:
        folder = shards_of(cluster, site)
        if not has_shards(folder):
            clients, samples = write_site_shards(cluster.recipe, site, folder)
            say(f"site {site}: {samples} samples of {len(clients)} clients")


def shards_of(cluster: Cluster, site: str) -> Path:
    return RunDir(cluster.run_dir).shards / site


def shares(workers: int, sites: Sequence[str]) -> dict[str, int]:
    """Every site has at least one worker: no other site may train its clients."""
    each, rest = divmod(workers, len(sites))
    return {site: max(1, each + (number < rest)) for number, site in enumerate(sites)}


def workers_of(
    site: str, cluster: Cluster, count: int, connection: Sequence[str], stop: threading.Event
) -> WorkerPool:
    words = [*connection, "--site", site, "--shards", str(shards_of(cluster, site))]
    plugins, logs = cluster.recipe.plugins, RunDir(cluster.run_dir).logs
    return start_workers(
        words, plugins, count, logs, lambda text: say(f"site {site}: {text}"), stop.set, f"worker-{site}"
    )


def start_server(cluster: Cluster, connection: Sequence[str]) -> GuardedProcess:
    """Its view is the cluster's."""
    command = [sys.executable, "-m", "ops.cli", "server", "--recipe", str(cluster.recipe_file)]
    command += [*connection, "--run-dir", str(cluster.run_dir), "--again", cluster.again]
    command += ["--web", str(cluster.web or "off"), *(["--tensorboard"] if cluster.tensorboard else [])]
    command += ["--rounds", str(cluster.rounds)] if cluster.rounds else []
    for override in cluster.overrides:
        command += ["--set", override]
    # All workers are on this machine, whichever interface the page is on.
    here = ", ".join(f'"{site}" = ["{LOOPBACK}"]' for site in cluster.recipe.sites)
    command += ["--set", f"federation.addresses={{{here}}}"]
    if cluster.recipe.data.root is not None:
        command += ["--set", f"data.root={json.dumps(str(cluster.recipe.data.root))}"]
    return GuardedProcess(command, env={**os.environ, STARTED_AS: sys.argv[0]})
