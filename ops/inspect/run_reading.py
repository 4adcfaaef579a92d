"""How to read back what a run keeps."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from broker_config.protocol.errors import FedILError
from fedil_model.errors import SettingError
from ops.cli.recipe_files import with_data_root
from server_worker.run.folder import RunDir

if TYPE_CHECKING:
    from torch import nn

    from fedil_model.data.datasets.interface import Dataset
    from server_worker.run.recipe import Recipe


def load_run(run_dir: Path) -> "Recipe":
    """The recipe that a run was started with."""
    from server_worker.run.recipe import make_recipe

    path = RunDir(run_dir).recipe
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError("it holds no settings")
        return make_recipe(values, source=str(path))
    except FileNotFoundError as error:
        raise FedILError(f"{run_dir} is not a run: there is no {path.name} in it") from error
    except ValueError as error:
        raise FedILError(f"{path} is not readable as JSON ({error})") from error


def load_weights(run_dir: Path, which: str = "global", dataset: "Dataset | None" = None) -> "nn.Module":
    """The trained network in eval mode, from the last checkpoint. Opens the run's dataset if it is not given."""
    import torch

    from fedil_model.data.datasets import open_dataset
    from fedil_model.training.flat_model import FlatModel, Weights, from_arrays
    from server_worker.run.checkpoint import CheckpointFolder
    from server_worker.run.inputs import network_of

    recipe, checkpoint = load_run(run_dir), CheckpointFolder(RunDir(run_dir).checkpoints).latest()
    models = checkpoint.meta.get("models", {}) if checkpoint else {}
    if checkpoint is None or not models:
        raise FedILError(f"{run_dir} has no finished round yet: continue it with --resume")
    if which not in models:
        raise SettingError(f"{run_dir} has no model {which!r}; it has {', '.join(sorted(models))}")
    module = network_of(recipe, dataset or open_dataset(with_data_root(recipe.data)))
    tensors = from_arrays(checkpoint.arrays)
    params, buffers = (tensors[key] for key in models[which])
    FlatModel(module, torch.device("cpu")).load(Weights(params, buffers))
    return module.eval()
