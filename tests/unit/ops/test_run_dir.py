import json
from pathlib import Path

import pytest
import torch
from torch import nn

from fedil_model.data.datasets.digits import digits
from fedil_model.data.datasets.interface import Dataset
from fedil_model.errors import SettingError
from fedil_model.networks import build_network
from fedil_model.seeding import derive_seed
from fedil_model.training.flat_model import FlatModel
from ops.cli.main import main
from ops.inspect.run_reading import load_weights
from server_worker.run.checkpoint import Checkpoint, CheckpointFolder
from server_worker.run.folder import RunDir
from server_worker.run.recipe import Recipe, make_recipe
from tests.foreign_code import Trap, foreign_code


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
    recipe = make_recipe({"seed": 5, "network": network, "data": {"name": "digits"}})
    trained = save_run(tmp_path / "run", recipe).state_dict()
    for name, value in load_weights(tmp_path / "run", recipe).state_dict().items():
        assert torch.equal(trained[name], value), name


def test_the_data_of_a_run_from_another_machine_is_looked_for_in_fedil_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"name": f"{__name__}:digits_in_a_folder", "root": "/gone/with/that/machine"}
    recipe = make_recipe({"network": {"name": "mlp"}, "data": data})
    save_run(tmp_path / "run", recipe)
    monkeypatch.setenv("FEDIL_DATA", str(tmp_path))
    assert not load_weights(tmp_path / "run", recipe).training


def test_a_dataset_that_is_handed_in_is_not_opened_again(tmp_path: Path) -> None:
    data = {"name": f"{__name__}:digits_in_a_folder", "root": "/gone/with/that/machine"}
    recipe = make_recipe({"network": {"name": "mlp"}, "data": data})
    save_run(tmp_path / "run", recipe)
    assert not load_weights(tmp_path / "run", recipe, "global", digits()).training


COMMANDS: dict[str, list[str]] = {
    "report": [],
    "evaluate": [],
    "export": ["--format", "onnx"],
    "predict": ["pictures"],
    "simulate": ["--resume"],
    "server": ["--recipe", "digits", "--broker", "amqp://127.0.0.1:1", "--store", "redis://127.0.0.1:1"],
}
WITH_PLUGIN = ("report", "evaluate", "export", "predict")


def words(command: str, run_dir: Path) -> list[str]:
    in_option = command not in WITH_PLUGIN
    return [command, *(["--run-dir"] if in_option else []), str(run_dir), *COMMANDS[command]]


@pytest.mark.parametrize("table", ["data", "network", "method"])
@pytest.mark.parametrize("command", COMMANDS)
def test_code_that_a_folder_names_is_not_imported(
    command: str,
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trap = foreign_run(tmp_path, monkeypatch, table)
    assert main(words(command, tmp_path / "run")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    remedy = f"add --plugin {trap.name}" if command in WITH_PLUGIN else "name the recipe"
    assert f"names code that would run here, {trap.name}: " in line
    assert remedy in line
    assert not trap.ran


@pytest.mark.parametrize("command", WITH_PLUGIN)
def test_code_that_is_allowed_by_name_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = foreign_run(tmp_path, monkeypatch, "data")
    main([*words(command, tmp_path / "run"), "--plugin", trap.name])
    assert trap.ran


def foreign_run(folder: Path, monkeypatch: pytest.MonkeyPatch, table: str) -> Trap:
    trap = foreign_code(folder, monkeypatch)
    monkeypatch.chdir(folder)
    (folder / "pictures").mkdir()
    (folder / "pictures" / "one.png").write_bytes(b"")
    (folder / "run").mkdir()
    RunDir(folder / "run").recipe.write_text(json.dumps({"name": "digits", table: {"name": trap.name}}))
    return trap


def test_a_model_that_the_run_does_not_have_is_named_with_those_that_it_has(tmp_path: Path) -> None:
    recipe = make_recipe({"network": {"name": "mlp"}, "data": {"name": "digits"}})
    save_run(tmp_path / "run", recipe)
    with pytest.raises(
        SettingError, match=r"no model 'ema'; it has global \(the model after the round, which ships\)"
    ):
        load_weights(tmp_path / "run", recipe, "ema")
