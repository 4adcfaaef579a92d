"""Workers that come, go, die and freeze in the middle of a run over real RabbitMQ and Redis change no bit of it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from broker_config.process import retry
from client_worker.shards import write_shards
from tests.deployment import ROOT
from tests.federation import SOON, Federation, Hands, Over, OverBrokers, apart, at_work, blobs_recipe
from tests.integration.gated_network import Gate, Gated
from tests.services import Service
from tests.serving import until

GATE = "FEDIL_TEST_GATE"
NETWORK = "tests.integration.test_elastic:gated_at_workers"
# Worker processes may take minutes to start on a busy machine, and no deadline is tested with them.
RECIPE = blobs_recipe(network={"name": NETWORK}, federation={"site_timeout_seconds": 600.0})
PATIENCE = 600.0


class OpenGate(Gate):
    def is_open(self) -> bool:
        return True

    def arrive(self) -> None:
        pass


def gated_at_workers(_: tuple[int, ...], __: int) -> nn.Module:
    """The server's process has no gate."""
    folder = os.environ.get(GATE)
    return Gated(Gate(folder) if folder else OpenGate(""))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    federation = Federation(RECIPE, tmp_path_factory.mktemp("undisturbed"))
    federation.play()
    return federation.digests()


class Worker:
    """A process of the federation's site, which trains only while its own gate is open."""

    def __init__(
        self, federation: OverBrokers, name: str, *, opened: bool, heartbeat_seconds: int = 20
    ) -> None:
        shards = federation.directory / "shards"
        if not shards.exists():
            inputs = federation.train.inputs.numpy()
            write_shards(shards, {c: inputs[rows] for c, rows in enumerate(federation.split.clients)})
        folder = federation.directory / name
        folder.mkdir(parents=True)
        self.gate, self._log = Gate(folder), folder / "output.log"
        if opened:
            self.gate.open()
        words = ["--site", federation.site, "--shards", str(shards), "--device", "cpu"]
        words += ["--plugin", "tests.federation:blobs", "--plugin", NETWORK]
        environment = {
            "FEDIL_BROKER_URL": f"{federation.broker_url}?heartbeat={heartbeat_seconds}",
            "FEDIL_STORE_URL": federation.store_url,
            GATE: str(folder),
        }
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "client_worker", *words],
                cwd=ROOT,
                env=os.environ | environment,
                stdout=log,
                stderr=log,
            )

    def said(self) -> str:
        return self._log.read_text("utf-8")

    def until_it_says(self, text: str) -> None:
        until(lambda: text in self.said(), self.said, PATIENCE)

    def until_training(self) -> None:
        until(self.gate.arrivals, self.said, PATIENCE)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


Start = Callable[..., Worker]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def start(*args: Any, **kwargs: Any) -> Worker:
            worker = Worker(*args, **kwargs)
            stack.callback(worker.end)
            return worker

        yield start


def test_a_worker_that_joins_in_the_middle_takes_part(over: Over, undisturbed: tuple[str, str]) -> None:
    federation, others_answered = over(RECIPE), threading.Event()
    federation.diary.on_update = lambda _, answered: others_answered.set() if answered == 2 else None
    hands, server = Hands(federation), federation.serve()
    (task,) = hands.take(1)
    with at_work(federation.participant()):
        assert others_answered.wait(SOON)
        hands.answer(task)
        outcome = server.result(SOON)
    assert (outcome.model_digest, outcome.ledger_digest) == undisturbed


def test_a_worker_that_is_killed_in_training_loses_nothing_though_nobody_else_is_there(
    over: Over, start: Start, undisturbed: tuple[str, str]
) -> None:
    federation = over(RECIPE)
    server = federation.serve()
    killed = start(federation, "killed", opened=False)
    killed.until_training()
    killed.end()
    assert not server.done()
    start(federation, "later", opened=True)
    outcome = server.result(PATIENCE)
    assert (outcome.model_digest, outcome.ledger_digest) == undisturbed
    assert federation.diary.notes == ["started 1 of 3"]


