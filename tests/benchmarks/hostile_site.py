"""Two sites at one RabbitMQ and one Redis: how long the rounds of one take while the other's credentials are used for
an attack, against those of a run that nothing disturbs, played just before.

A round of the other site lasts from the round's beginning to the last answer of that site's clients. Like is compared
with like: the median of the attacked rounds with the median of as many undisturbed ones, and the worst with the worst.
The hostile site has honest workers too, whose answers must count: every run has the digest of the undisturbed one.

The attacker runs in the scheduling class idle, as if it had a machine of its own; what the brokers took from it
meanwhile is in the results, and how much processor time server and brokers spent on a round.
"""

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker_config.process.addresses import BROKER_URL, STORE_URL
from ops.cli.commands.shards import write_site_shards
from ops.cli.recipe_files import read_recipe
from ops.doctor.brokers import BrokerAddresses, check_brokers
from server_worker.deployment import Deployment, serve
from server_worker.run.recipe import Recipe
from server_worker.watch.events import ClientOutcome, Watcher
from server_worker.watch.notices import Notice
from tests.benchmarks._attacks import ATTACKS
from tests.benchmarks._processes import cpu_seconds, started
from tests.integration.configured_brokers import Brokers, configured_brokers

BAR = 1.5
HOSTILE, OTHER = "north", "south"
ROUNDS, ATTACKED_FROM = 24, 4
"""The first rounds are slower: workers start."""
MEMORY = "200mb"


@dataclass
class Stopwatch(Watcher):
    """A watcher that keeps how long the other site took in each round, and what the server said."""

    clients: range
    on_round: threading.Event = field(default_factory=threading.Event)
    began: dict[int, float] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    brokers: dict[str, int] = field(default_factory=dict)
    """Process ids"""
    cpu: dict[int, dict[str, float]] = field(default_factory=dict)
    """Seconds by process, at the beginning of the first attacked round and of the last"""

    def phase(self, round_number: int, name: str) -> None:
        if name == "server_step":
            self.began[round_number] = time.monotonic()
            if round_number in (ATTACKED_FROM, ROUNDS):
                self.cpu[round_number] = {"server": time.process_time()} | {
                    broker: cpu_seconds(pid) for broker, pid in self.brokers.items()
                }
            if round_number == ATTACKED_FROM:
                self.on_round.set()

    def cpu_per_round(self) -> dict[str, float]:
        first, last = self.cpu[ATTACKED_FROM], self.cpu[ROUNDS]
        return {name: (last[name] - first[name]) / (ROUNDS - ATTACKED_FROM) for name in first}

    def update_arrived(self, round_number: int, outcome: ClientOutcome, answered: int, selected: int) -> None:
        if outcome.client in self.clients:
            self.seconds[round_number] = time.monotonic() - self.began[round_number]

    def note(self, notice: Notice) -> None:
        self.notes.append(str(notice))


@dataclass(frozen=True)
class Played:
    seconds: list[float]
    """The other site's, of the attacked rounds"""
    total: float
    """Of all these rounds"""
    digests: tuple[str, str]
    names_the_site: bool
    cpu: dict[str, float]
    """Seconds of server and brokers in one of these rounds"""
    delivered: dict[str, int]
    """What the attacker did"""

    def figures(self) -> dict[str, Any]:
        return {
            "median_seconds": round(statistics.median(self.seconds), 2),
            "worst_seconds": round(max(self.seconds), 2),
            "seconds_of_all_rounds": round(self.total, 1),
            "cpu_seconds_per_round": {name: round(seconds, 3) for name, seconds in self.cpu.items()},
        }

    def against(self, quiet: "Played") -> dict[str, Any]:
        return {
            "ratio_of_medians": round(statistics.median(self.seconds) / statistics.median(quiet.seconds), 2),
            "ratio_of_worst": round(max(self.seconds) / max(quiet.seconds), 2),
            "names_the_site": self.names_the_site,
            "delivered": self.delivered,
            **self.figures(),
            "undisturbed": quiet.figures(),
        }


