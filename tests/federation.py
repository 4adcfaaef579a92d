"""A federation in one process, in miniature: the real loops, a tabular problem, rounds of some milliseconds."""

import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from broker_config.brokers.topology import DEAD_LETTERS, tasks_queue, updates_queue
from broker_config.process.retry import RetryPolicy
from broker_config.protocol.messages import Message, Refusal, TrainTask, Update
from broker_config.protocol.wire import decode_message, encode_message
from broker_config.stores import connect_store
from broker_config.stores.interface import Store
from broker_config.stores.memory.store import MemoryStore
from broker_config.transports import connect_transport
from broker_config.transports.interface import Buffers, Delivery, Transport
from broker_config.transports.memory.broker import EmbeddedBroker
from broker_config.transports.memory.transport import MemoryTransport
from broker_config.transports.reconnecting import ReconnectingTransport
from client_worker.participant import Participant
from client_worker.training import Trainer
from fedil_model.data.augment import TensorViews
from fedil_model.data.datasets import open_dataset
from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.data.split import make_split
from fedil_model.methods import make_method, plugins_named
from fedil_model.methods.interface import Method
from fedil_model.settings import merge
from fedil_model.training.flat_model import Weights
from server_worker.coordinator import Coordinator, ServerContext, Stopped
from server_worker.deployment import Deployment, serve
from server_worker.round.evaluation import Evaluation
from server_worker.round.sites import Sites
from server_worker.run.checkpoint import CheckpointFolder
from server_worker.run.digests import Outcome, ledger_digest, model_digest
from server_worker.run.inputs import labelled_samples
from server_worker.run.progress import Progress
from server_worker.run.recipe import Recipe, make_recipe
from server_worker.watch.events import ClientOutcome, RoundRecord, Watcher
from server_worker.watch.notices import Notice

RUN = "blobs"
SITE = "here"
SOON = 60.0
"""Seconds within which what is under way at a broker happens, however busy the machine."""


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
        # Without tests of updates: every update of these few samples counts.
        "method": {"threshold": 0.6, "credibility": 2, "loss_margin": 0.0, "movement_filter": False},
        "federation": {"clients_per_round": 3, "deadline_seconds": 600.0},
    }
    return make_recipe(merge(base, changes))


def count_parameters(models: Mapping[str, Weights]) -> "Future[Evaluation]":
    """Instead of measuring accuracy: fast, and decides nothing either."""
    future: Future[Evaluation] = Future()
    found = {name: float(weights.params.numel()) for name, weights in models.items()}
    future.set_result(Evaluation(found))
    return future


@dataclass
class Diary(Watcher):
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

    def note(self, notice: Notice) -> None:
        self.notes.append(str(notice))


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
    sites: Any = None
    """Sites; by default one, which always has a worker"""
    site: str = SITE
    away: Callable[[], float] = lambda: 0.0
    wrap: Callable[[Method], Method] = lambda method: method
    """What the server's method is replaced by"""

    def __post_init__(self) -> None:
        self.dataset = open_dataset(self.recipe.data)
        self.train = self.dataset.load_train()
        classes = len(self.dataset.class_names)
        self.split = make_split(self.train.labels.numpy(), classes, self.recipe.split, self.recipe.seed)
        self.store = MemoryStore(self.directory / "ledgers")
        self.sites = self.sites or self._one_site()

    def _one_site(self) -> Sites:
        """It always has a worker, and answers as the server's user."""
        owned, note = {self.site: range(self.recipe.split.clients)}, self.diary.notes.append
        return Sites(owned, self.store, time.monotonic, math.inf, "guest", lambda notice: note(str(notice)))

    def connect(self) -> Transport:
        return MemoryTransport(self.broker)

    def connect_for_inspection(self) -> Transport:
        return self.connect()

    @property
    def ledgers(self) -> Store:
        return self.store

    def trainer(self, transport: Transport) -> Trainer:
        shards = ArrayShards(self.train.inputs, self.split.clients)
        plugins = plugins_named(self.recipe.model_dump())
        return Trainer(transport, self.ledgers, shards, torch.device("cpu"), plugins)

    def participant(self) -> Participant:
        transport = self.connect()
        return Participant(transport, self.trainer(transport), self.site)

    def coordinator(self, transport: Transport | None = None) -> Coordinator:
        context = ServerContext(
            transport=transport or self.connect(),
            store=self.ledgers,
            checkpoints=CheckpointFolder(self.directory / "checkpoints"),
            evaluate=count_parameters,
            watcher=self.diary,
            clock=self.clock,
            stop=self.stop,
            sites=self.sites,
            connect_for_inspection=self.connect_for_inspection,
            shard_sizes=self.split.held,
            away=self.away,
        )
        labelled = labelled_samples(self.train, self.split, self.recipe)
        method = make_method(self.recipe.learning(), self.dataset, torch.device("cpu"))
        return Coordinator(self.recipe.name, self.recipe, self.wrap(method), labelled, context)

    def play(self) -> Progress | None:
        """The whole run (None if stopped), with one worker beside it."""
        transport = self.connect()
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
        params, buffers = (checkpoint.arrays[key] for key in checkpoint.meta["models"]["global"])
        return params.tobytes(), buffers.tobytes(), self.ledgers.latest(self.recipe.name)

    def digests(self) -> tuple[str, str]:
        """θ′ and all ledgers, as servers tell them."""
        checkpoints = CheckpointFolder(self.directory / "checkpoints")
        return model_digest(checkpoints.latest()), ledger_digest(self.ledgers, self.recipe.name)


