"""fedil compare as a person runs it: killed and started again, and with a method that fails."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.test_cli import ROOT, environment, fedil

RECIPE = """
name = "tiny"
rounds = 4
[data]
name = "digits"
[split]
labelled = 50
clients = 8
[network]
name = "cnn"
width = 8
[client]
epochs = 1
[server]
epochs = 1
pretrain_epochs = 3
[federation]
clients_per_round = 2
"""
METHODS = ("--methods", "fedil,fedavg_fixmatch", "--jobs", "2")


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGKILL])
def test_compare_survives_a_kill_and_ends_in_files(kind: signal.Signals, tmp_path: Path) -> None:
    recipe, out = tmp_path / "tiny.toml", tmp_path / "out"
    recipe.write_text(RECIPE)
    command = ("compare", recipe, *METHODS, "--out", out)
    process = subprocess.Popen(
        [sys.executable, "-m", "ops.cli", *map(str, command)],
        env=environment(),
        cwd=ROOT,
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    first = out / "cells" / "fedil-seed-0" / "history.jsonl"
    deadline = time.monotonic() + 120
    while not (first.exists() and first.read_text().count("\n") >= 1):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(kind)
    process.wait(120)
    result = fedil(*command)
    assert result.returncode == 0, result.stderr
    results = json.loads((out / "results.json").read_text())
    assert [(row["variant"], row["seeds"], row["rounds"]) for row in results["table"]] == [
        ("fedil", 1, 4),
        ("fedavg_fixmatch", 1, 4),
    ]
    assert set(results["split_digests"]) == {"0"}
    assert "differs" not in str(results["split_digests"])
    for cell in results["cells"]:
        assert cell["state"] == "done"
        assert 0.0 < cell["accuracy"]["global"] <= 1.0
        assert cell["cpu_seconds"] > 0.0
        assert cell["bytes_received"] > 1000
        assert [point[0] for point in cell["curve"]] == [1, 2, 3, 4]
    for name in ("table.csv", "table.tex", "report.html", "plots/accuracy.png"):
        assert (out / name).stat().st_size > 100, name
    assert "fedavg_fixmatch" in (out / "report.html").read_text()
    again = fedil(*command, "--json")
    assert json.loads(again.stdout)["table"] == results["table"]


def test_a_method_that_fails_leaves_the_others_standing(tmp_path: Path) -> None:
    recipe, out = tmp_path / "tiny.toml", tmp_path / "out"
    recipe.write_text(RECIPE)
    result = fedil(
        *("compare", recipe, "--methods", "fedavg_fixmatch,fedil", "--set", "rounds=2", "--out", out),
        *("--set", "fedil:client.lr=1e30", "--set", "fedil:client.clip_norm=0", "--quiet"),
    )
    assert result.returncode == 1
    results = json.loads((out / "results.json").read_text())
    by_variant = {cell["variant"]: cell for cell in results["cells"]}
    assert by_variant["fedavg_fixmatch"]["state"] == "done"
    assert by_variant["fedil"]["state"] == "failed"
    assert "diverged" in by_variant["fedil"]["reason"]
    assert "fedil seed 0 failed" in result.stderr
    assert "failed" in (out / "table.tex").read_text()


def test_a_budget_of_cpu_seconds_decides_the_rounds(tmp_path: Path) -> None:
    recipe, out = tmp_path / "tiny.toml", tmp_path / "out"
    recipe.write_text(RECIPE)
    result = fedil("compare", recipe, "--methods", "fedavg_fixmatch", "--cpu-seconds", "4", "--out", out)
    assert result.returncode == 0, result.stderr
    (cell,) = json.loads((out / "results.json").read_text())["cells"]
    assert cell["state"] == "done"
    assert cell["rounds"] == json.loads((out / "cells" / "fedavg_fixmatch-seed-0.json").read_text())["rounds"]
    assert cell["rounds"] >= 1
    assert not list(out.glob("cells/*.probe"))
    assert os.path.isdir(out / "cells" / "fedavg_fixmatch-seed-0")
