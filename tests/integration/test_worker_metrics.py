"""Metrics of real processes, over real brokers: what they serve, where, and what they say when they cannot."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from broker_config.brokers.topology import workers_topic
from broker_config.process.addresses import LOOPBACK, WebAddress
from client_worker.shards import write_shards
from ops.local.services.process import free_ports, is_free
from server_worker.deployment import Deployment, serve
from server_worker.watch.notices import Notice
from tests.exposition import by_label, promtool_complaints, value
from tests.federation import Over, OverBrokers, blobs_recipe
from tests.integration.test_worker_process import Site

PATIENCE = 600.0


def asked(place: str, path: str) -> tuple[int, bytes]:
    try:
        with urlopen(f"http://{place}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


def until(condition: Callable[[], object], said: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"nothing happened; {said()}"
        time.sleep(0.02)


def answered(place: str) -> float:
    return by_label(asked(place, "/metrics")[1], "fedil_worker_tasks_total", "outcome")["answered"]


def port_of(place: str) -> int:
    return int(place.rpartition(":")[2])


# ---- over RabbitMQ and Redis ----------------------------------------------------------------------------------


@dataclass
class Worker:
    """A worker process of a federation's site."""

    federation: OverBrokers
    stack: ExitStack
    log: Path = field(init=False)
    process: "subprocess.Popen[bytes]" = field(init=False)

    def __post_init__(self) -> None:
        folder = self.federation.directory
        folder.mkdir(parents=True, exist_ok=True)
        shards, self.log = folder / "shards", folder / "worker.log"
        inputs = self.federation.train.inputs.numpy()
        write_shards(shards, {c: inputs[rows] for c, rows in enumerate(self.federation.split.clients)})
        words = ["--site", self.federation.site, "--shards", str(shards), "--device", "cpu"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "client_worker", *words, "--plugin", self.federation.recipe.data.name],
                env=os.environ
                | {
                    "FEDIL_BROKER_URL": self.federation.broker_url,
                    "FEDIL_STORE_URL": self.federation.store_url,
                },
                stdout=log,
                stderr=log,
            )
        self.stack.callback(self.process.wait)
        self.stack.callback(self.process.kill)

    def place(self) -> str:
        """Where it serves, as the board says"""
        found: list[str] = []

        def look() -> bool:
            notices = self.federation.ledgers.notices(workers_topic(self.federation.site))
            found.extend(facts["metrics"] for facts in notices.values())
            return bool(found)

        until(look, self.log.read_text)
        return found[0]


class Scraper:
    """Asks a server for its metrics until it is gone, as Prometheus would."""

    def __init__(self, url: str) -> None:
        self.texts: list[bytes] = []
        self._place = url.removeprefix("http://").rstrip("/")
        self._thread = threading.Thread(target=self._scrape)
        self._thread.start()

    def _scrape(self) -> None:
        with suppress(OSError, HTTPException):
            while True:
                self.texts.append(asked(self._place, "/metrics")[1])
                time.sleep(0.1)

    def join(self) -> list[bytes]:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.texts


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_server_and_a_worker_count_what_they_do(over: Over, stack: ExitStack) -> None:
    federation = over(blobs_recipe(rounds=4))
    worker = Worker(federation, stack)
    place = worker.place()
    until(lambda: asked(place, "/readyz") == (200, b"ready\n"), worker.log.read_text)
    scrapers: list[Scraper] = []

    def note(notice: Notice) -> None:
        words, _, url = notice.text.rpartition(" ")
        if words == "watch it at":
            scrapers.append(Scraper(url))

    federation.diary.note = note  # type: ignore[method-assign]
    recipe = federation.recipe
    deployment = Deployment(
        recipe,
        federation.directory / "run",
        federation.broker_url,
        federation.store_url,
        recipe.name,
        "cpu",
        web=WebAddress(),
    )
    serve(deployment, federation.diary, threading.Event())
    records = federation.diary.records
    answers = sum(len(record.outcomes) for record in records)
    images = sum(o.num_samples for record in records for o in record.outcomes) * recipe.client.epochs

    until(lambda: answered(place) == answers == 12)
    text = asked(place, "/metrics")[1]
    assert sum(by_label(text, "fedil_worker_tasks_total", "outcome").values()) == answers
    assert value(text, "fedil_worker_images_total") == images
    assert value(text, "fedil_worker_task_duration_seconds_count", phase="train") == answers
    received = value(text, "fedil_transport_bytes_total", direction="received", kind="model")
    sent = value(text, "fedil_transport_bytes_total", direction="sent", kind="update")
    assert promtool_complaints(text) == ""
    assert asked(place, "/healthz") == (200, b"ok\n")

    texts = scrapers[0].join()
    last = texts[-1]
    assert promtool_complaints(last) == ""
    assert value(last, "fedil_running") == 0, "whoever was watching sees the end"
    assert value(last, "fedil_round") == len(records) == 4
    assert by_label(last, "fedil_accuracy", "model") == records[-1].accuracy
    accepted = sum(record.accepted for record in records)
    assert value(last, "fedil_updates_total", outcome="accepted") == accepted
    assert value(last, "fedil_images_total") == images
    assert value(last, "fedil_transport_bytes_total", direction="sent", kind="model") == received
    assert value(last, "fedil_transport_bytes_total", direction="received", kind="update") == sent
    assert value(last, "fedil_brokers_reachable") == 1
    assert value(last, "fedil_workers_alive") == 1
    assert value(last, "fedil_clients_alive") == value(last, "fedil_clients") == 6
    assert (value(last, "fedil_store_memory_bytes") or 0) > 1e5
    counts = [value(text, "fedil_updates_total", outcome="accepted") for text in texts]
    assert counts == sorted(counts, key=lambda count: count or 0)

    worker.process.terminate()
    assert worker.process.wait(PATIENCE) == 0
    assert is_free(port_of(place))


