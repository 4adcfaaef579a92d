import json
from pathlib import Path

import pytest

from ops.cli.main import main
from ops.inspect.runs import runs_below
from server_worker.run.folder import RunDir
from server_worker.run.lock import sole_use
from server_worker.run.recipe import make_recipe
from tests.unit.ops.records import make_record


def save_run(folder: Path, done: int, *overrides: str) -> RunDir:
    where = RunDir(folder)
    where.checkpoints.mkdir(parents=True)
    where.recipe.write_text(make_recipe({}, overrides=overrides).model_dump_json())
    (where.checkpoints / f"round-{done:08d}.ckpt").write_bytes(b"x" * 1000)
    return where


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    where = save_run(tmp_path / "study/cells/one", 4, "rounds=4", "name=one", "method.name=semifl")
    rounds = [make_record(3, accuracy={"global": 0.25}), make_record(4, accuracy={})]
    where.history.write_text("".join(f"{record.to_json()}\n" for record in rounds))
    save_run(tmp_path / "two", 1, "rounds=4", "name=two")
    (tmp_path / "bad").mkdir()
    RunDir(tmp_path / "bad").recipe.write_text("{")
    (tmp_path / "pictures").mkdir()
    return tmp_path


def test_runs_are_found_in_subfolders_with_what_their_files_say(folder: Path) -> None:
    one, two, bad = sorted(runs_below(folder), key=lambda run: (run.state.startswith("damaged"), run.recipe))
    assert (one.path, one.state, one.method) == (folder / "study/cells/one", "finished", "semifl")
    assert (one.rounds_done, one.rounds, one.accuracy) == (4, 4, 0.25)
    assert one.bytes > 1000
    assert one.changed > 0.0
    assert (two.state, two.rounds_done, two.accuracy) == ("stopped", 1, None)
    assert bad.state.startswith("damaged (FedILError: ")


def test_a_run_whose_lock_is_held_is_running_also_when_it_is_named_itself(folder: Path) -> None:
    with sole_use(folder / "two"):
        (run,) = runs_below(folder / "two")
    assert run.state == "running"


def test_the_command_prints_a_table_or_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(folder)]) == 0
    table = capsys.readouterr().out
    assert "finished" in table
    assert "25.00" in table
    assert main(["runs", str(folder / "two"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["path"], found["rounds"]) == (str(folder / "two"), 4)
    assert main(["runs", str(folder / "pictures")]) == 0
    assert capsys.readouterr().out == f"no run in {folder / 'pictures'}\n"
    assert main(["runs", str(folder / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err
