"""What a study runs, what it refuses before anything starts, and what its table says."""

from pathlib import Path
from typing import Any

import pytest

from fedil_model.errors import SettingError
from ops.study.cell import CellFile, rounds_within
from ops.study.cells import budget_differences, compared_methods, parse_seeds, swept_settings
from ops.study.results import _row, accuracy_words, to_csv, to_latex
from ops.study.runner import Study
from server_worker.run.folder import RunDir


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("1", [0]), ("3", [0, 1, 2]), ("0-4", [0, 1, 2, 3, 4]), ("5,7", [5, 7]), ("1,3-4,3", [1, 3, 4])],
)
def test_seeds(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "a", "3-", "4-2", "1.5"])
def test_seeds_that_are_none(text: str) -> None:
    with pytest.raises(SettingError, match="--seeds"):
        parse_seeds(text)


def test_methods_share_split_and_budget_and_keep_their_own_settings() -> None:
    overrides = ["rounds=4", "semifl:method.threshold=0.8", "fedil/paper:client.epochs=3"]
    cells = compared_methods("digits", ["fedil", "fedil/paper", "semifl"], [0, 1], overrides)
    by_name = {cell.name: cell.recipe for cell in cells}
    assert list(by_name) == [
        "fedil-seed-0",
        "fedil-seed-1",
        "fedil-paper-seed-0",
        "fedil-paper-seed-1",
        "semifl-seed-0",
        "semifl-seed-1",
    ]
    assert {recipe.rounds for recipe in by_name.values()} == {4}
    assert by_name["fedil-paper-seed-1"].profile == "paper"
    assert by_name["fedil-paper-seed-1"].seed == 1
    assert by_name["semifl-seed-0"].method.model_dump()["threshold"] == 0.8
    assert by_name["fedil-seed-0"].method.model_dump()["threshold"] == 0.95
    assert all(recipe.baseline_epochs == 0 for recipe in by_name.values())
    assert budget_differences(cells) == [
        "client.epochs: fedil 5, fedil/paper 3, semifl 5",
        "server.pretrain_epochs: fedil 60, fedil/paper 0, semifl 50",
        "network.norm: fedil auto, fedil/paper bn, semifl sbn",
    ]


def test_a_method_comes_several_times_with_settings_of_its_own() -> None:
    """As in an ablation: one thing off at a time"""
    methods = ["fedil", "fedil@no-filter", "fedil/paper@T3"]
    overrides = ["fedil@no-filter:method.cosine_filter=false", "fedil/paper@T3:method.credibility=3"]
    cells = compared_methods("digits", methods, [0], overrides)
    found = {cell.variant: cell.recipe.method.model_dump() for cell in cells}
    assert list(found) == methods
    assert [values["cosine_filter"] for values in found.values()] == [True, False, True]
    assert [values["credibility"] for values in found.values()] == [7, 7, 3]
    assert len({cell.name for cell in cells}) == 3
    assert cells[2].recipe.profile == "paper"


def test_a_recipes_own_method_table_is_for_that_method(tmp_path: Path) -> None:
    text = (
        'profile = "paper"\nrounds = 3\n[data]\nname = "digits"\n[split]\nlabelled = 50\nclients = 8\n'
        '[network]\nname = "cnn"\nwidth = 8\n[method]\ncredibility = 3\n'
    )
    (tmp_path / "own.toml").write_text(text)
    cells = compared_methods(str(tmp_path / "own.toml"), ["fedil", "fedmatch"], [0], [])
    assert cells[0].recipe.method.model_dump()["credibility"] == 3
    assert (cells[0].recipe.profile, cells[1].recipe.profile) == ("paper", "fedmatch")


def test_rates_and_norm_that_a_recipe_has_for_its_own_method_are_for_that_method() -> None:
    methods = ["fedil", "semifl", "fedmatch/paper", "server_only"]
    cells = compared_methods("mnist-noniid-001", methods, [0], ["semifl:server.lr=0.1"])
    recipes = {cell.variant: cell.recipe for cell in cells}
    assert [recipe.client.lr for recipe in recipes.values()] == [0.015, 0.03, 0.001, 0.03]
    assert [recipe.server.lr for recipe in recipes.values()] == [0.02, 0.1, 0.001, 0.03]
    assert [recipe.network.norm for recipe in recipes.values()] == ["sbn", "sbn", "gn", "auto"]
    assert {recipe.client.epochs for recipe in recipes.values()} == {2}, "the budget is the recipe's"
    assert "network.norm: fedil sbn, semifl sbn, fedmatch/paper gn, server_only auto" in budget_differences(
        cells
    )