@dataclass
class OverBrokers(Federation):
    """The same over real brokers and with the server of a deployment. A context: it ends all that it started."""

    broker_url: str = ""
    store_url: str = ""

    def __post_init__(self) -> None:
        self.site = next(iter(self.recipe.sites))
        super().__post_init__()
        self._stack = ExitStack()
        self._patience = RetryPolicy(stop=self.stop.is_set)
        self._ledgers: Store | None = None

    def connect_for_inspection(self) -> Transport:
        return connect_transport(self.broker_url)

    def connect(self) -> Transport:
        transport = ReconnectingTransport(lambda: connect_transport(self.broker_url), self._patience)
        self._stack.callback(transport.close)
        return transport

    @property
    def ledgers(self) -> Store:
        if self._ledgers is None:
            self._ledgers = connect_store(self.store_url, self.recipe.site_of, self._patience)
            self._stack.callback(self._ledgers.close)
        return self._ledgers

    def serve(self) -> "Future[Outcome]":
        """The server, in a thread of its own; ask the future how it ended."""
        deployment = Deployment(
            self.recipe, self.directory, self.broker_url, self.store_url, self.recipe.name, "cpu"
        )
        return self._thread().submit(serve, deployment, self.diary, self.stop)

    def coordinate(self) -> "Future[Progress]":
        """Only the server's loop, which goes by this federation's clock."""

        def run() -> Progress:
            with closing(self.connect()) as transport:
                return self.coordinator(transport).run()

        return self._thread().submit(run)

    def _thread(self) -> ThreadPoolExecutor:
        return self._stack.enter_context(ThreadPoolExecutor(1))

    def resumed(self, **changes: Any) -> "OverBrokers":
        """The same run for a server that comes after."""
        return replace(self, diary=Diary(), stop=threading.Event(), **changes)

    def __enter__(self) -> "OverBrokers":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._stack.close()


Over = Callable[[Recipe], OverBrokers]
"""Makes federations over brokers, each apart from the others."""


def apart(recipe: Recipe) -> Recipe:
    """With a run and a site of its own: others use the same brokers."""
    word = uuid.uuid4().hex[:10]
    sites = {f"site-{word}": recipe.split.clients}
    federation = recipe.federation.model_copy(update={"sites": sites})
    return recipe.model_copy(update={"name": f"{recipe.name}-{word}", "federation": federation})


class Hands:
    """All the clients of a site, in the test's hands: each answers when it is told to."""

    def __init__(self, federation: Federation, site: str | None = None) -> None:
        run, site = federation.recipe.name, site or federation.site
        self.tasks, self.updates = tasks_queue(site), updates_queue(run, site)
        self.transport = federation.connect()
        self.transport.declare(self.tasks, self.updates, DEAD_LETTERS)
        self._trainer = federation.trainer(self.transport)
        self._deliveries: dict[tuple[int, int], Delivery] = {}

    def take(self, count: int, seconds: float = SOON) -> list[TrainTask]:
        """The next tasks; they come only when the server has dealt with what was sent before."""
        tasks = []
        for _ in range(count):
            delivery = self.transport.receive(self.tasks, seconds)
            assert delivery is not None, "no task came"
            task = decode_message(delivery.body)
            assert isinstance(task, TrainTask)
            self._deliveries[task.client, task.activation] = delivery
            tasks.append(task)
        return tasks

    def train(self, task: TrainTask) -> Update:
        return self._trainer.train(task)

    def answer(self, task: TrainTask) -> Update:
        update = self.train(task)
        self.send(update)
        self.settle(task)
        return update

    def refuse(self, task: TrainTask) -> None:
        self.send(Refusal(task.run, task.round, task.client, task.activation, "no", "no data"))
        self.settle(task)

    def settle(self, task: TrainTask) -> None:
        self._deliveries[task.client, task.activation].acknowledge()

    def give_back(self, task: TrainTask) -> None:
        self._deliveries[task.client, task.activation].requeue()

    def reject(self, task: TrainTask, reason: str) -> None:
        self._deliveries[task.client, task.activation].reject(reason)

    def send(self, message: Message) -> None:
        self.post(encode_message(message))

    def post(self, body: Buffers) -> None:
        self.transport.publish(self.updates, body)

    def dead_letters(self) -> dict[bytes, str | None]:
        """Takes all that there are: body → why."""
        letters = {}
        while (letter := self.transport.receive(DEAD_LETTERS, 0.0)) is not None:
            letters[bytes(letter.body)] = letter.reason
            letter.acknowledge()
        return letters


@contextmanager
def working(broker: EmbeddedBroker, participant: Participant) -> Iterator[None]:
    broker.declare([tasks_queue(SITE)])
    with at_work(participant):
        yield


@contextmanager
def at_work(participant: Participant) -> Iterator[None]:
    thread = threading.Thread(target=participant.serve)
    thread.start()
    try:
        yield
    finally:
        participant.stopping.ask()
        thread.join()
