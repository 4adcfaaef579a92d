"""Workers as a site runs them: real processes, real signals, and a broker that may go away."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker_config.brokers.topology import workers_topic
from broker_config.embedded.server import BrokerServer
from broker_config.protocol.messages import Update
from broker_config.protocol.wire import decode_message
from client_worker.shards import write_shards
from tests.federation import RUN, SITE
from tests.integration.gated_network import Gate
from tests.unit.client_worker.bench import TASKS, UPDATES, Bench

GATED = "tests.integration.gated_network:gated"
PATIENCE = 600.0


class Site:
    """A served broker with a task in it, and the workers of one site."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        (folder / "gate").mkdir()
        self.gate = Gate(folder / "gate")
        options = {"folder": str(folder / "gate")}
        self.bench = Bench(folder, network={"name": GATED, "options": options})
        federation = self.bench.federation
        inputs = federation.train.inputs.numpy()
        self.shards = folder / "shards"
        write_shards(self.shards, {c: inputs[rows] for c, rows in enumerate(federation.split.clients)})
        # Short: a socket's path may have about 100 characters.
        self._socket = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedil-"))) / "broker"
        self._log = folder / "workers.log"
        self._stack = stack
        self.server = self.serve()

    def serve(self) -> BrokerServer:
        federation = self.bench.federation
        return self._stack.enter_context(BrokerServer(federation.broker, federation.store, self._socket))

    def start(self, *options: str) -> "subprocess.Popen[bytes]":
        words = ["--site", SITE, "--shards", str(self.shards), "--device", "cpu"]
        words += ["--plugin", "tests.federation:blobs", "--plugin", GATED]
        addresses = {"FEDIL_BROKER_URL": self.server.url, "FEDIL_STORE_URL": self.server.url}
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "client_worker", *words, *options],
                stderr=log,
                stdout=log,
                env=os.environ | addresses,
            )
        self._stack.callback(end, process)
        return process

    def said(self) -> str:
        return self._log.read_text()

    def notices(self) -> dict[str, dict[str, Any]]:
        return self.bench.federation.store.notices(workers_topic(SITE))

    def pids(self) -> set[int]:
        return {facts["pid"] for facts in self.notices().values()}

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"nothing happened; {self.said()}"
            time.sleep(0.01)

    def until_training(self) -> None:
        self.until(self.gate.arrivals)

    def update(self) -> Update:
        delivery = self.bench.transport.receive(UPDATES, PATIENCE)
        assert delivery is not None, self.said()
        answer = decode_message(delivery.body)
        assert isinstance(answer, Update)
        return answer

    def assert_task_is_back(self) -> None:
        returned = self.bench.transport.receive(TASKS, PATIENCE)
        assert returned is not None, self.said()
        assert returned.redelivered
        assert self.bench.receive(UPDATES) is None
        assert self.bench.federation.store.latest(RUN) == {}

    def assert_task_is_settled(self, update: Update) -> None:
        assert (update.client, update.activation) == (0, 1)
        assert self.bench.receive(TASKS) is None
        assert self.bench.federation.store.latest(RUN)[0][0] == 1


def end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_in_training_a_worker_gives_its_task_back_at_once(
    site: Site, number: signal.Signals
) -> None:
    site.bench.put(site.bench.task())
    worker = site.start()
    site.until_training()
    site.until(lambda: [facts["state"] for facts in site.notices().values()] == ["training"])
    (facts,) = site.notices().values()
    assert (facts["pid"], facts["device"], facts["run"]) == (worker.pid, "cpu", RUN)
    worker.send_signal(number)
    assert worker.wait(PATIENCE) == 0
    site.assert_task_is_back()
    assert site.notices() == {}
    assert "asked to stop, the task goes back" in site.said()


def test_within_its_grace_period_a_worker_finishes_its_task(site: Site) -> None:
    site.bench.put(site.bench.task())
    site.bench.put(site.bench.task(client=1))
    worker = site.start("--grace", "600")
    site.until_training()
    worker.send_signal(signal.SIGTERM)
    site.gate.open()
    assert worker.wait(PATIENCE) == 0
    untouched = site.bench.receive(TASKS)
    assert untouched is not None
    assert not untouched.redelivered, "after the signal no new task is taken"
    site.assert_task_is_settled(site.update())


