"""A whole federation on one machine: the real server loop here, real worker processes beside it, and the
embedded broker between them."""

import json
import math
import os
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path

import torch

from broker_config.embedded.server import BrokerServer
from broker_config.process.addresses import WebAddress
from broker_config.process.durable import write_atomically
from broker_config.protocol.errors import BrokerUnavailable, FedILError
from broker_config.stores.memory.store import MemoryStore
from broker_config.transports.memory.broker import EmbeddedBroker
from broker_config.transports.memory.transport import MemoryTransport
from client_worker.shards import ShardFolder, has_shards, write_shards
from fedil_model.methods import make_method
from fedil_model.training.evaluate import accuracy
from fedil_model.training.flat_model import FlatModel
from fedil_model.training.floor import Floor
from fedil_model.training.precision import choose_device, repeatable_on
from ops.inspect.diagnostics import shares_where_known
from ops.inspect.summary import Summary, summarise
from ops.local.workers import start_workers
from server_worker.coordinator import Coordinator, ServerContext, Stopped
from server_worker.round.sites import Sites
from server_worker.run.checkpoint import CheckpointFolder
from server_worker.run.digests import ledger_digest, outcome_of
from server_worker.run.environment import record_environment
from server_worker.run.folder import RunDir, read_baseline
from server_worker.run.history import HistoryWriter
from server_worker.run.inputs import RunInputs, network_of, read_inputs
from server_worker.run.name import run_id, simulation_id
from server_worker.run.progress import Progress
from server_worker.run.recipe import Recipe
from server_worker.run.resuming import stretched_schedules
from server_worker.watch.events import Watcher
from server_worker.watch.mlflow import MlflowWatcher
from server_worker.watch.notices import Notice
from server_worker.watch.pace import EpochTeller
from server_worker.watch.survey import Surveyor
from server_worker.watch.tensorboard import TensorBoardWatcher
from server_worker.watch.watching import Watching, watching

_SITE = "local"


class StoreOnDisk(MemoryStore):
    """Workers wait for a store that is away. One that cannot write because the disk is full will not come back while
    the run would go on silently: `failure` is set, and the run is asked to stop."""

    def __init__(self, directory: Path, stop: threading.Event) -> None:
        super().__init__(directory)
        self._stop = stop
        self.failure: BrokerUnavailable | None = None

    def commit(self, run: str, client: int, activation: int, ledger: bytes) -> bool:
        try:
            return super().commit(run, client, activation, ledger)
        except BrokerUnavailable as error:
            self.failure = error
            self._stop.set()
            raise


def simulate(
    recipe: Recipe,
    run_dir: Path,
    *,
    workers: int,
    device: str,
    resume: bool,
    watcher: Watcher,
    stop: threading.Event,
    web: WebAddress | None = None,
    tensorboard: bool = False,
    mlflow: str | None = None,
) -> Summary:
    """Blocks until the run is done or `stop` is set. With `resume`, goes on where a killed run was."""
    began = time.monotonic()
    where, chosen = RunDir(run_dir), choose_device(device)
    # For cuBLAS here and in the workers, which inherit it; see repeatable_on.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    repeatable_on(chosen)
    run = simulation_id(where, recipe)
    with ExitStack() as stack:
        watch = stack.enter_context(watching(run, recipe, where, web, stop))
        watch.tell_address(watcher.note)
        watcher = Watcher(watch.watcher, watcher)
        watch.troubles.on_change = watcher.troubles
        if tensorboard:
            written = TensorBoardWatcher(where.tensorboard, recipe.spec.display, watcher.note)
            watcher = Watcher(stack.enter_context(written), watcher)
        if mlflow is not None:
            tracked = MlflowWatcher(mlflow, run, recipe, where.history, watcher.note)
            watcher = Watcher(stack.enter_context(tracked), watcher)
        for words in stretched_schedules(where, recipe) if resume else ():
            watcher.note(Notice(words))
        watcher.phase(0, "load_data")
        inputs = read_inputs(where, recipe, chosen, resume=resume)
        run_id(where, recipe, run)
        record_environment(where, chosen, workers=workers)
        _write_missing_shards(where, inputs)
        store = StoreOnDisk(where.ledgers, stop)
        progress = _play_rounds(run, recipe, where, inputs, store, workers, watch, watcher, stop)
        # After the rounds, so that the first one does not wait for it.
        baseline = _baseline(where, recipe, inputs, watcher, stop) if progress else None
        watch.live.learn(baseline=baseline)
        watch.ended("done" if progress else "stopped")
    outcome = outcome_of(where, run, progress is None, ledger_digest(store, run), inputs.split.digest)
    return summarise(where, recipe, outcome, seconds=time.monotonic() - began, baseline=baseline)


