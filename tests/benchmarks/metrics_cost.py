"""What it costs to be watched: metrics, history, live page and survey, against the rounds that they tell of.

A deployment of the default recipe over RabbitMQ and Redis, with the server in this process and two workers beside it,
while a browser polls the live page every second and Prometheus scrapes server and workers every five. Counted are

* the run's thread, inside the calls that tell watchers of an event (history, metrics, live page, the board's status):
  its processor time, and all the time that it waits for the history's fsync,
* the run's thread, while it reads the ledgers of those who answered to tell how pure the pseudo-labels are: its
  processor time,
* the processor time of the threads that serve pages, and of the survey with its connection,
* a worker (they work at the same time, so one's time is a round's): the processor time of counting a task and of
  answering a scrape, measured here with the same code, times its tasks and scrapes,

all of it together, as if nothing of it ran beside the run, as a share of the time that the rounds took. How long the
calls took in all is told beside it: on a busy machine that is mostly waiting for a processor, which rounds do as well,
and for Redis, which has to give the ledgers.
"""

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from broker_config.brokers.topology import DEFAULT_SITE
from broker_config.process import http as web
from broker_config.process.addresses import BROKER_URL, STORE_URL, WebAddress
from broker_config.process.metrics import EXPOSITION
from broker_config.protocol.messages import Update
from broker_config.stores.interface import Store
from client_worker.metrics import ANSWERED, WorkerMetrics
from fedil_model.methods.interface import MethodSpec
from ops.cli.commands.shards import write_site_shards
from ops.cli.recipe_files import read_recipe
from ops.inspect.diagnostics import shares_where_known
from ops.local.services import Redis
from server_worker import deployment
from server_worker.deployment import Deployment
from server_worker.round.context import LabelTruth
from server_worker.run.history import HistoryWriter
from server_worker.run.inputs import RunInputs
from server_worker.run.recipe import Recipe
from server_worker.watch.events import RoundRecord, Watcher
from server_worker.watch.notices import Notice
from tests.benchmarks._processes import started
from tests.benchmarks._watchers_at_work import EVERY_SECONDS, SCRAPED_EVERY, Connection
from tests.benchmarks.simulate_scaling import busy_seconds_of_others
from tests.services import private_rabbitmq

BAR = 0.01
WORKERS = 2
ROUNDS, FIRST = 14, 3
MANY_CLIENTS, MANY_ROUNDS = 100, 6
_PAGES = "fedil-pages"
_WATCHED_THREADS = (_PAGES, "fedil-web", "fedil-survey", "rabbitmq-heartbeats")
"""The last one is of the server's own connection too: it cannot be told apart."""


@dataclass
class Costs:
    """Seconds until now"""

    telling: float = 0.0
    fsync: float = 0.0
    purity: float = 0.0
    pages: float = 0.0
    survey: float = 0.0

    def since(self, before: "Costs") -> dict[str, float]:
        return {name: value - getattr(before, name) for name, value in vars(self).items()}


