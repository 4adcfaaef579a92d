"""The data of a run, as its server reads it: dataset, split, labelled part."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from broker_config.process.durable import write_atomically
from fedil_model.data.datasets import open_dataset
from fedil_model.data.datasets.checking import check_views
from fedil_model.data.datasets.interface import Dataset, Samples
from fedil_model.data.split import Split, make_split, refuse_missing_classes
from fedil_model.errors import DataError, SettingError
from fedil_model.networks import build_network
from fedil_model.seeding import derive_seed
from fedil_model.training.fitting import FitKind, fit_model
from fedil_model.training.flat_model import FlatModel
from server_worker.round.evaluation import BackgroundEvaluator, Fit
from server_worker.run.folder import RunDir
from server_worker.run.initial import Initial, read_initial
from server_worker.run.recipe import Recipe


@dataclass(frozen=True)
class RunInputs:
    dataset: Dataset
    train: Samples
    test: Samples
    split: Split
    labelled: Samples
    """Like `test`, on the device"""
    device: torch.device
    initial: Initial | None = None
    """What the run begins with, where it is not the network as built"""

    @property
    def initial_tensors(self) -> Mapping[str, Tensor] | None:
        return self.initial.tensors if self.initial else None

    def evaluator(self, recipe: Recipe) -> BackgroundEvaluator:
        model = FlatModel(network_of(recipe, self.dataset), self.device)
        display, views = recipe.spec.display, self.dataset.views
        fits = {
            one.name: make_fit(one.fit, self.labelled, self.dataset, recipe)
            for one in display.models
            if one.fit
        }
        classes = len(self.dataset.class_names)
        return BackgroundEvaluator(model, self.test, views, classes, fits, recipe.autocast)


def make_fit(kind: FitKind, labelled: Samples, dataset: Dataset, recipe: Recipe) -> Fit:
    """What a run does to a model whose declaration names a fit before its predictions count"""
    seed = derive_seed(recipe.seed, "fit", kind)
    return partial(fit_model, kind, labelled=labelled, views=dataset.views, learning=recipe, seed=seed)


def read_inputs(where: RunDir, recipe: Recipe, device: torch.device, *, resume: bool) -> RunInputs:
    """Also writes recipe and split into the run's folder. Repeating it changes nothing."""
    dataset = open_dataset(recipe.data)
    train, test = dataset.load_train(), _on_device(dataset.load_test(), device)
    check_views(recipe.data.name, dataset, train, test, device)
    # A network or weights that do not fit are told of before anything is written.
    initial = read_initial(where, recipe, network_of(recipe, dataset))
    _refuse_class_weights(recipe, dataset)
    split = _split(where, recipe, dataset, train, resume)
    labelled = _on_device(labelled_samples(train, split, recipe), device)
    if initial is not None and not where.initial.exists():
        initial.keep(where)
    return RunInputs(dataset, train, test, split, labelled, device, initial)


def _refuse_class_weights(recipe: Recipe, dataset: Dataset) -> None:
    given, classes = recipe.server.class_weights, len(dataset.class_names)
    if isinstance(given, list) and len(given) != classes:
        raise SettingError(
            f"server.class_weights has {len(given)} numbers, and the data have {classes} classes"
        )


def _split(where: RunDir, recipe: Recipe, dataset: Dataset, train: Samples, resume: bool) -> Split:
    labels = train.labels.numpy()
    refuse_missing_classes(labels, dataset.class_names, recipe.split)
    where.root.mkdir(parents=True, exist_ok=True)
    split = make_split(labels, len(dataset.class_names), recipe.split, recipe.seed, owners_in(train))
    if resume and where.split.exists() and _saved(where).digest != split.digest:
        raise DataError(f"{where.split} is not the split of this recipe and this data: use another --run-dir")
    write_atomically(where.recipe, [recipe.model_dump_json(indent=1).encode()])
    if dataset.elsewhere:
        write_atomically(where.dataset, [json.dumps(dataset.elsewhere, ensure_ascii=False).encode()])
    write_atomically(where.split, [split.to_json().encode()])
    return split


def owners_in(train: Samples) -> np.ndarray | None:
    return None if train.owners is None else train.owners.numpy()


def _saved(where: RunDir) -> Split:
    try:
        return Split.load(where.split)
    except DataError as error:
        raise DataError(f"{error}: delete it, and it is made anew") from error


def labelled_samples(train: Samples, split: Split, recipe: Recipe) -> Samples:
    """What the method's server trains on"""
    if recipe.spec.labels == "all":
        return train
    rows = torch.from_numpy(split.labelled)
    return Samples(train.inputs[rows], train.labels[rows])


def _on_device(samples: Samples, device: torch.device) -> Samples:
    return Samples(samples.inputs.to(device), samples.labels.to(device))


def network_of(recipe: Recipe, dataset: Dataset) -> nn.Module:
    """As a run builds it, with the weights it begins with: those that are never trained are not in checkpoints."""
    seed = derive_seed(recipe.seed, "network")
    return build_network(recipe.network, dataset.input_shape, len(dataset.class_names), seed)
