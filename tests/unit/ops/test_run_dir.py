from pathlib import Path

import pytest
import torch
from torch import nn

from fedil_model.networks import build_network
from fedil_model.parameters import FlatModel
from fedil_model.seeding import derive_seed
from ops.run_dir import RunDir, load_weights
from server_worker.checkpoint import Checkpoint, CheckpointFolder
from server_worker.recipe import Recipe

USERS_OWN = """
from torch import nn
from fedil_model.datasets.digits import digits

opened_at = []

def at(root=None):
    opened_at.append(root)
    return digits()

def half_frozen(input_shape, num_classes):
    frozen = nn.Linear(64, 5).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), frozen, nn.ReLU(), nn.Linear(5, num_classes))
"""


@pytest.fixture
def users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "users_own_run.py").write_text(USERS_OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "users_own_run"


def save_run(run_dir: Path, recipe: Recipe, network: nn.Module) -> None:
    run_dir.mkdir()
    RunDir(run_dir).recipe.write_text(recipe.model_dump_json())
    weights = FlatModel(network).weights()
    arrays = {"params": weights.params.numpy(), "buffers": weights.buffers.numpy()}
    meta = {"models": {"global": ["params", "buffers"]}}
    CheckpointFolder(RunDir(run_dir).checkpoints).save(Checkpoint(1, meta, arrays))


def test_weights_that_are_never_trained_are_those_that_the_run_began_with(
    users_own: str, tmp_path: Path
) -> None:
    recipe = Recipe.model_validate(
        {"seed": 5, "network": {"name": f"{users_own}:half_frozen"}, "data": {"name": "digits"}}
    )
    trained = build_network(recipe.network, (1, 8, 8), 10, derive_seed(5, "network"))
    save_run(tmp_path / "run", recipe, trained)
    loaded = load_weights(tmp_path / "run")
    for name, value in trained.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_the_data_of_a_run_from_another_machine_is_looked_for_in_fedil_data(
    users_own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"name": f"{users_own}:at", "root": "/gone/with/that/machine"}
    recipe = Recipe.model_validate({"network": {"name": f"{users_own}:half_frozen"}, "data": data})
    save_run(tmp_path / "run", recipe, build_network(recipe.network, (1, 8, 8), 10, seed=0))
    monkeypatch.setenv("FEDIL_DATA", str(tmp_path))
    load_weights(tmp_path / "run")
    import users_own_run  # type: ignore[import-not-found]

    assert users_own_run.opened_at == [tmp_path]
