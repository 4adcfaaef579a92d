from pathlib import Path

import pytest

from fedil_model.errors import SettingError
from ops.cli.commands.recipes import print_resolved
from ops.cli.recipe_files import (
    RECIPES,
    built_in_names,
    find_recipe,
    read_recipe,
    with_data_root,
)
from server_worker.run.recipe import Recipe, load_recipe
from server_worker.run.resuming import differences

SIZES = {"mnist": 60_000, "fashion_mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000, "svhn": 73_257}


@pytest.mark.parametrize("name", built_in_names())
def test_a_built_in_recipe_loads_under_its_own_name_with_a_one_line_description(name: str) -> None:
    recipe = load_recipe(RECIPES / f"{name}.toml")
    assert recipe.name == name
    assert 20 <= len(recipe.description) <= 100
    assert "\n" not in recipe.description


@pytest.mark.parametrize("name", [name for name in built_in_names() if name.endswith(("-001", "-01"))])
def test_a_recipe_of_the_paper_has_its_clients_and_its_share_of_labels(name: str) -> None:
    recipe = load_recipe(RECIPES / f"{name}.toml")
    dataset, partition, share = name.split("-")
    assert recipe.data.name.replace("_", "") == dataset
    assert recipe.split.partition == {"iid": "iid", "noniid": "classes"}[partition]
    assert recipe.split.labelled_fraction == {"001": 0.01, "01": 0.1}[share]
    assert (recipe.split.clients, recipe.federation.clients_per_round) == (100, 5)
    assert f"{int(SIZES[recipe.data.name] * recipe.split.labelled_fraction):,} labels" in recipe.description


def test_the_default_recipe_needs_no_download() -> None:
    recipe = load_recipe(RECIPES / "digits.toml")
    assert (recipe.data.name, recipe.data.download) == ("digits", False)


def test_a_name_that_is_nearly_right_is_suggested() -> None:
    with pytest.raises(SettingError, match=r"no recipe 'digts'; did you mean digits\?"):
        find_recipe("digts")


def test_a_toml_file_is_taken_as_it_is_named(tmp_path: Path) -> None:
    assert find_recipe("mine.toml") == Path("mine.toml")
    assert find_recipe(f"{tmp_path}/other") == tmp_path / "other"


def test_fedil_data_is_the_root_that_nobody_has_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDIL_DATA", str(tmp_path))
    assert read_recipe("digits", []).data.root == tmp_path
    there = tmp_path / "there"
    there.mkdir()
    assert read_recipe("digits", [f"data.root='{there}'"]).data.root == there


def test_a_root_from_another_machine_gives_way_to_fedil_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = Recipe.model_validate({"data": {"root": "/gone/with/that/machine"}}).data
    monkeypatch.delenv("FEDIL_DATA", raising=False)
    assert with_data_root(elsewhere) == elsewhere
    monkeypatch.setenv("FEDIL_DATA", str(tmp_path))
    assert with_data_root(elsewhere).root == tmp_path


@pytest.mark.parametrize(
    "override",
    [
        "data.root=/moved",
        "data.download=true",
        "description=mine",
        "evaluate_every=3",
        "baseline_epochs=0",
        "federation.deadline_seconds=9999",
        "federation.quorum=0.5",
    ],
)
def test_a_run_can_go_on_with_what_changes_no_number(override: str) -> None:
    assert differences(read_recipe("digits", []), read_recipe("digits", [override])) == []


def test_a_run_cannot_go_on_under_another_name_which_its_ledgers_do_not_have() -> None:
    changes = differences(read_recipe("digits", []), read_recipe("digits", ["name=mine"]))
    assert changes == ["name was 'digits', is 'mine'"]


def test_more_rounds_are_a_difference_too() -> None:
    saved = read_recipe("digits", ["rounds=10"])
    assert differences(saved, read_recipe("digits", ["rounds=20"])) == ["rounds was 10, is 20"]


def test_fewer_rounds_and_changed_settings_are_named() -> None:
    saved = read_recipe("digits", ["rounds=10", "client.lr=0.05"])
    changes = differences(saved, read_recipe("digits", ["rounds=9", "client.lr=0.1"]))
    assert changes == ["client.lr was 0.05, is 0.1", "rounds was 10, is 9"]


def test_changed_options_of_a_plugin_are_named() -> None:
    saved = read_recipe("digits", [])
    asked = read_recipe("digits", ["data.options={size = 16}"])
    assert differences(saved, asked) == ["data.options was {}, is {'size': 16}"]


@pytest.mark.parametrize("name", ["digits", "mnist-noniid-001"])
def test_a_resolved_recipe_is_itself_a_recipe(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_resolved(RECIPES / f"{name}.toml")
    copy = tmp_path / "copy.toml"
    copy.write_text(capsys.readouterr().out, encoding="utf-8")
    assert load_recipe(copy) == load_recipe(RECIPES / f"{name}.toml")