def test_after_its_grace_period_a_worker_gives_its_task_back(site: Site) -> None:
    site.bench.put(site.bench.task())
    worker = site.start("--grace", "0.3")
    site.until_training()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    site.assert_task_is_back()


def test_a_second_signal_stops_at_once_and_the_broker_redelivers(site: Site) -> None:
    site.bench.put(site.bench.task())
    worker = site.start("--grace", "600")
    site.until_training()

    def signalled_to_death() -> bool:
        worker.send_signal(signal.SIGTERM)
        return worker.poll() is not None

    site.until(signalled_to_death)
    assert worker.returncode == 128 + signal.SIGTERM
    site.assert_task_is_back()


def test_an_idle_worker_stops_when_asked(site: Site) -> None:
    worker = site.start()
    site.until(lambda: [facts["state"] for facts in site.notices().values()] == ["idle"])
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert site.notices() == {}


def test_a_worker_outlives_its_broker_and_does_not_train_again(site: Site) -> None:
    site.bench.put(site.bench.task())
    worker = site.start()
    site.until_training()
    site.server.close()  # the task goes back to its queue
    site.gate.open()
    site.until(lambda: "trying again" in site.said())
    site.server = site.serve()
    first, second = site.update(), site.update()
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert np.array_equal(first.tensors["delta.params"], second.tensors["delta.params"])
    assert "answered again without training" in site.said()
    assert site.gate.arrivals() == 1
    site.assert_task_is_settled(second)


def test_a_worker_without_a_broker_stops_when_asked(site: Site) -> None:
    worker = site.start()
    site.until(site.notices)
    site.server.close()
    site.until(lambda: "trying again" in site.said())
    worker.terminate()
    assert worker.wait(PATIENCE) == 0


def test_a_worker_may_be_up_before_its_broker(site: Site) -> None:
    site.server.close()
    worker = site.start()
    site.until(lambda: "trying again" in site.said())
    site.gate.open()
    site.bench.put(site.bench.task())
    site.server = site.serve()
    update = site.update()
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    site.assert_task_is_settled(update)


def alive(pids: set[int]) -> bool:
    return any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_of_several_processes_one_that_dies_is_replaced_and_all_stop_together(site: Site) -> None:
    parent = site.start("--processes", "2")
    site.until(lambda: len(site.pids()) == 2)
    before = site.pids()
    assert parent.pid not in before
    victim = min(before)
    assert site.server.url.encode() not in Path(f"/proc/{victim}/cmdline").read_bytes()
    os.kill(victim, signal.SIGKILL)
    site.until(lambda: site.pids() - before)
    assert "died (exit code -9)" in site.said()
    everyone = before | site.pids()
    site.gate.open()
    site.bench.put(site.bench.task())
    update = site.update()
    parent.terminate()
    assert parent.wait(PATIENCE) == 0
    assert not alive(everyone)
    site.assert_task_is_settled(update)


def test_several_processes_give_their_tasks_back_when_the_parent_is_asked_to_stop(site: Site) -> None:
    site.bench.put(site.bench.task())
    site.bench.put(site.bench.task(client=1))
    parent = site.start("--processes", "2")
    site.until(lambda: site.gate.arrivals() == 2)
    parent.send_signal(signal.SIGINT)
    assert parent.wait(PATIENCE) == 0
    site.assert_task_is_back()
    site.assert_task_is_back()


def test_processes_do_not_outlive_a_parent_that_is_killed(site: Site) -> None:
    site.bench.put(site.bench.task())
    parent = site.start("--processes", "2")
    site.until(lambda: len(site.pids()) == 2)
    site.until_training()
    children = site.pids()
    parent.kill()
    parent.wait()
    site.until(lambda: not alive(children))
    site.assert_task_is_back()
