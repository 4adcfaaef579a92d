"""A federation with a task in its queue and no server."""

from pathlib import Path
from typing import Any

import torch

from broker_config.brokers.topology import tasks_queue, updates_queue
from broker_config.protocol.buffers import digest
from broker_config.protocol.messages import ModelEntry, Refusal, TrainTask, Update
from broker_config.protocol.wire import decode_message, encode_arrays, encode_message
from broker_config.transports.interface import Delivery
from broker_config.transports.memory.transport import MemoryTransport
from client_worker.participant import Participant
from client_worker.training import Trainer
from fedil_model.training.flat_model import FlatModel, Weights, to_arrays
from server_worker.run.inputs import network_of
from tests.federation import RUN, SITE, ArrayShards, Federation, blobs_recipe

TASKS, UPDATES = tasks_queue(SITE), updates_queue(RUN, SITE)
CPU = torch.device("cpu")


class Bench:
    def __init__(self, directory: Path, **changes: object) -> None:
        self.federation = Federation(blobs_recipe(**changes), directory)
        self.transport = MemoryTransport(self.federation.broker)
        self.transport.declare(TASKS, UPDATES)
        recipe, dataset = self.federation.recipe, self.federation.dataset
        start = FlatModel(network_of(recipe, dataset)).weights()
        weights = start.tensors("global") | Weights(start.params + 0.01, start.buffers).tensors("server")
        body = encode_arrays("model", {}, to_arrays(weights))
        self.address = self.transport.append_model(RUN, 1, body)
        self.digest = digest(body)

    def task(self, client: int = 0, activation: int = 1, **changes: Any) -> TrainTask:
        fields: dict[str, Any] = {
            "run": RUN,
            "round": 1,
            "client": client,
            "activation": activation,
            "model": ModelEntry(self.address, self.digest),
            "learning": self.federation.recipe.learning().model_dump_json(),
        }
        return TrainTask(**(fields | changes))

    def trainer(self, **more: Any) -> Trainer:
        federation = self.federation
        shards = ArrayShards(federation.train.inputs, federation.split.clients)
        plugins = [federation.recipe.data.name]
        return Trainer(MemoryTransport(federation.broker), federation.store, shards, CPU, plugins, **more)

    def participant(self, trainer: Trainer | None = None, **more: Any) -> Participant:
        transport = MemoryTransport(self.federation.broker)
        return Participant(transport, trainer or self.trainer(), SITE, **more)

    def put(self, task: TrainTask) -> None:
        self.transport.publish(TASKS, encode_message(task))

    def receive(self, queue: str) -> Delivery | None:
        return self.transport.receive(queue, 0.0)

    def answer(self) -> Update | Refusal | TrainTask:
        delivery = self.receive(UPDATES)
        assert delivery is not None
        delivery.acknowledge()
        return decode_message(delivery.body)

    def update(self) -> Update:
        answer = self.answer()
        assert isinstance(answer, Update)
        return answer

    def refusal(self) -> Refusal:
        answer = self.answer()
        assert isinstance(answer, Refusal)
        return answer


def serve_one(bench: Bench, participant: Participant | None = None) -> None:
    participant = participant or bench.federation.participant()
    delivery = participant._transport.receive(TASKS, 1.0)
    assert delivery is not None
    participant._handle(delivery)