def _play_rounds(
    run: str,
    recipe: Recipe,
    where: RunDir,
    inputs: RunInputs,
    store: StoreOnDisk,
    workers: int,
    watch: Watching,
    watcher: Watcher,
    stop: threading.Event,
) -> Progress | None:
    """None if it was asked to stop before the last round"""
    broker = EmbeddedBroker()
    with ExitStack() as stack:
        # A socket's path may have about 100 characters; a run's folder may have more.
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedil-")))
        url = stack.enter_context(BrokerServer(broker, store, short / "broker")).url
        arguments = _worker_arguments(url, where, inputs.device)
        pool = start_workers(
            arguments, recipe.plugins, workers, where.logs, lambda text: watcher.note(Notice(text)), stop.set
        )
        stack.enter_context(pool)
        evaluator = inputs.evaluator(recipe)
        stack.callback(evaluator.close)
        transport, clients = MemoryTransport(broker), {_SITE: range(recipe.split.clients)}
        context = ServerContext(
            transport=transport,
            store=store,
            checkpoints=CheckpointFolder(where.checkpoints),
            evaluate=evaluator.submit,
            watcher=HistoryWriter(where.history, watcher, on_answer=pool.progress),
            clock=time.monotonic,
            stop=stop,
            sites=Sites(clients, store, time.monotonic, math.inf, None, watcher.note),
            connect_for_inspection=lambda: MemoryTransport(broker),
            label_truth=shares_where_known(store, run, recipe.spec, inputs),
            data_options=inputs.dataset.elsewhere,
            shard_sizes=inputs.split.held,
        )
        stack.enter_context(Surveyor(run, clients, lambda: (MemoryTransport(broker), store), watch.survey))
        watch.leading(inputs.dataset.class_names, lambda: (transport.bytes_sent, transport.bytes_received))
        method = make_method(recipe.learning(), inputs.dataset, inputs.device, inputs.initial_tensors)
        progress: Progress | None = None
        with suppress(Stopped):
            progress = Coordinator(run, recipe, method, inputs.labelled, context).run()
        if failure := pool.failure or store.failure:
            raise failure
    return progress


def _write_missing_shards(where: RunDir, inputs: RunInputs) -> None:
    if has_shards(where.shards):
        ShardFolder(where.shards, remedy="delete that folder, and --resume makes it anew")
        return
    shards = (inputs.train.inputs[torch.from_numpy(rows)] for rows in inputs.split.clients)
    write_shards(where.shards, dict(enumerate(shards)))


def _worker_arguments(url: str, where: RunDir, device: torch.device) -> list[str]:
    place = ["--broker", url, "--store", url, "--site", _SITE, "--web", "off"]
    return [*place, "--shards", str(where.shards), "--device", str(device)]


def _baseline(
    where: RunDir, recipe: Recipe, inputs: RunInputs, watcher: Watcher, stop: threading.Event
) -> float | None:
    """The floor: the same network trained on the same labels and nothing else. None if it was left out, or asked to
    stop before it was known: the next life measures it."""
    epochs, dataset = recipe.floor_epochs, inputs.dataset
    if epochs == 0:
        return None
    with suppress(FedILError):  # one that cannot be read is measured again, from the same seed
        known = read_baseline(where)
        if known.get("epochs") == epochs and known.get("choice"):
            return float(known["accuracy"])

    def check_stop() -> None:
        if stop.is_set():
            raise Stopped

    watcher.phase(0, "baseline")
    network = network_of(recipe, dataset)
    if inputs.initial is not None:
        inputs.initial.load_into(network)
    model = FlatModel(network, inputs.device)
    floor = Floor(
        model,
        inputs.labelled,
        dataset.views,
        recipe,
        epochs=epochs,
        check_stop=check_stop,
        on_epoch=EpochTeller(watcher),
    )
    try:
        tried = [asdict(choice) for choice in floor.train()]
    except Stopped:
        return None
    found = accuracy(model.module, inputs.test, dataset.views, recipe.autocast)
    labels = len(inputs.labelled.labels)
    fields = {"accuracy": found, "epochs": epochs, "labels": labels, "choice": tried[0], "tried": tried}
    write_atomically(where.baseline, [json.dumps(fields).encode()])
    return found
