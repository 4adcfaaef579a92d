"""A whole federation on one machine: the real server loop here, real worker processes beside it, and the
embedded broker between them."""

import json
import os
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from broker_config.durable import write_atomically
from broker_config.embedded import serve
from broker_config.stores.memory import MemoryStore
from broker_config.transports.memory import EmbeddedBroker, MemoryTransport
from broker_config.wire import digest
from client_worker.shards import has_shards, write_shards
from fedil_model.datasets import open_dataset
from fedil_model.datasets.interface import Dataset, Samples
from fedil_model.errors import DataError
from fedil_model.evaluate import accuracy
from fedil_model.methods import make_method
from fedil_model.parameters import FlatModel
from fedil_model.plugins import is_plugin
from fedil_model.precision import choose_device, repeatable_on, seeded
from fedil_model.seeding import derive_seed
from fedil_model.split import Split, make_split
from fedil_model.supervised import train_supervised
from ops.diagnostics import LedgerDiagnostics
from ops.history import HistoryWriter, read_history
from ops.run_dir import RunDir, network_of
from ops.summary import Summary
from ops.workers import WorkerPool
from server_worker.checkpoint import CheckpointFolder
from server_worker.coordinator import Coordinator, Stopped, Surroundings
from server_worker.evaluation import BackgroundEvaluator
from server_worker.events import Watcher
from server_worker.progress import Progress
from server_worker.recipe import Recipe
from server_worker.sites import OneSite

_SITE = "local"


def simulate(
    recipe: Recipe,
    run_dir: Path,
    *,
    workers: int,
    device: str,
    resume: bool,
    watcher: Watcher,
    stop: threading.Event,
) -> Summary:
    """Blocks until the run is done or `stop` is set. With `resume`, goes on where a killed run was."""
    began = time.monotonic()
    where, chosen = RunDir(run_dir), choose_device(device)
    # For cuBLAS here and in the workers, which inherit it; see repeatable_on.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    repeatable_on(chosen)
    watcher.phase(0, "load_data")
    dataset = open_dataset(recipe.data)
    train, test = dataset.load_train(), _on_device(dataset.load_test(), chosen)
    split = _prepare(where, recipe, dataset, train, resume)
    labelled = _on_device(_chosen(train, split.labelled), chosen)
    store, broker = MemoryStore(where.ledgers), EmbeddedBroker()
    with ExitStack() as stack:
        # A socket's path may have about 100 characters; a run's folder may have more.
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedil-")))
        url = stack.enter_context(serve(broker, store, short / "broker")).url
        arguments = _worker_arguments(recipe, url, where, chosen)
        pool = stack.enter_context(WorkerPool(arguments, workers, where.logs, watcher, stop))
        baseline = _baseline(where, recipe, dataset, labelled, test, watcher)
        evaluator = BackgroundEvaluator(FlatModel(network_of(recipe, dataset), chosen), test, dataset.views)
        stack.callback(evaluator.close)
        around = Surroundings(
            transport=MemoryTransport(broker),
            store=store,
            checkpoints=CheckpointFolder(where.checkpoints),
            evaluator=evaluator,
            watcher=HistoryWriter(where.history, watcher, on_answer=pool.progress),
            clock=time.monotonic,
            stop=stop,
            sites=OneSite(_SITE),
            purity=LedgerDiagnostics(store, recipe.name, train.labels.numpy(), split.clients).purity,
        )
        method = make_method(recipe.learning(), dataset, chosen)
        progress = _run(Coordinator(recipe.name, recipe, method, labelled, around))
        if pool.failure:
            raise pool.failure
    return _summary(where, recipe, store, progress, split, baseline, time.monotonic() - began)


def _worker_arguments(recipe: Recipe, url: str, where: RunDir, device: torch.device) -> list[str]:
    arguments = ["--broker", url, "--store", url, "--site", _SITE]
    arguments += ["--shards", str(where.shards), "--device", str(device)]
    for name in filter(is_plugin, (recipe.data.name, recipe.network.name)):
        arguments += ["--plugin", name]
    return arguments