class Meter:
    def __init__(self) -> None:
        self._telling = self._fsync = self._purity = 0.0
        self.telling_in_all = self.purity_in_all = 0.0
        self._told_in: int | None = None
        """The thread that is in a watcher's call just now"""
        self._lock = threading.Lock()
        self._ended = 0.0
        """Of threads that served pages and are gone"""

    @contextmanager
    def measuring(self) -> Iterator[None]:
        with (
            mock.patch.object(deployment, "HistoryWriter", self._history_writer()),
            mock.patch.object(os, "fsync", self._waiting(os.fsync)),
            mock.patch.object(web.WebServer, "process_request_thread", self._page_thread()),
        ):
            yield

    def now(self) -> Costs:
        with self._lock:
            spent = dict.fromkeys(_WATCHED_THREADS, 0.0)
            for thread in threading.enumerate():
                if thread.name in spent and thread.ident is not None:
                    spent[thread.name] += time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            pages = self._ended + spent[_PAGES] + spent["fedil-web"]
            survey = spent["fedil-survey"] + spent["rabbitmq-heartbeats"]
            return Costs(self._telling, self._fsync, self._purity, pages, survey)

    def purity(self, store: Store, run: str, spec: MethodSpec, inputs: RunInputs) -> LabelTruth:
        """As `fedil server` has it."""
        find = shares_where_known(store, run, spec, inputs)

        def measured(answered: Mapping[int, int]) -> Mapping[str, float | None]:
            began, worked = time.perf_counter(), time.thread_time()
            found = find(answered)
            self._purity += time.thread_time() - worked
            self.purity_in_all += time.perf_counter() - began
            return found

        return measured

    def _history_writer(self) -> type[HistoryWriter]:
        """It is told of all events, and hands them on to all who watch."""
        meter = self

        class Measured(HistoryWriter):
            pass

        for name in ("run_started", "phase", "update_arrived", "round_closed", "note"):
            setattr(Measured, name, meter._measured(getattr(HistoryWriter, name)))
        return Measured

    def _measured(self, told: Callable[..., None]) -> Callable[..., None]:
        def measured(*arguments: Any) -> None:
            began, worked = time.perf_counter(), time.thread_time()
            self._told_in = threading.get_ident()
            try:
                told(*arguments)
            finally:
                self._told_in = None
                self._telling += time.thread_time() - worked
                self.telling_in_all += time.perf_counter() - began

        return measured

    def _waiting(self, fsync: Callable[[int], None]) -> Callable[[int], None]:
        def measured(file: int) -> None:
            began, worked = time.perf_counter(), time.thread_time()
            fsync(file)
            if self._told_in == threading.get_ident():
                waited = (time.perf_counter() - began) - (time.thread_time() - worked)
                self._fsync += waited

        return measured

    def _page_thread(self) -> Callable[..., None]:
        serve = web.WebServer.process_request_thread

        def measured(server: Any, request: Any, client_address: Any) -> None:
            threading.current_thread().name = _PAGES
            try:
                serve(server, request, client_address)
            finally:
                with self._lock:
                    self._ended += time.thread_time()
                    threading.current_thread().name = "ended"

        return measured


@dataclass
class Window(Watcher):
    """A watcher: what was spent between the starts of two rounds, and meanwhile somebody watches."""

    meter: Meter
    first: int
    last: int
    stack: ExitStack
    log: Path
    began: dict[int, tuple[float, Costs, float, float]] = field(default_factory=dict)
    records: list[RoundRecord] = field(default_factory=list)

    def phase(self, round_number: int, name: str) -> None:
        if name == "server_step" and round_number in (self.first, self.last):
            in_all = (self.meter.telling_in_all, self.meter.purity_in_all)
            self.began[round_number] = (time.perf_counter(), self.meter.now(), *in_all)

    def round_closed(self, record: RoundRecord) -> None:
        if self.first <= record.round < self.last:
            self.records.append(record)

    def note(self, notice: Notice) -> None:
        words, _, url = notice.text.rpartition(" ")
        if words == "watch it at":
            command = [sys.executable, "-m", "tests.benchmarks._watchers_at_work", url]
            self.stack.enter_context(started(command, {}, self.log))

    @property
    def seconds(self) -> float:
        return self.began[self.last][0] - self.began[self.first][0]

    @property
    def costs(self) -> dict[str, float]:
        return self.began[self.last][1].since(self.began[self.first][1])

    @property
    def telling_in_all(self) -> float:
        return self.began[self.last][2] - self.began[self.first][2]

    @property
    def purity_in_all(self) -> float:
        return self.began[self.last][3] - self.began[self.first][3]

    @property
    def tasks(self) -> int:
        return sum(len(record.outcomes) for record in self.records)


def run() -> dict[str, Any]:
    torch.set_num_threads(1)
    hooks, scrape = _of_a_worker()
    print(f"a worker: {1e6 * hooks:.0f} µs a task, {1e3 * scrape:.2f} ms a scrape", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="fedil-metrics-") as folder,
        private_rabbitmq(Path(folder) / "rabbitmq") as rabbitmq,
        Redis(Path(folder) / "redis") as redis,
    ):
        urls = {BROKER_URL: rabbitmq.url, STORE_URL: redis.url}
        usual = _measure(_recipe(ROUNDS), Path(folder) / "usual", urls, hooks, scrape)
        print(usual, flush=True)
        many = _measure(_many_clients(), Path(folder) / "many", urls, hooks, scrape)
        print(many, flush=True)
    return {
        "name": "metrics_cost",
        "ratio": usual["ratio"],
        "bar": BAR,
        "ok": usual["ratio"] <= BAR and many["ratio"] <= BAR,
        "digits": usual,
        f"{MANY_CLIENTS}_clients_a_round": many,
        "worker_us_a_task": round(1e6 * hooks, 1),
        "worker_ms_a_scrape": round(1e3 * scrape, 2),
        "counted": "processor time in watcher calls, in finding purity, in page and survey threads and in a worker's "
        "metrics; fsync in full",
    }


