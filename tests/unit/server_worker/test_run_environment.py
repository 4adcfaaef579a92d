import json
import platform
from pathlib import Path

import pytest
import torch

import server_worker.run.environment as run_environment
from broker_config.protocol.errors import FedILError
from server_worker.run.environment import read_environment, record_environment
from server_worker.run.folder import RunDir

CPU = torch.device("cpu")


def test_a_run_records_what_it_was_made_with(tmp_path: Path) -> None:
    record_environment(RunDir(tmp_path), CPU, workers=3)
    (entry,) = read_environment(RunDir(tmp_path))
    assert entry["python"] == platform.python_version()
    assert entry["torch"] == torch.__version__
    assert (entry["device"], entry["workers"], entry["starts"]) == ("cpu", 3, 1)
    assert entry["cores"] >= 1
    assert entry["cpu"]
    assert entry["first_started"] == entry["last_started"] > 1e9
    assert "gpu" not in entry


def test_nothing_that_names_a_machine_or_a_person_is_recorded(tmp_path: Path) -> None:
    record_environment(RunDir(tmp_path), CPU)
    body = (tmp_path / "environment.json").read_text()
    assert platform.node() not in body
    assert str(Path.home()) not in body


def test_the_same_again_only_counts_another_start(tmp_path: Path) -> None:
    where = RunDir(tmp_path)
    record_environment(where, CPU)
    record_environment(where, CPU)
    (entry,) = read_environment(where)
    assert entry["starts"] == 2
    assert entry["last_started"] >= entry["first_started"]


def test_another_version_adds_an_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = RunDir(tmp_path)
    record_environment(where, CPU)
    monkeypatch.setattr(run_environment, "software_version", lambda: "99.0")
    record_environment(where, CPU)
    before, after = read_environment(where)
    assert before["fedil"] != after["fedil"] == "99.0"
    assert after["starts"] == 1


def test_it_does_not_grow_for_ever(tmp_path: Path) -> None:
    where = RunDir(tmp_path)
    for number in range(30):
        record_environment(where, CPU, workers=number)
    entries = read_environment(where)
    assert len(entries) == 20
    assert entries[-1]["workers"] == 29


@pytest.mark.parametrize("body", ["{", "{}", "[1]", "\xff"])
def test_a_damaged_file_is_named_when_read_and_replaced_when_written(tmp_path: Path, body: str) -> None:
    where = RunDir(tmp_path)
    where.environment.write_bytes(body.encode("latin-1"))
    with pytest.raises(FedILError, match=r"environment\.json is not"):
        read_environment(where)
    record_environment(where, CPU)
    assert len(json.loads(where.environment.read_text())) == 1


def test_a_run_of_an_earlier_version_has_none(tmp_path: Path) -> None:
    assert read_environment(RunDir(tmp_path)) == ()
