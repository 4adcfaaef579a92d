"""Where a run keeps its things, and how to read them back."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from broker_config.errors import FedILError
from ops.recipe_files import with_data_root

if TYPE_CHECKING:
    from torch import nn

    from fedil_model.datasets.interface import Dataset
    from server_worker.recipe import Recipe


@dataclass(frozen=True)
class RunDir:
    root: Path

    @property
    def recipe(self) -> Path:
        return self.root / "recipe.json"

    @property
    def split(self) -> Path:
        return self.root / "split.json"

    @property
    def shards(self) -> Path:
        return self.root / "shards"

    @property
    def ledgers(self) -> Path:
        return self.root / "ledgers"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def history(self) -> Path:
        return self.root / "history.jsonl"

    @property
    def baseline(self) -> Path:
        return self.root / "baseline.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"


def load_run(run_dir: Path) -> "Recipe":
    """The recipe that a run was started with."""
    from server_worker.recipe import make_recipe

    path = RunDir(run_dir).recipe
    try:
        return make_recipe(json.loads(path.read_text(encoding="utf-8")), source=str(path))
    except FileNotFoundError as error:
        raise FedILError(f"{run_dir} is not a run: there is no {path.name} in it") from error
    except ValueError as error:
        raise FedILError(f"{path} is not readable as JSON ({error})") from error


def network_of(recipe: "Recipe", dataset: "Dataset") -> "nn.Module":
    """As a run builds it, with the weights it begins with: those that are never trained are not in checkpoints."""
    from fedil_model.networks import build_network
    from fedil_model.seeding import derive_seed

    seed = derive_seed(recipe.seed, "network")
    return build_network(recipe.network, dataset.input_shape, len(dataset.class_names), seed)


def load_weights(run_dir: Path, which: str = "global", dataset: "Dataset | None" = None) -> "nn.Module":
    """The trained network in eval mode, from the last checkpoint. Opens the run's dataset if it is not given."""
    import torch

    from fedil_model.datasets import open_dataset
    from fedil_model.parameters import FlatModel, Weights, from_arrays
    from server_worker.checkpoint import CheckpointFolder

    recipe, checkpoint = load_run(run_dir), CheckpointFolder(RunDir(run_dir).checkpoints).latest()
    models = checkpoint.meta.get("models", {}) if checkpoint else {}
    if checkpoint is None or not models:
        raise FedILError(f"{run_dir} has no finished round yet: continue it with --resume")
    if which not in models:
        raise FedILError(f"{run_dir} has no model {which!r}; it has {', '.join(sorted(models))}")
    module = network_of(recipe, dataset or open_dataset(with_data_root(recipe.data)))
    tensors = from_arrays(checkpoint.arrays)
    params, buffers = (tensors[key] for key in models[which])
    FlatModel(module, torch.device("cpu")).load(Weights(params, buffers))
    return module.eval()
