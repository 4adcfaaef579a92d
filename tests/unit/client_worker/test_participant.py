import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import client_worker.participant
from broker_config.brokers.topology import DEAD_LETTERS
from broker_config.process.logs import set_up_logs
from broker_config.protocol.errors import BrokerUnavailable
from broker_config.protocol.messages import ModelEntry, Refusal, TrainTask, Update
from broker_config.transports.interface import Buffers, ModelAddress
from broker_config.transports.memory.broker import EmbeddedBroker
from broker_config.transports.memory.transport import MemoryTransport
from client_worker.participant import Participant
from client_worker.shards import ShardFolder, write_shards
from client_worker.stopping import Interrupted
from client_worker.training import Trainer
from tests.federation import RUN, SITE, blobs_recipe
from tests.unit.client_worker.bench import CPU, TASKS, UPDATES, Bench, serve_one


class BrokenNetwork(nn.Module):
    """Passes the check at the start, which learns nothing, and breaks in training."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("a bug in the user's network")
        out: Tensor = self.fc(x)
        return out


def broken(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return BrokenNetwork()


def test_a_task_becomes_an_update_and_a_ledger_and_is_acknowledged(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(bench.task())
    serve_one(bench)
    update = bench.answer()
    assert isinstance(update, Update)
    assert (update.client, update.activation, update.base_version) == (0, 1, 1)
    assert update.num_samples == len(bench.federation.split.clients[0])
    assert np.linalg.norm(update.tensors["delta.params"]) > 0
    assert bench.federation.store.latest(RUN)[0][0] == 1
    assert bench.receive(TASKS) is None


def test_a_task_done_twice_gives_the_same_update_and_one_ledger(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(bench.task())
    bench.put(bench.task())
    serve_one(bench)
    first, ledger = bench.answer(), bench.federation.store.latest(RUN)[0]
    serve_one(bench)
    second = bench.answer()
    assert isinstance(first, Update)
    assert isinstance(second, Update)
    assert np.array_equal(first.tensors["delta.params"], second.tensors["delta.params"])
    assert bench.federation.store.latest(RUN)[0] == ledger


def test_an_overtaken_task_is_dropped_without_an_answer(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.federation.store.open_activation(RUN, 0, 2)
    bench.put(bench.task(activation=1))
    serve_one(bench)
    assert bench.receive(UPDATES) is None
    assert bench.receive(TASKS) is None
    assert bench.federation.store.latest(RUN) == {}


def test_a_model_that_has_left_the_log_is_told_to_the_server(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(bench.task(model=ModelEntry(ModelAddress(RUN, 99, 0), bench.digest)))
    serve_one(bench)
    refusal = bench.refusal()
    assert (refusal.reason, refusal.round, refusal.client, refusal.activation) == ("ModelMissing", 1, 0, 1)
    assert bench.receive(TASKS) is None


def test_a_task_whose_model_was_rewritten_makes_way_for_the_good_one_behind_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path)
    participant = bench.participant()
    bench.put(bench.task(model=ModelEntry(bench.address, "0" * 32)))
    bench.put(bench.task())
    serve_one(bench, participant)
    assert "dropped (model 1 is" in caplog.text
    assert bench.receive(UPDATES) is None, "a refusal would count against the good one"
    assert bench.receive(DEAD_LETTERS) is None
    serve_one(bench, participant)
    assert bench.update().activation == 1
    assert bench.receive(TASKS) is None


def test_a_task_with_settings_that_are_none_is_dead_lettered(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(bench.task(learning='{"client": {"lrr": 1}}'))
    serve_one(bench)
    letter = bench.receive(DEAD_LETTERS)
    assert letter is not None
    assert letter.reason == "schema"


@pytest.mark.parametrize(("num_bytes", "reason"), [(50, "not_fedil"), (5 << 20, "too_large")])
def test_garbage_in_the_task_queue_is_dead_lettered(tmp_path: Path, num_bytes: int, reason: str) -> None:
    bench = Bench(tmp_path)
    bench.transport.publish(TASKS, [bytes(num_bytes)])
    serve_one(bench)
    letter = bench.receive(DEAD_LETTERS)
    assert letter is not None
    assert letter.reason == reason


def test_training_that_diverges_is_refused_with_the_setting_to_change(tmp_path: Path) -> None:
    bench = Bench(tmp_path, client={"lr": 1e30, "clip_norm": 0.0})
    bench.put(bench.task())
    serve_one(bench)
    refusal = bench.answer()
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "NumericError"
    assert "client.lr" in refusal.detail
    assert bench.federation.store.latest(RUN) == {}


def test_a_bug_in_a_users_network_is_refused_and_the_worker_lives_on(tmp_path: Path) -> None:
    name = "tests.unit.client_worker.test_participant:broken"
    bench = Bench(tmp_path, network={"name": name})
    bench.put(bench.task())
    serve_one(bench)
    refusal = bench.answer()
    assert isinstance(refusal, Refusal)
    assert "a bug in the user's network" in refusal.detail


def test_code_that_the_site_has_not_allowed_is_not_imported(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(bench.task(learning=blobs_recipe(data={"name": "os:abort"}).learning().model_dump_json()))
    serve_one(bench)
    refusal = bench.answer()
    assert isinstance(refusal, Refusal)
    assert "does not run os:abort: start it with --plugin" in refusal.detail


def test_a_worker_that_is_up_before_the_queue_waits_for_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    early = Participant(MemoryTransport(EmbeddedBroker()), bench.federation.participant()._trainer, SITE)
    assert early._next() is None
    early._transport.declare(TASKS)
    early._transport.publish(TASKS, [b"x"])
    assert early._next() is not None


def test_a_client_without_data_here_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", {0: np.zeros((2, 8), np.float32), 3: np.zeros((2, 8), np.float32)})
    bench = Bench(tmp_path)
    transport = MemoryTransport(bench.federation.broker)
    shards = ShardFolder(tmp_path / "shards")
    plugins = [bench.federation.recipe.data.name]
    trainer = Trainer(transport, bench.federation.store, shards, CPU, plugins)
    bench.put(bench.task(client=5))
    serve_one(bench, Participant(transport, trainer, SITE))
    assert "client 5 is not in" in bench.refusal().detail


def test_a_lost_ledger_is_refused_by_name(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(bench.task(activation=3, ledger_at_least=2))
    serve_one(bench)
    assert bench.refusal().reason == "LedgerMissing"
    assert bench.federation.store.latest(RUN) == {}


def test_a_worker_asked_to_stop_in_training_gives_its_task_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    participant = bench.participant()

    def interrupted(task: TrainTask) -> Update:
        participant.stopping.ask()
        raise Interrupted

    participant._trainer.train = interrupted  # type: ignore[method-assign]
    bench.put(bench.task())
    serve_one(bench, participant)
    returned = bench.receive(TASKS)
    assert returned is not None
    assert returned.redelivered
    assert bench.receive(UPDATES) is None
    participant.serve()  # returns at once


def counted_training(participant: Participant) -> list[TrainTask]:
    trained, train = [], participant._trainer.train

    def counted(task: TrainTask) -> Update:
        trained.append(task)
        return train(task)

    participant._trainer.train = counted  # type: ignore[method-assign]
    return trained


def test_a_task_that_comes_again_is_answered_again_without_training(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    participant = bench.participant()
    trained = counted_training(participant)
    moved = ModelAddress(RUN, 1, bench.address.offset + 7)  # the server was restarted and wrote it again
    for task in (bench.task(), bench.task(model=ModelEntry(moved, bench.digest))):
        bench.put(task)
        serve_one(bench, participant)
    first, second = bench.update(), bench.update()
    assert np.array_equal(first.tensors["delta.params"], second.tensors["delta.params"])
    assert len(trained) == 1
    assert bench.receive(TASKS) is None


def test_a_task_that_comes_again_is_trained_again_if_the_store_has_lost_its_ledger(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    participant, task = bench.participant(), bench.task()
    trained = counted_training(participant)
    bench.put(task)
    serve_one(bench, participant)
    ledgers = bench.federation.store.latest(RUN)
    shutil.rmtree(tmp_path / "ledgers" / RUN / str(task.client))
    assert bench.federation.store.latest(RUN) == {}
    bench.put(task)
    serve_one(bench, participant)
    assert bench.federation.store.latest(RUN) == ledgers
    assert len(trained) == 2
    first, second = bench.update(), bench.update()
    assert np.array_equal(first.tensors["delta.params"], second.tensors["delta.params"])


@pytest.mark.parametrize(
    "changes", [{"activation": 2}, {"round": 2}, {"client": 1}, {"learning": "other"}], ids=str
)
def test_another_task_is_not_answered_from_memory(tmp_path: Path, changes: dict[str, Any]) -> None:
    bench = Bench(tmp_path)
    if "learning" in changes:
        other = blobs_recipe(client={"epochs": 3, "batch_size": 16, "lr": 0.1})
        changes = {"learning": other.learning().model_dump_json()}
    participant = bench.participant()
    trained = counted_training(participant)
    for task in (bench.task(), bench.task(**changes)):
        bench.put(task)
        serve_one(bench, participant)
    assert len(trained) == 2


class Unreachable(MemoryTransport):
    def publish(self, queue: str, body: Buffers) -> None:
        raise BrokerUnavailable("gone for good")


def test_an_answer_that_could_not_be_handed_in_is_kept_and_its_task_goes_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    participant = bench.participant()
    trained = counted_training(participant)
    reachable = participant._transport
    participant._transport = Unreachable(bench.federation.broker)
    bench.put(bench.task())
    with pytest.raises(BrokerUnavailable, match="gone for good"):
        serve_one(bench, participant)
    participant._transport = reachable
    serve_one(bench, participant)
    assert bench.update().activation == 1
    assert len(trained) == 1


def test_the_answer_to_a_run_that_is_over_is_dropped_and_the_worker_lives_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path)
    participant = bench.participant()
    body = bench.transport.read_model(bench.address)
    model = ModelEntry(bench.transport.append_model("over", 1, [body]), bench.digest)
    bench.put(bench.task(run="over", model=model))
    serve_one(bench, participant)
    assert "dropped, the run is over" in caplog.text
    assert bench.receive(TASKS) is None
    assert bench.receive(DEAD_LETTERS) is None
    bench.put(bench.task())
    serve_one(bench, participant)
    assert bench.update().run == RUN


def test_each_task_is_one_line_for_people(tmp_path: Path) -> None:
    bench, log = Bench(tmp_path), tmp_path / "log"
    bench.put(bench.task(client=2))
    with set_up_logs("text", "info", log):
        serve_one(bench)
    (line,) = log.read_text("utf-8").splitlines()
    assert " INFO run blobs, round 1, client 2: trained " in line
    assert line.endswith(" images/s")


def test_it_tells_what_it_is_doing(tmp_path: Path) -> None:
    bench, told = Bench(tmp_path), []
    participant = bench.participant(tell=lambda **facts: told.append(facts))
    bench.put(bench.task(client=2))
    serve_one(bench, participant)
    assert told[0] == {"state": "training", "run": RUN, "round": 1, "client": 2}
    assert [facts["state"] for facts in told if "state" in facts] == ["training", "publishing", "idle"]
    assert told[-1]["tasks_done"] == 1
    assert next(facts["images_per_second"] for facts in told if "images_per_second" in facts) > 0


def test_without_work_for_a_while_it_lets_go_of_memory_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_worker.participant, "_REST_SECONDS", 0.0)
    monkeypatch.setattr(client_worker.participant, "_POLL_SECONDS", 0.0)
    bench, rested = Bench(tmp_path), []
    participant = bench.participant()
    monkeypatch.setattr(participant._trainer, "rest", lambda: rested.append(True))
    assert participant._next() is None
    assert participant._next() is None
    assert len(rested) == 1
    bench.put(bench.task())
    serve_one(bench, participant)
    assert participant._next() is None
    assert len(rested) == 2


def test_a_worker_reads_a_model_once_for_all_its_clients(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    participant = bench.federation.participant()
    reads, read = [], participant._transport.read_model

    def counted(address: ModelAddress) -> memoryview:
        reads.append(address)
        return read(address)

    participant._transport.read_model = counted  # type: ignore[method-assign]
    for client in (0, 1, 2):
        bench.put(bench.task(client=client))
        serve_one(bench, participant)
    assert len(reads) == 1
