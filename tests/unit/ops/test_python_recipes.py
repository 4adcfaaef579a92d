"""Recipes that are made by calling fedil.Recipe"""

from pathlib import Path
from typing import Any

import pytest

import fedil
from fedil.words import in_python
from fedil_model.errors import SettingError
from ops.cli.recipe_files import read_recipe
from tests.federation import blobs


@pytest.fixture(autouse=True)
def _no_fedil_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDIL_DATA", raising=False)


@pytest.mark.parametrize(
    "settings",
    [
        {"client__lr": 0.125, "rounds": 7},
        {"client.lr": 0.125, "rounds": 7},
        {"client": {"lr": 0.125}, "rounds": 7},
    ],
)
def test_settings_are_given_by_keyword_by_dotted_key_or_as_tables(settings: dict[str, Any]) -> None:
    expected = read_recipe("digits", ["client.lr=0.125", "rounds=7"])
    assert fedil.Recipe("digits", **settings) == expected
    assert fedil.Recipe(fedil.Recipe("digits"), **settings) == expected


def test_a_toml_file_and_a_table_are_recipes_too(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("rounds = 3\n[split]\nlabelled = 5\n")
    assert fedil.Recipe(tmp_path / "mine.toml") == fedil.Recipe({"rounds": 3, "split": {"labelled": 5}})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"client__lrr": 1.0}, "client.lrr=1.0: unknown setting client.lrr; did you mean client.lr?"),
        ({"client": {"lrr": 1.0}}, "unknown setting client.lrr; did you mean client.lr?"),
        ({"rounds": 0}, "rounds=0: rounds: Input should be greater than 0"),
        (
            {"method__name": "fedill"},
            "method.name='fedill': method.name: unknown 'fedill'; did you mean fedil?",
        ),
        ({"client lr": 1.0}, "'client lr' is no setting: write client__lr=0.1, or **{'client.lr': 0.1}"),
        ({"data__name": lambda: None}, "data.name: workers are processes of their own and import '<lambda>'"),
    ],
)
def test_errors_are_those_of_a_recipe_file(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError) as caught:
        fedil.Recipe("digits", **settings)
    assert says in str(caught.value)


def test_a_misspelt_argument_is_told_from_a_misspelt_setting() -> None:
    with pytest.raises(SettingError, match=r"unknown argument worker; did you mean workers\?"):
        fedil.simulate("digits", worker=2)
    with pytest.raises(SettingError, match=r"unknown setting roundz; did you mean rounds\?"):
        fedil.simulate("digits", roundz=2)


def test_a_run_is_either_gone_on_with_or_replaced() -> None:
    with pytest.raises(SettingError, match="give one of them"):
        fedil.simulate("digits", resume=True, overwrite=True)


def test_a_function_stands_for_the_name_by_which_workers_import_it() -> None:
    assert fedil.Recipe("digits", data__name=blobs).data.name == "tests.federation:blobs"
    assert fedil.Recipe({"data": {"name": blobs}}).data.name == "tests.federation:blobs"


def test_another_method_brings_its_own_defaults_to_a_recipe_made_before() -> None:
    base = fedil.Recipe(split={"labelled": 30, "clients": 6})
    assert fedil.Recipe(base, method__name="semifl") == fedil.Recipe(
        split={"labelled": 30, "clients": 6}, method={"name": "semifl"}
    )


def test_errors_name_arguments_and_not_options() -> None:
    said = "runs/x already holds a run: add --resume to go on with it, or --overwrite to replace it"
    assert "add resume=True to go on with it, or overwrite=True" in in_python(said)
    assert (
        in_python("if you trust it, add --plugin mine:data") == "if you trust it, add plugins=['mine:data']"
    )
