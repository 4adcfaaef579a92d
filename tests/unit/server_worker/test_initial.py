"""Weights that a run begins with: read, checked, kept, and used by every method"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedil_model.errors import SettingError
from fedil_model.methods import METHODS, find_method
from ops.inspect.run_reading import load_weights
from server_worker.run.folder import RunDir
from server_worker.run.initial import Initial, read_initial
from server_worker.run.inputs import network_of, read_inputs
from server_worker.run.recipe import Recipe, make_recipe
from tests.federation import blobs
from tests.unit.fedil_model.steps import LABELLED, context_of
from tests.unit.ops.test_run_dir import save_run

CPU = torch.device("cpu")
MLP = {"name": "mlp", "width": 8, "norm": "none"}


def recipe_from(source: Path, **changes: Any) -> Recipe:
    return make_recipe({"network": MLP, "data": {"name": "digits"}, "init_from": source, **changes})


def sevens(network: nn.Module) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(tensor, 7.0) for name, tensor in network.state_dict().items()}


@pytest.fixture
def network() -> nn.Module:
    return blobs_network(make_recipe({"network": MLP}))


def blobs_network(recipe: Recipe) -> nn.Module:
    return network_of(recipe, blobs())


def test_a_run_begins_with_what_another_run_ended_with(tmp_path: Path) -> None:
    trained = make_recipe({"network": MLP, "data": {"name": "digits"}})
    save_run(tmp_path / "before", trained)
    recipe = recipe_from(tmp_path / "before", seed=1, split={"labelled": 20, "clients": 5})
    first = read_inputs(RunDir(tmp_path / "run"), recipe, CPU, resume=False).initial
    assert first is not None
    expected = load_weights(tmp_path / "before", trained).state_dict()
    assert first.tensors.keys() == expected.keys()
    assert all(torch.equal(first.tensors[name], expected[name]) for name in expected)


def test_a_run_keeps_what_it_began_with_and_reads_that_again(tmp_path: Path, network: nn.Module) -> None:
    save_file(sevens(network), tmp_path / "w.safetensors")
    where, recipe = RunDir(tmp_path), recipe_from(tmp_path / "w.safetensors")
    initial = read_initial(where, recipe, network)
    assert initial is not None
    initial.keep(where)
    (tmp_path / "w.safetensors").unlink()
    again = read_initial(where, recipe, network)
    assert again is not None
    assert again.digest == initial.digest
    assert initial.digest.encode() in where.initial.read_bytes()
    other = Initial({**initial.tensors, "fc.bias": torch.zeros(4)}, "")
    assert other.digest != initial.digest


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"fc.bias": None}, r"it lacks fc\.bias, which the network has; it has "),
        ({"fc.bias": torch.zeros(5)}, r"fc\.bias has shape \(5,\), the network's has \(4,\)"),
        ({"more": torch.zeros(1)}, "the network has no more; it has "),
        ({"fc.bias": torch.full((4,), torch.nan)}, r"fc\.bias has values that are not finite"),
    ],
)
def test_weights_that_do_not_fit_are_explained(
    tmp_path: Path, network: nn.Module, change: dict[str, torch.Tensor | None], says: str
) -> None:
    tensors = {**sevens(network), **change}
    save_file({name: t for name, t in tensors.items() if t is not None}, tmp_path / "w.safetensors")
    with pytest.raises(SettingError, match=f"init_from=.*w.safetensors: {says}"):
        read_initial(RunDir(tmp_path), recipe_from(tmp_path / "w.safetensors"), network)


def test_places_without_weights_are_explained(tmp_path: Path, network: nn.Module) -> None:
    def refused(source: Path, says: str, **changes: Any) -> None:
        with pytest.raises(SettingError, match=says):
            read_initial(RunDir(tmp_path / "new"), recipe_from(source, **changes), network)

    refused(tmp_path / "nowhere", "init_from: there is no .*nowhere")
    (tmp_path / "w.safetensors").write_text("no weights")
    refused(tmp_path / "w.safetensors", "neither the folder of a run nor a safetensors file")
    refused(tmp_path, r"is not the folder of a run \(it has no recipe.json\)")
    save_run(tmp_path / "before", make_recipe({"network": MLP, "data": {"name": "digits"}}))
    refused(tmp_path / "before", "network.width is 8 there, 16 here", network={**MLP, "width": 16})
    refused(tmp_path / "before", "do not fit a network of .*; other data have other inputs or classes")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_begins_with_the_given_weights(name: str, network: nn.Module) -> None:
    server = {"pretrain_epochs": 0, "pretrain_lr": None}
    context = context_of({"network": MLP, "server": server, "method": {"name": name}})
    state = find_method(name).make(replace(context, initial=sevens(network))).initial_state(LABELLED)
    count = sum(parameter.numel() for parameter in network.parameters())
    vectors = list(state.values())
    if "psi.params" in state:  # FedMatch keeps its weights as a sum
        vectors.append(state["sigma.params"] + state["psi.params"])
    assert max(int((vector == 7.0).sum()) for vector in vectors) == count


def test_class_weights_of_another_number_than_classes_are_refused(tmp_path: Path) -> None:
    recipe = make_recipe({"network": MLP, "server": {"class_weights": [1, 2.5]}, "split": {"labelled": 20}})
    with pytest.raises(SettingError, match=r"class_weights has 2 numbers, and the data have 10 classes"):
        read_inputs(RunDir(tmp_path / "run"), recipe, CPU, resume=False)


@pytest.mark.parametrize("given", ["balancd", [1.0, 0.0], 3])
def test_class_weights_that_are_none_are_one_line(given: object) -> None:
    with pytest.raises(SettingError) as caught:
        make_recipe({"server": {"class_weights": given}})
    expected = 'recipe: server.class_weights: is "balanced", or a list of numbers above 0, one for each class'
    assert str(caught.value) == expected