@pytest.mark.parametrize(
    ("methods", "overrides", "words"),
    [
        (["fedil", "semifk"], [], "did you mean semifl"),
        (
            ["fedil"],
            ["method.treshold=0.9"],
            "unknown setting method.treshold; did you mean method.threshold",
        ),
        (["fedil"], ["semifl:method.threshold=0.9"], "semifl is not among --methods fedil"),
        (["fedil/papr"], [], "profile"),
        (
            ["fedil", "semifl"],
            ["semifl:split.clients=10"],
            "split.clients is 20 for one and 10 for the other",
        ),
        (["fedil", "semifl"], ["semifl:split.labelled=60"], "cannot be compared"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_starts(
    methods: list[str], overrides: list[str], words: str
) -> None:
    with pytest.raises(SettingError, match=words.replace("(", r"\(")):
        compared_methods("digits", methods, [0], overrides)


def test_a_sweep_has_each_value_with_each() -> None:
    cells = swept_settings("digits", [3], ["rounds=2", "client.epochs=1,2", "method.threshold=0.8,0.9"])
    assert [cell.variant for cell in cells] == [
        "epochs=1 threshold=0.8",
        "epochs=1 threshold=0.9",
        "epochs=2 threshold=0.8",
        "epochs=2 threshold=0.9",
    ]
    assert {(cell.recipe.rounds, cell.seed) for cell in cells} == {(2, 3)}
    with pytest.raises(SettingError, match="nothing to sweep over"):
        swept_settings("digits", [0], ["rounds=2"])


def test_keys_with_the_same_last_part_are_named_in_full() -> None:
    cells = swept_settings("digits", [0], ["client.epochs=1,2", "server.epochs=1,3"])
    assert cells[1].variant == "client.epochs=1 server.epochs=3"


def test_a_list_is_one_value_of_a_sweep() -> None:
    cells = swept_settings("digits", [0], ["federation.sites={a=10,b=10},{c=20}"])
    assert [cell.recipe.federation.sites for cell in cells] == [{"a": 10, "b": 10}, {"c": 20}]


def test_a_folder_with_other_settings_is_refused(tmp_path: Path) -> None:
    study = Study(tmp_path, compared_methods("digits", ["fedil"], [0], ["rounds=2"]))
    study.prepare()
    file = study.file_of(study.cells[0])
    RunDir(file.run_dir).root.mkdir()
    RunDir(file.run_dir).recipe.write_text(study.cells[0].recipe.model_dump_json())
    study.prepare()
    other = Study(tmp_path, compared_methods("digits", ["fedil"], [0], ["rounds=2", "client.lr=0.5"]))
    with pytest.raises(SettingError, match=r"client\.lr was 0\.05, is 0\.5.*another --out"):
        other.prepare()
    with pytest.raises(SettingError, match="--cpu-seconds was None, is 60"):
        Study(tmp_path, study.cells, cpu_seconds=60.0).prepare()


def test_rounds_that_fit_a_budget(tmp_path: Path) -> None:
    lines = [f'{{"round": {n}, "cpu_seconds": {seconds}}}' for n, seconds in enumerate([12.0, 2.0, 3.0], 1)]
    RunDir(tmp_path).history.write_text("\n".join(lines) + "\n")
    assert rounds_within(59.4, tmp_path) == 19  # 9.5 before all rounds, 2.5 each
    assert rounds_within(1.0, tmp_path) == 1


def cell(variant: str, accuracy: float, state: str = "done") -> dict[str, Any]:
    sizes = {"bytes_sent": 2_000_000, "bytes_received": 1_000_000, "cpu_seconds": 30.0, "seconds": 20.0}
    found = {"accuracy": {"global": accuracy}, "rounds": 10, **sizes}
    return {"variant": variant, "seed": 0, "state": state, "reason": "", **(found if state == "done" else {})}


def test_the_table_has_mean_and_spread_and_says_what_failed() -> None:
    rows = [
        _row("a_b", [cell("a_b", 0.90), cell("a_b", 0.92)]),
        _row("c", [cell("c", 0.95)]),
        _row("d", [cell("d", 0.0, "failed")]),
    ]
    assert [accuracy_words(row) for row in rows] == ["91.00 ± 1.41", "95.00", "failed"]
    results = {"table": rows}
    assert to_csv(results).splitlines()[1:] == [
        "a_b,91.0,1.41,2,0,10.0,30.0,20.0,2.0,1.0",
        "c,95.0,,1,0,10.0,30.0,20.0,2.0,1.0",
        "d,,,0,1,,,,,",
    ]
    latex = to_latex(results)
    assert r"a\_b & 91.00 $\pm$ 1.41 & 30 & 1 \\" in latex
    assert r"c & \textbf{95.00} & 30 & 1 \\" in latex
    assert r"d & failed & -- & -- \\" in latex


def test_a_cells_file_and_folder(tmp_path: Path) -> None:
    assert CellFile(tmp_path / "a.json").run_dir == tmp_path / "a"
