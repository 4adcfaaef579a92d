"""Processes whose brokers turn them away say why in one line and end; those whose broker is away wait for it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from broker_config.process.addresses import LOOPBACK, WebAddress
from broker_config.protocol.errors import FedILError
from broker_config.transports import connect_transport
from ops.local.services.process import free_ports
from server_worker.deployment import Deployment, serve
from server_worker.watch.events import Watcher
from tests.deployment import ROOT, write_all_shards, write_recipe
from tests.federation import SOON, Over, blobs_recipe
from tests.services import Service, needed, redis_service
from tests.serving import until

PATIENCE = 240.0
SECRET = "open-sesame"


@dataclass(frozen=True)
class Places:
    rabbitmq: str
    redis: str
    choosy: str
    """A Redis that wants a password and may evict ledgers"""
    nowhere: str
    """Nobody listens there."""


@dataclass(frozen=True)
class Start:
    module: str
    broker: Callable[[Places], str]
    store: Callable[[Places], str]
    says: str
    """Names in braces stand for the places' hosts and ports."""


def with_password(url: str, user: str) -> str:
    return url.replace("//guest:guest@", "//").replace("//", f"//{user}:{SECRET}@")


REFUSED = {
    "a server with a wrong password": Start(
        "server_worker",
        lambda places: with_password(places.rabbitmq, "guest"),
        lambda places: places.redis,
        "server_worker: RabbitMQ at {rabbitmq} refused the user 'guest': check the name and the password",
    ),
    "a worker with a wrong password": Start(
        "client_worker",
        lambda places: with_password(places.rabbitmq, "site-default"),
        lambda places: places.redis,
        "client_worker: RabbitMQ at {rabbitmq} refused the user 'site-default': check the name and the password",
    ),
    "a server whose Redis may evict ledgers": Start(
        "server_worker",
        lambda places: places.rabbitmq,
        lambda places: with_password(places.choosy, "default"),
        "server_worker: Redis at {choosy} may evict ledgers (maxmemory-policy allkeys-lru): "
        "redis-cli CONFIG SET maxmemory-policy noeviction",
    ),
    "a worker without its Redis's password": Start(
        "client_worker",
        lambda places: places.rabbitmq,
        lambda places: places.choosy,
        "client_worker: Redis at {choosy} wants a password: put it into the store's URL",
    ),
}
WAITING = {
    module: Start(
        module,
        lambda places: with_password(places.nowhere, "guest"),
        lambda places: places.redis,
        "no RabbitMQ answers at {nowhere} (Connection refused)",
    )
    for module in ("server_worker", "client_worker")
}


class Started:
    def __init__(self, start: Start, places: Places, folder: Path, recipe: Path) -> None:
        self._says, self._places = start.says, places
        self.log = folder / "output.log"
        words = {
            "server_worker": ["--recipe", str(recipe), "--run-dir", str(folder / "run")],
            "client_worker": ["--site", "default", "--shards", str(recipe.parent / "shards")],
        }[start.module]
        addresses = {"FEDIL_BROKER_URL": start.broker(places), "FEDIL_STORE_URL": start.store(places)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", start.module, *words],
                cwd=ROOT,
                env=os.environ | addresses,
                stdout=log,
                stderr=log,
            )

    def said(self) -> str:
        return self.log.read_text("utf-8")

    def what_to_say(self) -> str:
        hosts = {name: urlsplit(url).netloc.rpartition("@")[2] for name, url in vars(self._places).items()}
        return self._says.format(**hosts)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def started(
    rabbitmq: Service, redis: Service, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Started]]:
    """All at once: most of the time they load torch."""
    folder = tmp_path_factory.mktemp("starts")
    recipe = write_recipe(folder, rounds=1)
    write_all_shards(recipe, folder / "shards")
    choosy = ["--requirepass", SECRET, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]
    with ExitStack() as stack:
        guarded = stack.enter_context(needed(lambda: redis_service(folder / "choosy", options=choosy)))
        nowhere = f"amqp://127.0.0.1:{free_ports(['nowhere'])['nowhere']}/"
        places = Places(rabbitmq.url, redis.url, guarded.url, nowhere)
        found = {}
        for name, start in (REFUSED | WAITING).items():
            (folder / name).mkdir()
            found[name] = Started(start, places, folder / name, recipe)
            stack.callback(found[name].end)
        yield found


@pytest.mark.parametrize("name", REFUSED)
def test_who_is_turned_away_ends_with_one_line_that_says_why(started: dict[str, Started], name: str) -> None:
    code = started[name].process.wait(PATIENCE)
    said = started[name].said()
    assert code == 1, said
    assert started[name].what_to_say() in said.splitlines()[-1]
    assert len(said.splitlines()) == 1
    assert SECRET not in said


def test_a_misspelt_address_is_named_without_its_password() -> None:
    with pytest.raises(FedILError, match="no transport for 'ampq' URLs") as refused:
        connect_transport(f"ampq://guest:{SECRET}@localhost/")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("module", WAITING)
def test_who_finds_no_broker_says_so_and_tries_until_it_is_asked_to_stop(
    started: dict[str, Started], module: str
) -> None:
    waiting = started[module]
    until(lambda: "; trying again" in waiting.said() or waiting.process.poll() is not None, seconds=PATIENCE)
    assert waiting.what_to_say() in waiting.said()
    waiting.process.send_signal(signal.SIGTERM)
    assert waiting.process.wait(PATIENCE) == 0, waiting.said()
    assert SECRET not in waiting.said()
    assert "Traceback" not in waiting.said()


@pytest.mark.parametrize("away", ["Redis", "RabbitMQ"])
def test_a_server_that_waits_for_a_broker_names_it_to_those_who_look(
    rabbitmq: Service, redis: Service, tmp_path: Path, away: str
) -> None:
    ports = free_ports(["nowhere", "web"])
    broker, store = rabbitmq.url, redis.url
    if away == "Redis":
        store = f"redis://someone:{SECRET}@{LOOPBACK}:{ports['nowhere']}/0"
    else:
        broker = f"amqp://someone:{SECRET}@{LOOPBACK}:{ports['nowhere']}/"
    deployment = Deployment(
        blobs_recipe(), tmp_path, broker, store, device="cpu", web=WebAddress(LOOPBACK, ports["web"])
    )
    stop = threading.Event()

    def readiness() -> str:
        with suppress(URLError):  # not yet there
            try:
                urlopen(f"http://{LOOPBACK}:{ports['web']}/readyz", timeout=PATIENCE).close()
            except HTTPError as error:
                with error:
                    return error.read().decode()
        return ""

    with ThreadPoolExecutor() as pool:
        serving = pool.submit(serve, deployment, Watcher(), stop)
        try:
            until(lambda: readiness().startswith("waiting: ") or serving.done(), seconds=PATIENCE)
            said = readiness()
        finally:
            stop.set()
        assert serving.result(PATIENCE).stopped
    assert f"{away} " in said
    assert f"{LOOPBACK}:{ports['nowhere']}" in said
    assert "Connection refused" in said
    assert SECRET not in said


def test_a_server_that_waits_for_another_stops_when_it_is_asked_to(over: Over) -> None:
    first = over(blobs_recipe())
    leading = first.serve()
    until(lambda: "started 1 of 3" in first.diary.notes, seconds=PATIENCE)
    with first.resumed() as second:
        waiting = second.serve()
        said = f"another server leads run {first.recipe.name}: waiting"
        until(lambda: said in second.diary.notes, seconds=PATIENCE)
        second.stop.set()
        assert waiting.result(SOON).stopped
        assert not leading.done()
    first.stop.set()
    assert leading.result(SOON).stopped