# ---- ports ----------------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path, stack: ExitStack) -> Site:
    return Site(tmp_path, stack)


def places(site: Site) -> set[str]:
    return {facts["metrics"] for facts in site.notices().values()}


def two_free_ports() -> int:
    while True:
        port = free_ports(["web"])["web"]
        if is_free(port + 1):
            return port


def test_processes_take_a_fixed_port_and_those_that_follow(site: Site) -> None:
    port = two_free_ports()
    parent = site.start("--processes", "2", "--web", str(port))
    both = {f"{LOOPBACK}:{port}", f"{LOOPBACK}:{port + 1}"}
    site.until(lambda: places(site) == both)
    site.gate.open()
    site.bench.put(site.bench.task())
    site.update()
    site.until(lambda: sorted(answered(place) for place in both) == [0, 1])
    parent.terminate()
    assert parent.wait(PATIENCE) == 0
    assert is_free(port)
    assert is_free(port + 1)


def test_several_processes_take_free_ports_where_nobody_asked(site: Site) -> None:
    site.start("--processes", "2")
    site.until(lambda: len(places(site)) == 2)
    for place in places(site):
        assert place.startswith(f"{LOOPBACK}:")
        assert asked(place, "/healthz")[0] == 200


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=["one", "two"])
def test_a_busy_port_ends_a_worker_at_once_with_what_to_do(site: Site, options: list[str]) -> None:
    port = two_free_ports()
    busy = port + 1 if options else port
    with socket.create_server((LOOPBACK, busy)):
        worker = site.start("--web", str(port), *options)
        assert worker.wait(PATIENCE) == 2
    assert site.said().splitlines() == [
        f"client_worker: cannot serve pages at {LOOPBACK}:{busy} (Address already in use): "
        "choose another with --web HOST:PORT, or --web off"
    ]


def test_ports_beyond_the_last_one_are_refused(site: Site) -> None:
    worker = site.start("--web", "65535", "--processes", "2")
    assert worker.wait(PATIENCE) == 2
    assert "--web 127.0.0.1:65535 leaves no ports for 2 processes: choose a lower one" in site.said()


def test_a_worker_that_waits_for_its_broker_lives_and_is_not_ready(site: Site) -> None:
    site.server.close()
    port = free_ports(["web"])["web"]
    place = f"{LOOPBACK}:{port}"
    worker = site.start("--web", str(port))
    site.until(lambda: "trying again" in site.said())
    assert asked(place, "/healthz") == (200, b"ok\n")
    assert asked(place, "/readyz") == (503, b"takes no tasks\n")
    assert b"fedil_worker_info{" in asked(place, "/metrics")[1]
    site.server = site.serve()
    site.until(lambda: asked(place, "/readyz")[0] == 200)
    worker.terminate()
    assert worker.wait(PATIENCE) == 0


def test_who_wants_no_metrics_gets_none(site: Site) -> None:
    site.start("--web", "off")
    site.until(site.notices)
    assert places(site) == {None}
