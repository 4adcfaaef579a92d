import json
import math
from pathlib import Path

import pytest

from broker_config.protocol.errors import FedILError
from fedil_model.errors import SettingError
from ops.inspect.report.reading import in_use, read_run
from server_worker.run.lock import sole_use
from tests.unit.ops.records import make_record
from tests.unit.ops.report_runs import edit_json, make_run, make_run_folder


def test_a_run_is_read_with_its_settings_and_rounds(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "one", seed=3)
    (folder / "baseline.json").write_text('{"accuracy": 0.86, "epochs": 100}')
    (folder / "run.json").write_text('{"run": "digits-a1b2c3"}')
    run = read_run(folder)
    assert (run.label, run.recipe.seed, run.rounds_done, run.baseline) == ("one", 3, 12, 0.86)
    assert (run.run_id, run.settings["split.labelled"]) == ("digits-a1b2c3", 50)
    assert (run.state, run.notes) == ("finished, 12 rounds", ())


def test_a_folder_without_a_recipe_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="is not the folder of a run"):
        read_run(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="is not the folder of a run"):
        read_run(tmp_path / "file")


@pytest.mark.parametrize("body", ["{", "[1]"])
def test_a_recipe_that_is_none_is_named(tmp_path: Path, body: str) -> None:
    (tmp_path / "recipe.json").write_text(body)
    with pytest.raises(FedILError, match=r"recipe\.json is not"):
        read_run(tmp_path)


def test_a_stopped_run_says_how_far_it_came(tmp_path: Path) -> None:
    assert make_run(tmp_path / "r", rounds=5).state == "stopped after 5 of 12 rounds"


def test_a_run_that_a_server_works_on_is_still_running(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "r", rounds=5)
    with sole_use(folder):
        assert in_use(folder)
        assert read_run(folder).state == "round 5 of 12, still running"
        # Looking must not take the lock away, nor keep it.
        assert in_use(folder)
    assert read_run(folder).state == "stopped after 5 of 12 rounds"
    with sole_use(folder):
        pass


def test_a_lock_that_a_killed_server_left_is_not_taken_for_one_at_work(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "r", rounds=5)
    (tmp_path / ".r.lock").write_text("4711")
    assert not in_use(folder)


def test_a_missing_history_is_said(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "r")
    (folder / "history.jsonl").unlink()
    run = read_run(folder)
    assert (run.records, run.state) == ((), "no round has closed yet")
    assert "no history.jsonl" in run.notes[0]


def test_a_half_written_last_line_is_passed_over_and_said(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "r")
    whole = (folder / "history.jsonl").read_text()
    (folder / "history.jsonl").write_text(whole[:-40])
    run = read_run(folder)
    assert run.rounds_done == 11
    assert "half written" in run.notes[0]


@pytest.mark.parametrize(
    "line",
    [
        "{broken",
        "{}",
        "[]",
        '"text"',
        json.dumps({"round": 1}),
    ],
)
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, line: str) -> None:
    folder = make_run_folder(tmp_path / "r")
    lines = (folder / "history.jsonl").read_text().splitlines()
    lines[3] = line
    (folder / "history.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(FedILError, match="line 4 is"):
        read_run(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"round": "4"},
        {"round": 0},
        {"delta_norm": None},
        {"accuracy": {"global": "high"}},
        {"accuracy": {"global": None}},
        {"accuracy": 3},
        {"outcomes": [{"client": 1, "outcome": 5}]},
        {"outcomes": [{"client": 1, "outcome": "accepted", "values": {"cosine": "x"}}]},
        {"outcomes": [7]},
    ],
)
def test_values_that_cannot_be_drawn_are_refused_by_line(tmp_path: Path, change: dict[str, object]) -> None:
    folder = make_run_folder(tmp_path / "r")
    lines = (folder / "history.jsonl").read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | change)
    (folder / "history.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(FedILError, match="line 2 is no round"):
        read_run(folder)


def test_fields_of_a_later_version_are_passed_over_in_the_history(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "r", rounds=1)
    line = json.loads((folder / "history.jsonl").read_text())
    line |= {"new_field": [1, 2]}
    line["outcomes"][0] |= {"new_detail": {"a": 1}}
    (folder / "history.jsonl").write_text(json.dumps(line) + "\n")
    assert read_run(folder).records[0].outcomes[0].client == 0


def test_settings_of_a_later_version_are_kept_and_said(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "r")
    edit_json(folder / "recipe.json", quantum=True)
    values = json.loads((folder / "recipe.json").read_text())
    values["client"]["warmth"] = 3
    (folder / "recipe.json").write_text(json.dumps(values))
    run = read_run(folder)
    assert run.settings["quantum"] is True
    assert run.settings["client.warmth"] == 3
    assert "client.warmth" in run.notes[0]
    assert "quantum" in run.notes[0]


def test_a_setting_that_is_wrong_is_named(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "r")
    edit_json(folder / "recipe.json", rounds=-1)
    with pytest.raises(FedILError, match="rounds"):
        read_run(folder)


@pytest.mark.parametrize("name", ["split.json", "environment.json", "baseline.json", "run.json"])
def test_a_damaged_side_file_costs_only_what_it_holds(tmp_path: Path, name: str) -> None:
    folder = make_run_folder(tmp_path / "r")
    (folder / name).write_text("{")
    run = read_run(folder)
    assert run.rounds_done == 12
    assert any(name in note for note in run.notes)


def test_of_a_round_that_was_played_twice_the_last_counts_and_order_does_not_matter(tmp_path: Path) -> None:
    records = [make_record(2), make_record(1), make_record(2, delta_norm=9.0)]
    run = make_run(tmp_path / "r", records)
    assert [(record.round, record.delta_norm) for record in run.records] == [(1, 1.7), (2, 9.0)]


def test_accuracy_that_is_no_number_is_not_taken_for_one(tmp_path: Path) -> None:
    records = [make_record(1, accuracy={"global": math.nan}), make_record(2, accuracy={}), make_record(3)]
    assert list(make_run(tmp_path / "r", records).accuracy("global")) == [3]
