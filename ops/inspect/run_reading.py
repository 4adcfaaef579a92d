"""How to read back what a run keeps."""

import shlex
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broker_config.protocol.errors import FedILError
from fedil_model.errors import SettingError
from ops.cli.recipe_files import with_data_root
from server_worker.run.folder import RunDir, read_json

if TYPE_CHECKING:
    from torch import nn

    from fedil_model.data.datasets.interface import Dataset
    from fedil_model.settings import DataSettings
    from server_worker.run.recipe import Recipe


ALLOW_BY_NAME = "if you trust it, add --plugin {name}"
NAME_THE_RECIPE = "name the recipe that the run was started with"


def load_run(run_dir: Path, plugins: Collection[str] = (), remedy: str = ALLOW_BY_NAME) -> "Recipe":
    """The recipe that a run was started with. `plugins`: code that it may name."""
    values = recipe_values(run_dir)
    refuse_other_plugins(run_dir, values, plugins, remedy)
    from server_worker.run.recipe import make_recipe

    return make_recipe(values, source=str(RunDir(run_dir).recipe))


def recipe_values(run_dir: Path) -> dict[str, Any]:
    """As recipe.json has them: nothing is validated or imported."""
    path = RunDir(run_dir).recipe
    if not run_dir.exists():
        raise SettingError(f"there is no folder {run_dir}")
    if not path.exists():
        raise SettingError(f"{run_dir} is not the folder of a run (it has no {path.name})")
    values = read_json(path)
    if not isinstance(values, dict):
        raise FedILError(f"{path} is not a recipe: it holds a {type(values).__name__}")
    return values


def refuse_other_plugins(
    run_dir: Path, values: dict[str, Any], plugins: Collection[str], remedy: str = ALLOW_BY_NAME
) -> None:
    """The folder may come from elsewhere: code that its recipe names runs only if it is allowed by name."""
    from fedil_model.methods import plugins_named

    for name in plugins_named(values):
        if name not in plugins:
            how = remedy.format(name=shlex.quote(name))
            raise SettingError(f"{RunDir(run_dir).recipe} names code that would run here, {name}: {how}")


def data_settings(run_dir: Path, recipe: "Recipe") -> "DataSettings":
    """How the run's dataset opens, without its files if need be."""
    saved, data = read_json(RunDir(run_dir).dataset), with_data_root(recipe.data)
    known = saved if isinstance(saved, dict) else {}
    return data.model_copy(update={"options": {**known, **data.options}})


def load_weights(
    run_dir: Path, recipe: "Recipe", which: str = "global", dataset: "Dataset | None" = None
) -> "nn.Module":
    """The trained network in eval mode, from the last checkpoint. Opens the run's dataset if it is not given."""
    import torch

    from fedil_model.data.datasets import open_dataset
    from fedil_model.data.split import Split
    from fedil_model.training.flat_model import FlatModel, Weights, from_arrays
    from server_worker.run.checkpoint import CheckpointFolder
    from server_worker.run.inputs import labelled_samples, make_fit, network_of

    checkpoint = CheckpointFolder(RunDir(run_dir).checkpoints).latest()
    models = checkpoint.meta.get("models", {}) if checkpoint else {}
    if checkpoint is None or not models:
        raise FedILError(f"{run_dir} has no finished round yet: continue it with --resume")
    declared = {model.name: model for model in recipe.spec.display.models}
    if which not in models:
        known = "; ".join(f"{name} ({declared[name].help})" for name in declared if name in models)
        raise SettingError(f"{run_dir} has no model {which!r}; it has {known}")
    dataset = dataset or open_dataset(data_settings(run_dir, recipe))
    model = FlatModel(network_of(recipe, dataset), torch.device("cpu"))
    tensors = from_arrays(checkpoint.arrays)
    params, buffers = (tensors[key] for key in models[which])
    weights = Weights(params, buffers)
    if fit := declared[which].fit:
        labelled = labelled_samples(dataset.load_train(), Split.load(RunDir(run_dir).split), recipe)
        weights = make_fit(fit, labelled, dataset, recipe)(model, weights)
    model.load(weights)
    return model.module.eval()
