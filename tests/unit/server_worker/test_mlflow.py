"""Runs in MLflow, in a real database, read back with MLflow's own client."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from server_worker.options import add_mlflow_argument, mlflow_address
from server_worker.run.folder import RunDir
from server_worker.run.history import HistoryWriter
from server_worker.watch.mlflow import MlflowWatcher, client_of, find_run, log_files
from server_worker.watch.notices import Notice
from tests.federation import blobs_recipe
from tests.unit.ops.records import make_record

RECIPE = blobs_recipe(rounds=5)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


def play(address: str, run: str, where: RunDir, first: int, last: int) -> list[Notice]:
    """Rounds first to last, as a server that was started anew writes them"""
    notices: list[Notice] = []
    with MlflowWatcher(address, run, RECIPE, where.history, notices.append) as watcher:
        writer = HistoryWriter(where.history, watcher)
        writer.run_started(first, RECIPE.rounds)
        for number in range(first, last + 1):
            writer.round_closed(make_record(number, RECIPE.rounds))
    return notices


def read_back(address: str, run: str) -> tuple[Any, list[int], MlflowClient]:
    client = client_of(address)
    run_id = find_run(client, RECIPE.name, run)
    assert run_id is not None
    points = client.get_metric_history(run_id, "accuracy/global")
    return client.get_run(run_id), [point.step for point in points], client


def test_a_resumed_run_goes_on_in_its_own_and_has_each_round_once(address: str, tmp_path: Path) -> None:
    where = RunDir(tmp_path)
    assert play(address, "r-1", where, 1, 3) == []
    found, steps, _ = read_back(address, "r-1")
    assert (found.info.status, steps) == ("KILLED", [1, 2, 3])
    assert play(address, "r-1", where, 3, 5) == []  # the checkpoint was that of round 2
    again, steps, client = read_back(address, "r-1")
    assert (again.info.status, steps) == ("FINISHED", [1, 2, 3, 4, 5])
    assert again.info.run_id == found.info.run_id
    assert again.data.params["client.lr"] == "0.1"
    assert again.data.metrics["accuracy/global"] == pytest.approx(make_record(5).accuracy["global"])

    report = tmp_path / "report.html"
    report.write_text("<p>report", encoding="utf-8")
    log_files(address, RECIPE, "r-1", [report])
    assert [file.path for file in client.list_artifacts(found.info.run_id)] == ["report.html"]
    assert list((tmp_path / "mlflow").rglob("report.html")), (
        "beside the history, not where the command was typed"
    )


def test_a_tracker_that_fails_is_told_once_and_stops_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database", encoding="utf-8")
    (notice,) = play(f"sqlite:///{tmp_path / 'file'}", "r-2", RunDir(tmp_path), 1, 3)
    assert str(notice).startswith("nothing more is written to MLflow: ")
    assert "file is not a database" in str(notice)


def test_where_mlflow_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_mlflow_argument(parser)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert mlflow_address(parser.parse_args([]).mlflow, tmp_path) is None
    own = parser.parse_args(["--mlflow"]).mlflow
    assert mlflow_address(own, tmp_path) == f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    assert mlflow_address(own, tmp_path) == "http://tracker:5000"
    assert (
        mlflow_address(parser.parse_args(["--mlflow", "https://other"]).mlflow, tmp_path) == "https://other"
    )
    with pytest.raises(SystemExit):
        parser.parse_args(["--mlflow", "digits"])
    assert "'digits' is no address such as http://host:5000 or sqlite:///mlflow.db" in capsys.readouterr().err
