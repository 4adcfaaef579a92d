"""A federation in one process with a live page, whose rounds close when the test allows it."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from broker_config.process.addresses import WebAddress
from broker_config.transports.interface import Transport
from fedil_model.data.datasets.interface import Samples
from fedil_model.methods import make_method
from fedil_model.training.flat_model import FlatModel
from server_worker.coordinator import Coordinator
from server_worker.round.context import ServerContext
from server_worker.round.evaluation import BackgroundEvaluator
from server_worker.run.checkpoint import CheckpointFolder
from server_worker.run.folder import RunDir
from server_worker.run.history import HistoryWriter
from server_worker.run.inputs import network_of
from server_worker.run.progress import Progress
from server_worker.run.recipe import Recipe
from server_worker.watch.events import Watcher
from server_worker.watch.survey import Surveyor
from server_worker.watch.watching import Watching, watching
from tests.browser.synthetic import ANY_PORT
from tests.federation import SITE, SOON, Diary, Federation


@dataclass
class RoundGate(Diary):
    """Holds each round before it closes, until the test lets it through."""

    allowed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def phase(self, round_number: int, name: str) -> None:
        if name == "close":
            assert self.allowed.acquire(timeout=SOON)

    def let(self, rounds: int) -> None:
        self.allowed.release(rounds)


@dataclass
class WatchedFederation(Federation):
    """Evaluates for real and writes the history and the page. Each is one server process: `again()` is its restart."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.where = RunDir(self.directory)
        self.gate = RoundGate()

    @contextmanager
    def served(self, address: WebAddress = ANY_PORT) -> Iterator[Watching]:
        stopped = threading.Event()
        stopped.set()  # the server does not wait at its end for pages to read it
        with watching(self.recipe.name, self.recipe, self.where, address, stopped) as watch:
            self.watch = watch
            yield watch

    @contextmanager
    def playing(self) -> Iterator["Future[Progress | None]"]:
        """Train in the background; stop at the end if not done."""
        with ExitStack() as stack:
            thread = stack.enter_context(ThreadPoolExecutor(1))
            stack.callback(self.gate.let, self.recipe.rounds)
            stack.callback(self.stop.set)
            surveyor = Surveyor(
                self.recipe.name,
                {SITE: range(self.recipe.split.clients)},
                lambda: (self.connect(), self.store),
                self.watch.survey,
                every_seconds=0.2,
            )
            stack.enter_context(surveyor)
            self.watch.leading(self.dataset.class_names, lambda: ({}, {}))
            yield thread.submit(self._play_to_the_end)

    def _play_to_the_end(self) -> Progress | None:
        progress = self.play()
        self.watch.ended("done" if progress else "stopped")
        return progress

    def again(self) -> "WatchedFederation":
        return replace(self, stop=threading.Event())

    def coordinator(self, transport: Transport | None = None) -> Coordinator:
        chosen, cpu = torch.from_numpy(self.split.labelled), torch.device("cpu")
        evaluated = FlatModel(network_of(self.recipe, self.dataset), cpu)
        classes = len(self.dataset.class_names)
        evaluator = BackgroundEvaluator(evaluated, self.dataset.load_test(), self.dataset.views, classes)
        context = ServerContext(
            transport=transport or self.connect(),
            store=self.ledgers,
            checkpoints=CheckpointFolder(self.where.checkpoints),
            evaluate=evaluator.submit,
            watcher=HistoryWriter(self.where.history, Watcher(self.watch.watcher, self.gate)),
            clock=self.clock,
            stop=self.stop,
            sites=self.sites,
            connect_for_inspection=self.connect,
        )
        labelled = Samples(self.train.inputs[chosen], self.train.labels[chosen])
        method = make_method(self.recipe.learning(), self.dataset, cpu)
        return Coordinator(self.recipe.name, self.recipe, method, labelled, context)


def watched(recipe: Recipe, directory: Path) -> WatchedFederation:
    return WatchedFederation(recipe, directory)
