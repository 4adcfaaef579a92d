from pathlib import Path
from typing import Any

import pytest

import ops.local.simulate
from broker_config.protocol.errors import CheckpointDamaged, FedILError, LedgerMissing
from fedil_model.errors import NumericError, SettingError
from ops.cli.main import main
from ops.cli.recipe_files import read_recipe
from ops.inspect.summary import Summary
from ops.local.placing import going_on
from server_worker.run.folder import RunDir
from server_worker.run.recipe import Recipe
from tests.unit.ops.records import make_summary


def save_run(run_dir: Path, recipe: Recipe) -> None:
    run_dir.mkdir(parents=True, exist_ok=True)
    RunDir(run_dir).recipe.write_text(recipe.model_dump_json())
    RunDir(run_dir).checkpoints.mkdir()
    (RunDir(run_dir).checkpoints / "round-00000050.ckpt").write_text("weights")


@pytest.fixture(autouse=True)
def _no_fedil_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDIL_DATA", raising=False)


def test_a_resumed_run_finds_its_data_where_it_found_them_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_run(tmp_path, read_recipe("digits", ["data.root=/first"]))
    assert going_on(tmp_path, read_recipe("digits", [])).data.root == Path("/first")
    assert going_on(tmp_path, read_recipe("digits", ["data.root=/moved"])).data.root == Path("/moved")
    monkeypatch.setenv("FEDIL_DATA", "/of/this/machine")
    assert going_on(tmp_path, read_recipe("digits", [])).data.root == Path("/of/this/machine")


def test_a_run_with_other_settings_is_not_gone_on_with(tmp_path: Path) -> None:
    save_run(tmp_path, read_recipe("digits", []))
    with pytest.raises(SettingError, match="name was 'digits', is 'mine'"):
        going_on(tmp_path, read_recipe("digits", ["name=mine"]))


def test_a_run_that_diverges_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def diverging(recipe: Recipe, run_dir: Path, **_: Any) -> Summary:
        save_run(run_dir, recipe)
        raise NumericError("the loss is not finite")

    monkeypatch.setattr(ops.local.simulate, "simulate", diverging)
    assert main(["simulate", "--quiet", "--run-dir", str(tmp_path / "run")]) == 1
    complaint, how = capsys.readouterr().err.splitlines()
    assert complaint == "fedil: the loss is not finite"
    assert how.startswith("fedil: what was saved before is intact; go on with: ")
    assert how.endswith(f"simulate --quiet --run-dir {tmp_path / 'run'} --resume")


def test_an_overwrite_that_is_stopped_at_once_leaves_the_old_run_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    save_run(run_dir, read_recipe("digits", ["seed=1"]))

    def stopped(recipe: Recipe, run_dir: Path, **_: Any) -> Summary:
        run_dir.mkdir()
        RunDir(run_dir).recipe.write_text(recipe.model_dump_json())
        return make_summary(run_dir, stopped=True)

    monkeypatch.setattr(ops.local.simulate, "simulate", stopped)
    command = ["simulate", "--quiet", "--set", "seed=2", "--overwrite", "--run-dir", str(run_dir)]
    main(command)
    assert '"seed":1,' in RunDir(run_dir).recipe.read_text()
    assert " ".join(command) in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [run_dir]


@pytest.mark.parametrize("error", [CheckpointDamaged("delete it"), LedgerMissing("restore it")])
def test_a_run_whose_saved_state_is_damaged_is_not_called_intact(
    error: FedILError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def damaged(recipe: Recipe, run_dir: Path, **_: Any) -> Summary:
        save_run(run_dir, recipe)
        raise error

    monkeypatch.setattr(ops.local.simulate, "simulate", damaged)
    assert main(["simulate", "--quiet", "--run-dir", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err == f"fedil: {error}\n"


def test_a_run_that_was_killed_before_it_wrote_its_recipe_is_begun_by_the_same_command_with_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def simulate(recipe: Recipe, run_dir: Path, **_: Any) -> Summary:
        begun.append(recipe.name)
        return make_summary(run_dir)

    monkeypatch.setattr(ops.local.simulate, "simulate", simulate)
    (tmp_path / ".run.lock").write_text("4711")  # what kill -9 leaves
    assert main(["simulate", "--json", "--run-dir", str(tmp_path / "run"), "--resume"]) == 0
    assert begun == ["digits"]