def _run(coordinator: Coordinator) -> Progress | None:
    try:
        return coordinator.run()
    except Stopped:
        return None


def _prepare(where: RunDir, recipe: Recipe, dataset: Dataset, train: Samples, resume: bool) -> Split:
    """The folder as workers and later commands expect it. Repeating it changes nothing."""
    where.root.mkdir(parents=True, exist_ok=True)
    split = make_split(train.labels.numpy(), len(dataset.class_names), recipe.split, recipe.seed)
    if resume and where.split.exists() and Split.load(where.split).digest != split.digest:
        raise DataError(f"{where.split} is not the split of this recipe and this data: use another --run-dir")
    write_atomically(where.recipe, [recipe.model_dump_json(indent=1).encode()])
    split.save(where.split)
    if not has_shards(where.shards):
        write_shards(
            where.shards,
            {client: train.inputs[torch.from_numpy(own)] for client, own in enumerate(split.clients)},
        )
    return split


def _chosen(samples: Samples, positions: np.ndarray) -> Samples:
    rows = torch.from_numpy(positions)
    return Samples(samples.inputs[rows], samples.labels[rows])


def _on_device(samples: Samples, device: torch.device) -> Samples:
    return Samples(samples.inputs.to(device), samples.labels.to(device))


def _baseline(
    where: RunDir,
    recipe: Recipe,
    dataset: Dataset,
    labelled: Samples,
    test: Samples,
    watcher: Watcher,
) -> float | None:
    """The floor: the same network trained on the same labels and nothing else."""
    if recipe.baseline_epochs == 0:
        return None
    if where.baseline.exists():
        known = json.loads(where.baseline.read_text(encoding="utf-8"))
        if known["epochs"] == recipe.baseline_epochs:
            return float(known["accuracy"])
    watcher.phase(0, "baseline")
    device, seed = labelled.inputs.device, derive_seed(recipe.seed, "baseline")
    model = FlatModel(network_of(recipe, dataset), device)
    with seeded(seed, device):
        train_supervised(
            model,
            labelled,
            dataset.views,
            recipe.server,
            epochs=recipe.baseline_epochs,
            lr=recipe.server.pretrain_lr or recipe.server.lr,
            strong_weight=recipe.server.pretrain_strong_weight,
            generator=torch.Generator().manual_seed(seed),
            precision=recipe.autocast,
        )
    found = accuracy(model.module, test, dataset.views)
    fields = {"accuracy": found, "epochs": recipe.baseline_epochs, "labels": len(labelled.labels)}
    write_atomically(where.baseline, [json.dumps(fields).encode()])
    return found


def _summary(
    where: RunDir,
    recipe: Recipe,
    store: MemoryStore,
    progress: Progress | None,
    split: Split,
    baseline: float | None,
    seconds: float,
) -> Summary:
    rounds = list(read_history(where.history))
    accuracies = [r["accuracy"] for r in rounds if r["accuracy"]]
    checkpoint = CheckpointFolder(where.checkpoints).latest()
    return Summary(
        run_dir=where.root,
        rounds_done=checkpoint.round if checkpoint else 0,
        rounds=recipe.rounds,
        accuracy=dict(accuracies[-1]) if accuracies else {},
        baseline_accuracy=baseline,
        model_digest=_model_digest(where),
        ledger_digest=_ledger_digest(store, recipe.name),
        split_digest=split.digest,
        verdict=str(rounds[-1]["verdict"]) if rounds else "too early to say",
        seconds=seconds,
        stopped=progress is None,
    )


def _model_digest(where: RunDir) -> str:
    """Of θ′ in the last checkpoint."""
    checkpoint = CheckpointFolder(where.checkpoints).latest()
    if checkpoint is None:
        return ""
    parts = [checkpoint.arrays[f"state/global.{part}"] for part in ("params", "buffers")]
    return digest([part.tobytes() for part in parts])


def _ledger_digest(store: MemoryStore, run: str) -> str:
    parts: list[bytes] = []
    for client, (activation, ledger) in sorted(store.latest(run).items()):
        parts += [f"{client}:{activation}:{len(ledger)}:".encode(), ledger]
    return digest(parts)
