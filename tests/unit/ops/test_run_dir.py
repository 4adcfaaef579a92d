from pathlib import Path

import pytest
import torch
from torch import nn

from fedil_model.data.datasets.digits import digits
from fedil_model.data.datasets.interface import Dataset
from fedil_model.networks import build_network
from fedil_model.seeding import derive_seed
from fedil_model.training.flat_model import FlatModel
from ops.inspect.run_reading import load_weights
from server_worker.run.checkpoint import Checkpoint, CheckpointFolder
from server_worker.run.folder import RunDir
from server_worker.run.recipe import Recipe


def half_frozen(_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    frozen = nn.Linear(64, 5).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), frozen, nn.ReLU(), nn.Linear(5, num_classes))


def digits_in_a_folder(root: Path) -> Dataset:
    if not root.is_dir():
        raise FileNotFoundError(root)
    return digits()


def save_run(run_dir: Path, recipe: Recipe) -> nn.Module:
    """One round old; returns the network that it ended with."""
    run_dir.mkdir()
    RunDir(run_dir).recipe.write_text(recipe.model_dump_json())
    network = build_network(recipe.network, (1, 8, 8), 10, derive_seed(recipe.seed, "network"))
    weights = FlatModel(network).weights()
    arrays = {"params": weights.params.numpy() + 1, "buffers": weights.buffers.numpy()}
    meta = {"models": {"global": ["params", "buffers"]}}
    CheckpointFolder(RunDir(run_dir).checkpoints).save(Checkpoint(1, meta, arrays))
    for parameter in filter(lambda p: p.requires_grad, network.parameters()):
        parameter.data += 1
    return network


def test_weights_that_are_never_trained_are_those_that_the_run_began_with(tmp_path: Path) -> None:
    network = {"name": f"{__name__}:half_frozen"}
    recipe = Recipe.model_validate({"seed": 5, "network": network, "data": {"name": "digits"}})
    trained = save_run(tmp_path / "run", recipe).state_dict()
    for name, value in load_weights(tmp_path / "run").state_dict().items():
        assert torch.equal(trained[name], value), name


def test_the_data_of_a_run_from_another_machine_is_looked_for_in_fedil_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"name": f"{__name__}:digits_in_a_folder", "root": "/gone/with/that/machine"}
    save_run(tmp_path / "run", Recipe.model_validate({"network": {"name": "mlp"}, "data": data}))
    monkeypatch.setenv("FEDIL_DATA", str(tmp_path))
    assert not load_weights(tmp_path / "run").training


def test_a_dataset_that_is_handed_in_is_not_opened_again(tmp_path: Path) -> None:
    data = {"name": f"{__name__}:digits_in_a_folder", "root": "/gone/with/that/machine"}
    save_run(tmp_path / "run", Recipe.model_validate({"network": {"name": "mlp"}, "data": data}))
    assert not load_weights(tmp_path / "run", "global", digits()).training