def _recipe(rounds: int) -> Recipe:
    return read_recipe("digits", [f"rounds={rounds}", "baseline_epochs=0"])


def _many_clients() -> Recipe:
    changes = [f"split.clients={MANY_CLIENTS}", f"federation.clients_per_round={MANY_CLIENTS}"]
    return read_recipe("digits", [f"rounds={MANY_ROUNDS}", "baseline_epochs=0", *changes])


def _measure(
    recipe: Recipe, folder: Path, urls: dict[str, str], hooks: float, scrape: float
) -> dict[str, Any]:
    shards = folder / "shards"
    write_site_shards(recipe, DEFAULT_SITE, shards)
    meter = Meter()
    began, busy = time.monotonic(), busy_seconds_of_others()
    with ExitStack() as stack:
        window = Window(meter, FIRST, recipe.rounds, stack, folder / "watchers.log")
        for number in range(WORKERS):
            words = ["--site", DEFAULT_SITE, "--shards", str(shards), "--device", "cpu"]
            command = [sys.executable, "-m", "client_worker", *words]
            environment = {**urls, "OMP_NUM_THREADS": "1"}
            stack.enter_context(started(command, environment, folder / f"worker-{number}.log"))
        with meter.measuring():
            deployed = Deployment(
                recipe, folder / "run", urls[BROKER_URL], urls[STORE_URL], device="cpu", web=WebAddress()
            )
            deployment.serve(deployed, window, threading.Event(), meter.purity)
    purity = window.records[-1].series["purity_pseudo_labels"]
    assert purity is not None, "the share of right pseudo-labels was not measured"
    others = (busy_seconds_of_others() - busy) / (time.monotonic() - began)
    rounds, seconds = recipe.rounds - FIRST, window.seconds
    costs = window.costs | {
        "worker_tasks": hooks * window.tasks / WORKERS,
        "worker_scrapes": scrape * seconds / (SCRAPED_EVERY * EVERY_SECONDS),
    }
    return {
        "ratio": round(sum(costs.values()) / seconds, 5),
        "shares": {name: round(value / seconds, 5) for name, value in costs.items()},
        "ms_a_round": {name: round(1000 * value / rounds, 2) for name, value in costs.items()},
        "share_telling_with_waiting_for_a_processor": round(window.telling_in_all / seconds, 5),
        "share_purity_with_waiting_for_redis": round(window.purity_in_all / seconds, 5),
        "seconds_a_round": round(seconds / rounds, 3),
        "rounds": rounds,
        "history_bytes_a_round": (folder / "run" / "history.jsonl").stat().st_size // recipe.rounds,
        "cores_of_others": round(others, 2),
    }


def _of_a_worker(tasks: int = 2000, scrapes: int = 200) -> tuple[float, float]:
    """Processor seconds of a task's counting, and of answering a scrape."""
    metrics = WorkerMetrics("here", "cpu")
    told = {"seconds_fetch": 0.01, "seconds_train": 0.3, "images_per_second": 500.0, "sure_share": 0.5}
    losses = {f"loss_{name}": 0.5 for name in ("pseudo", "pseudo_weak", "consistency", "credible")}
    update = Update("run", 1, 0, 1, 1, 70, 20, {}, told | losses)
    began = time.thread_time()
    for _ in range(tasks):
        metrics.began()
        metrics.trained(update, "fedil")
        metrics.published(0.01)
        metrics.ended(ANSWERED)
    hooks = (time.thread_time() - began) / tasks
    metrics.watch_traffic(lambda: ({"update": 1}, {"model": 1, "task": 1}))
    meter = Meter()
    routes: dict[str, web.Route] = {"/metrics": lambda _: web.Reply(metrics.render(), EXPOSITION)}
    with meter.measuring(), web.WebServer(WebAddress(), routes) as server:
        connection = Connection(server.place)
        connection.ask("/metrics")
        before = meter.now()
        for _ in range(scrapes):
            assert connection.ask("/metrics")
        return hooks, (meter.now().pages - before.pages) / scrapes
