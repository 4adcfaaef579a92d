"""What hostile clients cost: the digits recipe in which 8 of 20 clients send poisoned updates in every round.

permuted: they train on the labels of the next class. negated: they send their own movement with the opposite sign.
flipped: they send the whole update with the opposite sign. Each with the tests of updates that profile `fedil` has, and
without them (the cosine alone). Accuracy of θ′ in %, mean of the last five rounds, by seed. Not for profile `paper`:
it makes its labels during training, where this permutation does not reach them.

`ratio`: points lost in the worst of these cases with the tests, mean over seeds.
"""

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from typing import Any
from unittest import mock

import numpy as np
import torch

from fedil_model.data.datasets import open_dataset
from fedil_model.data.datasets.interface import Samples
from fedil_model.data.split import make_split
from fedil_model.methods import make_method
from fedil_model.methods.fedil.client import ClientTraining
from fedil_model.methods.interface import Activation, Answer, Arrays, Tensors
from fedil_model.training.evaluate import accuracy
from fedil_model.training.flat_model import FlatModel, Weights
from ops.cli.recipe_files import read_recipe
from server_worker.run.inputs import network_of

BAR = 2.0
SEEDS = (0, 1)
ROUNDS, COUNTED, SHARE = 20, 5, 0.4
KINDS = ("permuted", "negated", "flipped")
VARIANTS = {
    "fedil": (),
    "fedil, cosine only": ("method.loss_margin=0", "method.movement_filter=false"),
}


@dataclass(frozen=True)
class Case:
    variant: str
    kind: str
    seed: int


@contextmanager
def labels_permuted(num_classes: int) -> Iterator[None]:
    observe = ClientTraining._observe

    def permuted(*given: Any) -> Any:
        targets = observe(*given)
        object.__setattr__(targets, "labels_N", (targets.labels_N + 1) % num_classes)
        return targets

    with mock.patch.object(ClientTraining, "_observe", permuted):
        yield


def poison(kind: str, update: Tensors, broadcast: Tensors, client_init: str) -> Tensors:
    if kind == "flipped":
        return {name: -tensor for name, tensor in update.items()}
    if kind == "negated":
        start = broadcast[f"{client_init}.params"] - broadcast["global.params"]
        return {**update, "delta.params": 2.0 * start - update["delta.params"]}
    return update


def play(case: Case) -> dict[str, Any]:
    torch.set_num_threads(1)
    settings = [f"seed={case.seed}", f"rounds={ROUNDS}", *VARIANTS[case.variant]]
    recipe = read_recipe("digits", settings)
    dataset = open_dataset(recipe.data)
    train, test, num_classes = dataset.load_train(), dataset.load_test(), len(dataset.class_names)
    split = make_split(train.labels.numpy(), num_classes, recipe.split, recipe.seed)
    rows = torch.from_numpy(split.labelled)
    labelled = Samples(train.inputs[rows], train.labels[rows])
    draws = np.random.default_rng(case.seed)
    clients = recipe.split.clients
    hostile = set(draws.choice(clients, round(SHARE * clients), replace=False).tolist())
    if case.kind == "none":
        hostile = set()
    method, model = (
        make_method(recipe.learning(), dataset, torch.device("cpu")),
        FlatModel(network_of(recipe, dataset)),
    )
    state, found = method.initial_state(labelled), []
    kept: dict[int, Arrays] = {}
    counts: Counter[str] = Counter()
    for number in range(1, ROUNDS + 1):
        step = method.server_step(state, labelled, number)
        fold = method.open_fold(step.state, {number: step.broadcast}, number, labelled)
        for client in draws.choice(clients, recipe.federation.clients_per_round, replace=False).tolist():
            shard = train.inputs[torch.from_numpy(split.clients[client])]
            is_hostile = client in hostile
            trains_badly = is_hostile and case.kind == "permuted"
            with labels_permuted(num_classes) if trains_badly else nullcontext():
                result = method.client_step(
                    Activation(client, number, step.broadcast, shard, kept.get(client))
                )
            kept[client] = result.state
            update = result.update
            if is_hostile:
                update = poison(case.kind, update, step.broadcast, recipe.method.client_init)  # type: ignore[attr-defined]
            answer = Answer(client, update, number, len(shard), result.num_steps, result.metrics)
            taken = "taken" if fold.add(answer).counts else "rejected"
            counts[f"{'hostile' if is_hostile else 'honest'} {taken}"] += 1
        end = method.end_round(fold.close().state, step.broadcast, labelled, number)
        state = end.state
        if number > ROUNDS - COUNTED:
            model.load(Weights.named(state, "global"))
            found.append(accuracy(model.module, test, dataset.views))
    return {**asdict(case), "accuracy": round(100 * fmean(found), 2), **counts}


def run() -> dict[str, Any]:
    cases = [Case(variant, kind, seed) for variant in VARIANTS for kind in ("none", *KINDS) for seed in SEEDS]
    results = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for done in pool.map(play, cases):
            print(done, flush=True)
            results.append(done)
    mean = partial(_mean, results)
    lost = {kind: round(mean("fedil", "none") - mean("fedil", kind), 2) for kind in KINDS}
    return {
        "name": "hostile_clients",
        "ratio": max(lost.values()),
        "bar": BAR,
        "ok": max(lost.values()) <= BAR,
        "points_lost": lost,
        "accuracy": {
            variant: {kind: round(mean(variant, kind), 2) for kind in ("none", *KINDS)}
            for variant in VARIANTS
        },
        "details": {"runs": results},
    }


def _mean(results: list[dict[str, Any]], variant: str, kind: str) -> float:
    return fmean(one["accuracy"] for one in results if (one["variant"], one["kind"]) == (variant, kind))
