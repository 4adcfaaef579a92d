from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from broker_config.messages import Refusal, TrainTask, Update
from broker_config.topology import DEAD_LETTERS, tasks_queue, updates_queue
from broker_config.transports.interface import Delivery, ModelAddress
from broker_config.transports.memory import EmbeddedBroker, MemoryTransport
from broker_config.wire import decode_message, digest, encode_arrays, encode_message
from client_worker.participant import Participant
from client_worker.shards import ShardFolder, write_shards
from client_worker.training import Trainer
from fedil_model.errors import DataError
from fedil_model.methods import make_method
from fedil_model.parameters import to_arrays
from tests.federation import RUN, SITE, Federation, blobs_recipe

TASKS, UPDATES = tasks_queue(SITE), updates_queue(RUN)


class BrokenNetwork(nn.Module):
    """Passes the check at the start and breaks in training."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise RuntimeError("a bug in the user's network")
        out: Tensor = self.fc(x)
        return out


def broken(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return BrokenNetwork()


class Bench:
    """A federation with a task in its queue and no server."""

    def __init__(self, directory: Path, **changes: object) -> None:
        self.federation = Federation(blobs_recipe(**changes), directory)
        self.transport = MemoryTransport(self.federation.broker)
        self.transport.declare(TASKS, UPDATES)
        recipe, dataset = self.federation.recipe, self.federation.dataset
        method = make_method(recipe.learning(), dataset, torch.device("cpu"))
        weights = {
            "global.params": method._student.params,  # type: ignore[attr-defined]
            "global.buffers": torch.zeros(0),
            "server.params": method._student.params + 0.01,  # type: ignore[attr-defined]
            "server.buffers": torch.zeros(0),
        }
        body = encode_arrays("model", {}, to_arrays(weights))
        self.address = self.transport.append_model(RUN, 1, body)
        self.digest = digest(body)

    def task(self, client: int = 0, activation: int = 1, **changes: Any) -> TrainTask:
        fields: dict[str, Any] = {
            "run": RUN,
            "round": 1,
            "client": client,
            "activation": activation,
            "model": self.address,
            "model_digest": self.digest,
            "learning": self.federation.recipe.learning().model_dump_json(),
        }
        return TrainTask(**(fields | changes))

    def put(self, task: TrainTask) -> None:
        self.transport.publish(TASKS, encode_message(task))

    def receive(self, queue: str) -> Delivery | None:
        return self.transport.receive(queue, 0.0)

    def answer(self) -> Update | Refusal | TrainTask:
        delivery = self.receive(UPDATES)
        assert delivery is not None
        delivery.acknowledge()
        return decode_message(delivery.body)


def serve_one(bench: Bench, participant: Participant | None = None) -> None:
    participant = participant or bench.federation.participant()
    delivery = participant._transport.receive(TASKS, 1.0)
    assert delivery is not None
    participant._handle(delivery)


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


def test_a_model_that_has_left_the_log_is_no_reason_to_die(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.put(bench.task(model=ModelAddress(RUN, 99, 0)))
    serve_one(bench)
    assert bench.receive(UPDATES) is None
    assert bench.receive(TASKS) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"model_digest": "0" * 32}, "digest"), ({"learning": '{"client": {"lrr": 1}}'}, "schema")],
)
def test_a_task_that_contradicts_itself_is_dead_lettered(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    bench = Bench(tmp_path)
    bench.put(bench.task(**changes))
    serve_one(bench)
    letter = bench.receive(DEAD_LETTERS)
    assert letter is not None
    assert letter.reason == reason


def test_garbage_in_the_task_queue_is_dead_lettered(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.transport.publish(TASKS, [b"\x00" * 50])
    serve_one(bench)
    letter = bench.receive(DEAD_LETTERS)
    assert letter is not None
    assert letter.reason == "not_fedil"


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
    write_shards(tmp_path / "shards", torch.zeros(4, 8), (np.array([0, 1]), np.array([2, 3])))
    bench = Bench(tmp_path)
    transport = MemoryTransport(bench.federation.broker)
    shards = ShardFolder(tmp_path / "shards")
    plugins = [bench.federation.recipe.data.name]
    trainer = Trainer(transport, bench.federation.store, shards, torch.device("cpu"), plugins)
    bench.put(bench.task(client=5))
    serve_one(bench, Participant(transport, trainer, SITE))
    refusal = bench.answer()
    assert isinstance(refusal, Refusal)
    assert "client 5 is not in" in refusal.detail


def test_a_worker_asked_to_stop_in_training_gives_its_task_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    participant = bench.federation.participant()
    train = participant._trainer.train

    def interrupted(task: TrainTask) -> Update:
        participant.give_back()
        return train(task)

    participant._trainer.train = interrupted  # type: ignore[method-assign]
    bench.put(bench.task())
    serve_one(bench, participant)
    returned = bench.receive(TASKS)
    assert returned is not None
    assert returned.redelivered
    assert bench.receive(UPDATES) is None
    participant.serve()  # returns at once


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


def test_shards_are_each_clients_own_samples_in_order(tmp_path: Path) -> None:
    inputs = torch.arange(20, dtype=torch.uint8).reshape(10, 2)
    write_shards(tmp_path, inputs, (np.array([7, 1]), np.array([], dtype=np.int64), np.array([0, 9, 3])))
    shards = ShardFolder(tmp_path)
    assert shards.inputs(0).tolist() == inputs[[7, 1]].tolist()
    assert shards.inputs(1).shape == (0, 2)
    assert shards.inputs(2).tolist() == inputs[[0, 9, 3]].tolist()
    with pytest.raises(DataError, match="client 3 is not in"):
        shards.inputs(3)


def test_a_folder_without_shards_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no shards in"):
        ShardFolder(tmp_path)
