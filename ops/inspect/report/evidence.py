"""Parts of a report that need the model, the data or the ledgers. Any of these may be out of reach, because a report is
often written on another machine than the run; a part is then `Missing` and states the reason."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

from broker_config.process.addresses import STORE_URL
from broker_config.process.retry import RetryPolicy
from broker_config.stores.interface import Store
from broker_config.stores.memory.store import MemoryStore
from broker_config.stores.redis.store import RedisStore
from fedil_model.data.datasets import open_dataset
from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.training.precision import repeatable_on
from ops.cli.invocation import without_password
from ops.cli.recipe_files import with_data_root
from ops.inspect.quality import Quality, measure
from ops.inspect.report.drawing import Missing
from ops.inspect.report.held_labels import HeldLabels, find_held_labels
from ops.inspect.report.reading import Run
from ops.inspect.run_reading import load_weights
from ops.local.cluster import has_redis, redis_left_by
from server_worker.run.checkpoint import Checkpoint, CheckpointFolder
from server_worker.run.digests import ledger_digest, model_digest

_T = TypeVar("_T")
_TRIES = 3
"""A running server replaces its files while they are read."""


Ledgers = tuple[Mapping[int, bytes], str]
"""The newest of each client, and their digest"""


@dataclass(frozen=True)
class Evidence:
    quality: Quality | Missing
    quality_round: int
    """The round whose global model was measured"""
    class_names: tuple[str, ...]
    class_counts: np.ndarray | Missing
    """Samples of each class (columns) at the server (row 0) and at each client"""
    held_labels: HeldLabels | Missing
    digests: Mapping[str, str] = field(default_factory=dict)


def gather(run: Run, store_url: str | None) -> Evidence:
    """`store_url`: where the ledgers of a deployment are."""
    repeatable_on(torch.device("cpu"))  # the same bits as in the run
    tries = _TRIES if run.running else 1
    latest = _tried("the checkpoint", CheckpointFolder(run.where.checkpoints).latest, tries)
    settings = run.recipe.data.model_copy(update={"download": False})
    dataset = _tried("the data", lambda: open_dataset(with_data_root(settings)))
    train = _tried("the training data", lambda: known(dataset).load_train())
    ledgers = _tried("the ledgers", lambda: _ledgers(run, store_url), tries)
    return Evidence(
        quality=_tried("the model or its test data", lambda: _quality(run, known(dataset))),
        quality_round=getattr(latest, "round", 0),
        class_names=() if isinstance(dataset, Missing) else dataset.class_names,
        class_counts=_tried("the split", lambda: _class_counts(run, dataset, train)),
        held_labels=_tried("the ledgers", lambda: _held_labels(run, dataset, train, ledgers)),
        digests=_digests(run, latest, ledgers),
    )


def _tried(what: str, step: Callable[[], _T], tries: int = 1) -> _T | Missing:
    """Runs `step`; any error becomes Missing, because a user's dataset or network may raise anything."""
    why = ""
    for _ in range(tries):
        try:
            return step()
        except Missing as missing:
            return missing
        except Exception as error:
            why = " ".join(str(error).split()) or type(error).__name__
    return Missing(f"{what} cannot be read: {without_password(why)}")


def known(part: _T | Missing) -> _T:
    if isinstance(part, Missing):
        raise part
    return part


def _quality(run: Run, dataset: Dataset) -> Quality:
    network = load_weights(run.where.root, run.recipe, "global", dataset)
    return measure(network, dataset, run.recipe.autocast)


def _class_counts(run: Run, dataset: Dataset | Missing, train: Samples | Missing) -> np.ndarray:
    if run.split is None:
        raise Missing("there is no readable split.json in the folder")
    classes, labels = len(known(dataset).class_names), known(train).labels.numpy()
    holders = (run.split.labelled, *run.split.clients)
    if max(int(held.max(initial=-1)) for held in holders) >= len(labels):
        raise Missing(f"split.json speaks of more samples than the {len(labels)} there are: other data")
    return np.stack([np.bincount(labels[held], minlength=classes) for held in holders])


def _ledgers(run: Run, store_url: str | None) -> Ledgers:
    name = run.run_id or run.recipe.name  # earlier simulations had no run id
    with ExitStack() as stack:
        store: Store = MemoryStore(run.where.ledgers)
        if store_url or not run.where.ledgers.is_dir():
            url = store_url or os.environ.get(STORE_URL) or stack.enter_context(_redis_left_by(run))
            store = RedisStore(url, run.recipe.site_of, RetryPolicy(seconds=0.0))
        stack.callback(store.close)
        newest = {client: body for client, (_, body) in store.latest(name).items()}
        return newest, ledger_digest(store, name) if newest else ""


def _redis_left_by(run: Run) -> AbstractContextManager[str]:
    """Of a cluster that has ended"""
    if not (run.records or run.rounds_lost):
        raise Missing("no client has a ledger in the folder: no round has closed yet")
    if not has_redis(run.where.root):
        raise Missing(
            "the ledgers are not in the folder: a deployment keeps them in Redis, name it with --store URL"
        )
    if run.running:
        raise Missing(
            "the cluster goes on and has the ledgers in its Redis: name it with --store URL, as it said at its start"
        )
    return redis_left_by(run.where.root)


def _held_labels(
    run: Run, dataset: Dataset | Missing, train: Samples | Missing, ledgers: Ledgers | Missing
) -> HeldLabels:
    split, view = run.split, run.recipe.spec.view_state
    if view is None:
        raise Missing(f"clients of method {run.recipe.method.name} keep no labels")
    if split is None or not any(len(held) for held in split.clients):
        raise Missing("the clients’ samples are at their sites")
    classes, samples, (newest, _) = len(known(dataset).class_names), known(train), known(ledgers)
    return find_held_labels(newest, split, samples, classes, view)


def _digests(run: Run, latest: Checkpoint | Missing | None, ledgers: Ledgers | Missing) -> dict[str, str]:
    model = _tried("the checkpoint", lambda: model_digest(known(latest)))
    found = {
        run.display.models[0].label: "" if isinstance(model, Missing) else model,
        "ledgers": "" if isinstance(ledgers, Missing) else ledgers[1],
        "split": run.split.digest if run.split is not None else "",
    }
    return {name: value for name, value in found.items() if value}
