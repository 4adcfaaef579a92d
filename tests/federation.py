"""A federation in one process, in miniature: the real loops, a tabular problem, rounds of some milliseconds."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from broker_config.stores.memory import MemoryStore
from broker_config.transports.memory import EmbeddedBroker, MemoryTransport
from client_worker.participant import Participant
from client_worker.training import Trainer
from fedil_model.augment import TensorViews
from fedil_model.datasets import open_dataset
from fedil_model.datasets.interface import Dataset, Samples
from fedil_model.hyperparameters import merge
from fedil_model.methods import make_method
from fedil_model.parameters import Weights
from fedil_model.split import make_split
from server_worker.checkpoint import CheckpointFolder
from server_worker.coordinator import Coordinator, Stopped, Surroundings
from server_worker.events import ClientOutcome, RoundRecord
from server_worker.progress import Progress
from server_worker.recipe import Recipe, make_recipe
from server_worker.sites import OneSite, Sites

RUN = "blobs"
SITE = "here"


def blobs(num_samples: int = 400) -> Dataset:
    """Four well-separated clouds in eight dimensions. A user's own dataset looks just like this."""

    def load(seed: int) -> Samples:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.arange(num_samples) % 4
        centres = torch.eye(8)[:4] * 3.0
        return Samples(centres[labels] + torch.randn(num_samples, 8, generator=generator), labels)

    return Dataset(("a", "b", "c", "d"), (8,), TensorViews(), lambda: load(1), lambda: load(2))


def blobs_recipe(**changes: Any) -> Recipe:
    base = {
        "name": RUN,
        "rounds": 3,
        "data": {"name": "tests.federation:blobs"},
        "split": {"labelled": 20, "clients": 6},
        "network": {"name": "mlp", "width": 16},
        "client": {"epochs": 2, "batch_size": 16, "lr": 0.1},
        "server": {"epochs": 2, "batch_size": 10, "pretrain_epochs": 30, "lr": 0.1},
        "method": {"threshold": 0.6, "credibility": 2},
        "federation": {"clients_per_round": 3, "deadline_seconds": 60.0},
    }
    return make_recipe(merge(base, changes))


class InlineEvaluator:
    """Counts parameters instead of measuring accuracy: fast, and decides nothing either."""

    def submit(self, models: Mapping[str, Weights]) -> "Future[dict[str, float]]":
        future: Future[dict[str, float]] = Future()
        future.set_result({name: float(weights.params.numel()) for name, weights in models.items()})
        return future

    def close(self) -> None:
        pass


@dataclass
class Diary:
    """A watcher that remembers."""

    records: list[RoundRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    on_update: Callable[[int, int], None] = lambda number, answered: None

    def run_started(self, first_round: int, rounds: int) -> None:
        self.notes.append(f"started {first_round} of {rounds}")

    def phase(self, round_number: int, name: str) -> None:
        pass

    def update_arrived(self, round_number: int, outcome: ClientOutcome, answered: int, selected: int) -> None:
        self.on_update(round_number, answered)

    def round_closed(self, record: RoundRecord) -> None:
        self.records.append(record)

    def note(self, text: str) -> None:
        self.notes.append(text)


class ArrayShards:
    def __init__(self, inputs: Tensor, clients: tuple[np.ndarray, ...]) -> None:
        self._inputs, self._clients = inputs, clients

    def inputs(self, client: int) -> Tensor:
        return self._inputs[torch.from_numpy(self._clients[client])]


@dataclass
class Federation:
    """One run's broker, store and folder; `play` may be called again to resume it."""

    recipe: Recipe
    directory: Path
    broker: EmbeddedBroker = field(default_factory=EmbeddedBroker)
    diary: Diary = field(default_factory=Diary)
    stop: threading.Event = field(default_factory=threading.Event)
    clock: Callable[[], float] = time.monotonic
    sites: Sites = field(default_factory=lambda: OneSite(SITE))

    def __post_init__(self) -> None:
        self.dataset = open_dataset(self.recipe.data)
        self.train = self.dataset.load_train()
        classes = len(self.dataset.class_names)
        self.split = make_split(self.train.labels.numpy(), classes, self.recipe.split, self.recipe.seed)
        self.store = MemoryStore(self.directory / "ledgers")

    def participant(self) -> Participant:
        transport = MemoryTransport(self.broker)
        shards = ArrayShards(self.train.inputs, self.split.clients)
        plugins = [self.recipe.data.name, self.recipe.network.name]
        trainer = Trainer(transport, self.store, shards, torch.device("cpu"), plugins)
        return Participant(transport, trainer, SITE)

    def coordinator(self, transport: MemoryTransport | None = None) -> Coordinator:
        chosen = torch.from_numpy(self.split.labelled)
        around = Surroundings(
            transport=transport or MemoryTransport(self.broker),
            store=self.store,
            checkpoints=CheckpointFolder(self.directory / "checkpoints"),
            evaluator=InlineEvaluator(),
            watcher=self.diary,
            clock=self.clock,
            stop=self.stop,
            sites=self.sites,
        )
        labelled = Samples(self.train.inputs[chosen], self.train.labels[chosen])
        method = make_method(self.recipe.learning(), self.dataset, torch.device("cpu"))
        return Coordinator(self.recipe.name, self.recipe, method, labelled, around)

    def play(self) -> Progress | None:
        """The whole run (None if stopped), with one worker beside it."""
        transport = MemoryTransport(self.broker)
        with working(self.broker, self.participant()):
            try:
                return self.coordinator(transport).run()
            except Stopped:
                return None
            finally:
                transport.close()

    def fingerprint(self) -> tuple[bytes, bytes, dict[int, tuple[int, bytes]]]:
        """θ′ and all ledgers, to the bit."""
        checkpoint = CheckpointFolder(self.directory / "checkpoints").latest()
        assert checkpoint is not None
        params, buffers = (checkpoint.arrays[f"state/global.{part}"] for part in ("params", "buffers"))
        return params.tobytes(), buffers.tobytes(), self.store.latest(self.recipe.name)


@contextmanager
def working(broker: EmbeddedBroker, participant: Participant) -> Iterator[None]:
    from broker_config.topology import tasks_queue

    broker.declare([tasks_queue(SITE)])
    thread = threading.Thread(target=participant.serve)
    thread.start()
    try:
        yield
    finally:
        participant.finish()
        thread.join()