def test_a_worker_that_is_asked_to_stop_gives_its_task_to_another_and_status_shows_them(
    over: Over, start: Start, undisturbed: tuple[str, str]
) -> None:
    federation = over(RECIPE)
    server = federation.serve()
    stopping = start(federation, "stopping", opened=False)
    stopping.until_training()
    start(federation, "staying", opened=True)
    until(lambda: run_facts(federation)["answered"] == 2, lambda: status(federation), PATIENCE)
    until(lambda: states(federation) == ["idle", "training"], lambda: status(federation), PATIENCE)
    facts = run_facts(federation)
    assert (facts["state"], facts["phase"], facts["round"]) == ("running", "wait", 1)
    assert facts["sites"] == {federation.site: 6}
    assert facts["answered"] == 2
    stopping.process.send_signal(signal.SIGTERM)
    assert stopping.process.wait(PATIENCE) == 0
    assert "asked to stop, the task goes back" in stopping.said()
    outcome = server.result(PATIENCE)
    assert (outcome.model_digest, outcome.ledger_digest) == undisturbed
    finished = status(federation)["finished"][federation.recipe.name]
    assert (finished["state"], finished["round"]) == ("done", 3)
    assert finished["recent"][-1]["round"] == 3


def status(federation: OverBrokers) -> Any:
    command = [sys.executable, "-m", "ops.cli", "status", "--json", "--store", federation.store_url]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return json.loads(told.stdout)


def run_facts(federation: OverBrokers) -> Any:
    return status(federation)["runs"].get(federation.recipe.name, {"answered": None})


def states(federation: OverBrokers) -> list[str]:
    workers = status(federation)["workers"].get(federation.site, {})
    return sorted(facts["state"] for facts in workers.values())


def test_the_task_of_a_frozen_worker_goes_to_another_and_its_late_answer_does_no_harm(
    over: Over, start: Start, undisturbed: tuple[str, str]
) -> None:
    federation = over(RECIPE)
    frozen = start(federation, "frozen", opened=False, heartbeat_seconds=2)

    def thaw(number: int, answered: int) -> None:
        """In the middle of round 2, which goes on when the frozen worker has sent its answer of round 1."""
        if (number, answered) == (2, 1):
            frozen.gate.open()
            frozen.process.send_signal(signal.SIGCONT)
            frozen.until_it_says("a message returns to its queue")

    federation.diary.on_update = thaw
    server = federation.serve()
    frozen.until_training()
    frozen.process.send_signal(signal.SIGSTOP)
    start(federation, "other", opened=True)
    outcome = server.result(PATIENCE)
    assert (outcome.model_digest, outcome.ledger_digest) == undisturbed
    assert sum(record.refused.get("late", 0) for record in federation.diary.records) == 1
    assert any(
        note.startswith("round 1, client ") and note.endswith(": late") for note in federation.diary.notes
    )


def test_time_in_which_the_store_was_away_does_not_count_for_a_rounds_deadline(
    rabbitmq: Service, own_redis: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline, longest_pause = 15.0, 1.0
    monkeypatch.setattr(retry, "MAX_DELAY_SECONDS", longest_pause)
    recipe = apart(blobs_recipe(rounds=1, federation={"deadline_seconds": deadline}))
    with OverBrokers(recipe, tmp_path, broker_url=rabbitmq.url, store_url=own_redis.url) as federation:
        hands, server = Hands(federation), federation.serve()
        updates = [hands.train(task) for task in hands.take(3)]
        own_redis.kill()
        time.sleep(deadline + 1.0)
        own_redis.start()
        assert federation.ledgers.latest(recipe.name)
        # A server that counted all that time would have given up by now.
        time.sleep(longest_pause + 1.0)
        for update in updates:
            hands.send(update)
        assert server.result(SOON).rounds_done == 1
