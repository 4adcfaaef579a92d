"""A worker's metrics: their names, and the outcomes of tasks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_config.protocol.errors import BrokerUnavailable
from broker_config.protocol.messages import ModelEntry, TrainTask, Update
from broker_config.transports.interface import Buffers, ModelAddress
from broker_config.transports.memory.transport import MemoryTransport
from client_worker.metrics import OUTCOMES, WorkerMetrics
from client_worker.stopping import Interrupted
from client_worker.training import OutOfMemory
from tests.exposition import by_label, num_series, promtool_complaints, types, value, values
from tests.federation import RUN
from tests.unit.client_worker.bench import TASKS, Bench, serve_one

NAMES = {
    "fedil_worker_info": "gauge",
    "fedil_worker_tasks_total": "counter",
    "fedil_worker_busy": "gauge",
    "fedil_worker_task_duration_seconds": "histogram",
    "fedil_worker_images_total": "counter",
    "fedil_worker_images_per_second": "gauge",
    "fedil_worker_micro_batch": "gauge",
    "fedil_worker_device_memory_bytes": "gauge",
    "fedil_transport_bytes_total": "counter",
}


def tasks(metrics: WorkerMetrics) -> dict[str, float]:
    """Outcome → count, without zeros"""
    shown = by_label(metrics.render(), "fedil_worker_tasks_total", "outcome")
    assert set(shown) == set(OUTCOMES)
    return {outcome: count for outcome, count in shown.items() if count}


class Counted:
    """A worker with a task in its queue."""

    def __init__(self, folder: Path, task: Callable[[Bench], dict[str, Any]] = lambda _: {}) -> None:
        self.metrics = WorkerMetrics("here", "cpu")
        self.bench = Bench(folder)
        self.participant = self.bench.participant(counts=self.metrics)
        self.put(**task(self.bench))

    def put(self, **task: Any) -> None:
        self.bench.put(self.bench.task(**task))

    def serve(self) -> None:
        serve_one(self.bench, self.participant)

    def training(self, train: Callable[[TrainTask], Update]) -> None:
        self.participant._trainer.train = train  # type: ignore[assignment, method-assign]


def test_every_metric_is_there_once_and_no_other() -> None:
    shown = types(WorkerMetrics("here", "cpu").render())
    assert {name: kind for name, kind in shown.items() if name.startswith("fedil_")} == NAMES
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} <= shown.keys()


def test_before_the_first_task_only_the_worker_itself_is_described() -> None:
    metrics = WorkerMetrics("here", "cuda:1")
    text = metrics.render()
    assert value(text, "fedil_worker_info", site="here", device="cuda:1") == 1
    assert value(text, "fedil_worker_busy") == 0
    assert value(text, "fedil_worker_images_total") == 0
    for name in ("images_per_second", "loss", "micro_batch", "device_memory_bytes"):
        assert values(text, f"fedil_worker_{name}") == {}
    assert tasks(metrics) == {}


def test_a_task_is_measured(tmp_path: Path) -> None:
    worker = Counted(tmp_path)
    worker.metrics.watch_memory(lambda: 12345)
    transport = worker.participant._transport
    worker.metrics.watch_traffic(lambda: (transport.bytes_sent, transport.bytes_received))
    worker.serve()
    update, text = worker.bench.update(), worker.metrics.render()
    assert tasks(worker.metrics) == {"answered": 1}
    assert value(text, "fedil_worker_images_total") == update.num_samples * 2
    assert value(text, "fedil_worker_images_per_second") == update.metrics["images_per_second"]
    assert value(text, "fedil_worker_device_memory_bytes") == 12345
    seconds = "fedil_worker_task_duration_seconds"
    assert value(text, f"{seconds}_sum", phase="train") == update.metrics["seconds_train"]
    assert value(text, f"{seconds}_sum", phase="fetch") == update.metrics["seconds_fetch"]
    assert value(text, f"{seconds}_count", phase="publish") == 1
    losses = by_label(text, "fedil_worker_loss", "term")
    shown = {name: loss for name, loss in update.metrics.items() if name.startswith("loss_")}
    assert {f"loss_{term}": loss for term, loss in losses.items()} == shown != {}
    assert value(text, "fedil_worker_sure_share") == update.metrics["sure_share"]
    assert values(text, "fedil_worker_credible_samples") == {}, "a total, of which the server has the sum"
    sent = by_label(text, "fedil_transport_bytes_total", "kind")
    assert sent.keys() >= {"update", "task"}
    assert promtool_complaints(text) == ""


def test_a_worker_is_busy_while_it_has_a_task(tmp_path: Path) -> None:
    worker, seen = Counted(tmp_path), []
    train = worker.participant._trainer.train

    def looked_at(task: TrainTask) -> Update:
        seen.append(value(worker.metrics.render(), "fedil_worker_busy"))
        return train(task)

    worker.training(looked_at)
    worker.serve()
    assert seen == [1]
    assert value(worker.metrics.render(), "fedil_worker_busy") == 0


def test_a_repeated_answer_counts_no_images(tmp_path: Path) -> None:
    worker = Counted(tmp_path)
    worker.put()
    worker.serve()
    images = value(worker.metrics.render(), "fedil_worker_images_total")
    worker.serve()
    assert tasks(worker.metrics) == {"answered": 1, "repeated": 1}
    assert value(worker.metrics.render(), "fedil_worker_images_total") == images


@pytest.mark.parametrize(
    ("task", "outcome"),
    [
        (lambda bench: {"model": ModelEntry(ModelAddress(RUN, 99, 0), bench.digest)}, "refused"),
        (lambda bench: {"model": ModelEntry(bench.address, "0" * 32)}, "dropped"),
        (lambda _: {"learning": '{"client": {"lrr": 1}}'}, "rejected"),
    ],
)
def test_a_task_that_fails_is_counted_by_its_outcome(
    tmp_path: Path, task: Callable[[Bench], dict[str, Any]], outcome: str
) -> None:
    worker = Counted(tmp_path, task)
    worker.serve()
    assert tasks(worker.metrics) == {outcome: 1}
    assert value(worker.metrics.render(), "fedil_worker_images_total") == 0


def test_an_answer_for_an_ended_run_is_dropped(tmp_path: Path) -> None:
    worker = Counted(tmp_path)
    body = worker.bench.transport.read_model(worker.bench.address)
    address = worker.bench.transport.append_model("over", 1, [body])
    worker.put(run="over", model=ModelEntry(address, worker.bench.digest))
    worker.serve()
    worker.serve()
    assert tasks(worker.metrics) == {"answered": 1, "dropped": 1}


def test_a_message_that_is_no_task_is_rejected(tmp_path: Path) -> None:
    worker = Counted(tmp_path)
    worker.serve()
    worker.bench.transport.publish(TASKS, [b"\x00" * 50])
    worker.serve()
    assert tasks(worker.metrics) == {"answered": 1, "rejected": 1}
    assert value(worker.metrics.render(), "fedil_worker_busy") == 0


@pytest.mark.parametrize(
    ("error", "outcome"), [(Interrupted(), "returned"), (OutOfMemory("full"), "out_of_memory")]
)
def test_a_returned_task_is_counted(tmp_path: Path, error: BaseException, outcome: str) -> None:
    worker = Counted(tmp_path)

    def fail(task: TrainTask) -> Update:
        raise error

    worker.training(fail)
    worker.serve()
    assert tasks(worker.metrics) == {outcome: 1}


class Unreachable(MemoryTransport):
    def publish(self, queue: str, body: Buffers) -> None:
        raise BrokerUnavailable("gone for good")


def test_a_task_that_returns_without_a_broker_is_counted(tmp_path: Path) -> None:
    worker = Counted(tmp_path)
    worker.participant._transport = Unreachable(worker.bench.federation.broker)
    with pytest.raises(BrokerUnavailable):
        worker.serve()
    assert tasks(worker.metrics) == {"returned": 1}
    assert value(worker.metrics.render(), "fedil_worker_busy") == 0


def test_a_micro_batch_is_shown_while_it_is_needed(tmp_path: Path) -> None:
    worker = Counted(tmp_path)
    worker.participant._trainer._micro_batch = 4
    worker.serve()
    assert value(worker.metrics.render(), "fedil_worker_micro_batch") == 4
    worker.participant._trainer._micro_batch = None
    worker.put(client=1)
    worker.serve()
    assert values(worker.metrics.render(), "fedil_worker_micro_batch") == {}


def test_numbers_that_the_method_does_not_declare_are_not_shown() -> None:
    metrics = WorkerMetrics("here", "cpu")
    shown = {"seconds_fetch": 0.1, "seconds_train": 2.0, "images_per_second": 50.0}
    hostile = {f"loss_{number}": 1.0 for number in range(1000)}
    metrics.trained(Update(RUN, 1, 0, 1, 1, 100, 5, {}, shown | hostile | {"loss_pseudo": 0.5}), "fedil")
    text = metrics.render()
    assert by_label(text, "fedil_worker_loss", "term") == {"pseudo": 0.5}
    assert num_series(text) < 80
    assert value(text, "fedil_worker_images_total") == 100
