"""Where a run keeps its things, and how to read them back."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from broker_config.errors import FedILError
from server_worker.recipe import Recipe, make_recipe

if TYPE_CHECKING:
    from torch import nn


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


def load_run(run_dir: Path) -> Recipe:
    """The recipe that a run was started with."""
    path = RunDir(run_dir).recipe
    try:
        return make_recipe(json.loads(path.read_text(encoding="utf-8")), source=str(path))
    except FileNotFoundError as error:
        raise FedILError(f"{run_dir} is not a run: there is no {path.name} in it") from error
    except ValueError as error:
        raise FedILError(f"{path} is not readable as JSON ({error})") from error


def load_weights(run_dir: Path, which: str = "global") -> "nn.Module":
    """The trained network in eval mode, from the last checkpoint."""
    import torch

    from fedil_model.datasets import open_dataset
    from fedil_model.networks import build_network
    from fedil_model.parameters import FlatModel, Weights, from_arrays
    from server_worker.checkpoint import CheckpointFolder

    recipe, checkpoint = load_run(run_dir), CheckpointFolder(RunDir(run_dir).checkpoints).latest()
    models = checkpoint.meta.get("models", {}) if checkpoint else {}
    if checkpoint is None or not models:
        raise FedILError(f"{run_dir} has no finished round yet: continue it with --resume")
    if which not in models:
        raise FedILError(f"{run_dir} has no model {which!r}; it has {', '.join(sorted(models))}")
    dataset, tensors = open_dataset(recipe.data), from_arrays(checkpoint.arrays)
    module = build_network(recipe.network, dataset.input_shape, len(dataset.class_names), seed=0)
    params, buffers = (tensors[key] for key in models[which])
    FlatModel(module, torch.device("cpu")).load(Weights(params, buffers))
    return module.eval()