def run(attacks: str = ",".join(ATTACKS)) -> dict[str, Any]:
    recipe, busy = _recipe(), os.getloadavg()[0]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="fedil-hostile-") as name:
        folder = Path(name)
        for site in recipe.sites:
            write_site_shards(recipe, site, folder / "shards" / site)
        for attack in attacks.split(","):
            quiet = _play(recipe, folder / f"before-{attack}", None)
            played = _play(recipe, folder / attack, attack)
            assert played.digests == quiet.digests, f"{attack}: the run ended otherwise"
            found[attack] = played.against(quiet)
            print(f"{attack}: {found[attack]}", flush=True)
    ratio = max(figures["ratio_of_medians"] for figures in found.values())
    worst = max(figures["ratio_of_worst"] for figures in found.values())
    return {
        "name": "hostile_site",
        "ratio": ratio,
        "ratio_of_worst": worst,
        "bar": BAR,
        "ok": max(ratio, worst) <= BAR and all(figures["names_the_site"] for figures in found.values()),
        "attacks": found,
        "rounds": ROUNDS,
        "digests": quiet.digests,
        "load_average_before": round(busy, 1),
    }


def _recipe() -> Recipe:
    changes = {
        "rounds": ROUNDS,
        "evaluate_every": ROUNDS,
        "baseline_epochs": 0,
        "federation.clients_per_round": 6,
        "federation.deadline_seconds": 600.0,
        "federation.sites": f"{{ {HOSTILE} = 10, {OTHER} = 10 }}",
        "federation.min_sites": "1",  # what is measured is the other site, with or without it
    }
    return read_recipe("digits", [f"{key}={value}" for key, value in changes.items()])


def _play(recipe: Recipe, own: Path, attack: str | None) -> Played:
    watch = Stopwatch(recipe.sites[OTHER])
    own.mkdir()
    with ExitStack() as stack:
        limits = ["--maxmemory", MEMORY]
        brokers = stack.enter_context(configured_brokers(own, HOSTILE, OTHER, redis_options=limits))
        watch.brokers = {"rabbitmq": brokers.rabbitmq.pid, "redis": brokers.redis.pid}
        for site in recipe.sites:
            stack.enter_context(_worker(brokers, site, own))
        if attack is not None:
            stack.enter_context(_attacked(attack, brokers, recipe.name, watch.on_round, own))
        server = Deployment(
            recipe, own / "run", brokers.broker_url("server"), brokers.store_url("server"), recipe.name, "cpu"
        )
        done = serve(server, watch, threading.Event())
        said = [*watch.notes, *_findings(brokers)]
    attacked = range(ATTACKED_FROM, ROUNDS + 1)
    return Played(
        [watch.seconds[number] for number in attacked if number in watch.seconds],
        watch.began[ROUNDS] - watch.began[ATTACKED_FROM],
        (done.model_digest, done.ledger_digest),
        any(f"site {HOSTILE}" in words or f"user site-{HOSTILE}" in words for words in said),
        watch.cpu_per_round(),
        _delivered(own / f"{attack}.log") if attack else {},
    )


def _delivered(log: Path) -> dict[str, int]:
    counts = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("{")]
    return dict(json.loads(counts[-1])) if counts else {}


def _worker(brokers: Brokers, site: str, own: Path) -> Any:
    urls = {
        BROKER_URL: brokers.broker_url(f"site-{site}"),
        STORE_URL: brokers.store_url(f"site-{site}"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "client_worker", "--site", site, "--device", "cpu"]
    command += ["--shards", str(own.parent / "shards" / site)]
    return started(command, urls, own / f"worker-{site}.log")


@contextmanager
def _attacked(attack: str, brokers: Brokers, run: str, begin: threading.Event, own: Path) -> Iterator[None]:
    user, ended = f"site-{HOSTILE}", threading.Event()
    where = [brokers.broker_url(user), brokers.store_url(user), HOSTILE, run]
    command = [sys.executable, "-m", "tests.benchmarks._attacks", attack, *where]

    def wait_and_attack() -> None:
        begin.wait()
        if not ended.is_set():
            with started(command, {}, own / f"{attack}.log"):
                ended.wait()

    thread = threading.Thread(target=wait_and_attack)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        begin.set()
        thread.join()


def _findings(brokers: Brokers) -> list[str]:
    """What `fedil broker check` says is wrong."""
    addresses = BrokerAddresses(None, None, brokers.management_url)
    findings = check_brokers(addresses, deadline_seconds=600.0)
    return [str(finding) for finding in findings if finding.is_wrong]
