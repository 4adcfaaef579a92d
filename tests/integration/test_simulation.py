"""The whole thing, as a user runs it: real processes, real signals, and the digest of an undisturbed run."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RECIPE = """
name = "tiny"
rounds = 5
baseline_epochs = 0
[data]
name = "digits"
[split]
labelled = 50
clients = 8
[network]
name = "cnn"
width = 16
[client]
epochs = 2
lr = 0.05
[server]
epochs = 5
pretrain_epochs = 60
lr = 0.1
batch_size = 25
[method]
threshold = 0.6
credibility = 2
[federation]
clients_per_round = 4
"""


class Simulation:
    """`fedil simulate` on the tiny recipe in a folder of its own, with one worker if `start` is not told otherwise: the
    digests do not depend on it, and every process loads torch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        self.recipe = folder / "tiny.toml"
        folder.mkdir(exist_ok=True)
        self.recipe.write_text(RECIPE)

    def start(self, *options: str, workers: int = 1, **popen: Any) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "ops.cli", "simulate", str(self.recipe), "--json"]
        return subprocess.Popen(
            [*command, "--run-dir", str(self.run_dir), "--workers", str(workers), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **popen,
        )

    def finish(self, process: "subprocess.Popen[str]") -> dict[str, Any]:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        summary: dict[str, Any] = json.loads(out.splitlines()[-1])
        return summary

    def wait_until(self, condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "nothing happened"
            time.sleep(0.005)

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.run_dir / "checkpoints").glob("round-*.ckpt"))

    def has_round(self, number: int) -> Callable[[], bool]:
        return lambda: f"round-{number:08d}.ckpt" in self.checkpoints()

    def history(self) -> list[int]:
        return [
            json.loads(line)["round"] for line in (self.run_dir / "history.jsonl").read_text().splitlines()
        ]


def digests(summary: dict[str, Any]) -> tuple[str, str, str]:
    return summary["model_digest"], summary["ledger_digest"], summary["split_digest"]


def workers_of(process: "subprocess.Popen[str]") -> list[int]:
    """Process ids of the workers that this simulation has now. From /proc: a small Debian has no ps."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid and b"client_worker" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # it has just ended
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> dict[str, Any]:
    simulation = Simulation(folder)
    summary = simulation.finish(simulation.start(workers=2))
    assert simulation.history() == [1, 2, 3, 4, 5]
    return summary


@pytest.fixture
def ended(folder: Path, undisturbed: dict[str, Any], tmp_path: Path) -> Simulation:
    """The undisturbed run, in a folder that may be harmed"""
    simulation = Simulation(tmp_path)
    shutil.copytree(folder / "run", simulation.run_dir)
    return simulation


def test_it_learns_and_fills_the_ledgers(undisturbed: dict[str, Any]) -> None:
    assert undisturbed["accuracy"]["global"] > 0.6
    assert undisturbed["rounds_done"] == undisturbed["rounds"] == 5
    assert not undisturbed["stopped"]


def test_one_worker_and_two_give_the_same_digests(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    simulation = Simulation(tmp_path)
    assert digests(simulation.finish(simulation.start())) == digests(undisturbed)


def test_killed_again_and_again_it_resumes_to_the_same_digests(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    simulation = Simulation(tmp_path)
    orphans: list[int] = []
    # Before any round, in the middle of one, and between two.
    for condition, pause in (
        (simulation.has_round(0), 0.0),
        (simulation.has_round(1), 0.05),
        (simulation.has_round(3), 0.2),
    ):
        process = simulation.start("--resume", workers=2)
        simulation.wait_until(condition, process)
        time.sleep(pause)
        orphans += workers_of(process)
        process.kill()
        process.communicate()
    assert digests(simulation.finish(simulation.start("--resume"))) == digests(undisturbed)
    assert simulation.history() == [1, 2, 3, 4, 5]
    assert orphans
    assert not any(Path(f"/proc/{pid}").exists() for pid in orphans), "workers outlive a killed server"


def test_a_killed_worker_is_replaced_and_nothing_is_lost(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    simulation = Simulation(tmp_path)
    process = simulation.start(workers=2)
    for number in (1, 2):
        simulation.wait_until(simulation.has_round(number), process)
        os.kill(workers_of(process)[0], signal.SIGKILL)
    assert digests(simulation.finish(process)) == digests(undisturbed)


def test_ctrl_c_stops_cleanly_and_says_how_to_resume(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    simulation = Simulation(tmp_path)
    process = simulation.start(workers=2)
    simulation.wait_until(simulation.has_round(1), process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    summary = json.loads(out.splitlines()[-1])
    assert summary["stopped"]
    assert summary["resume"].endswith("--resume")
    assert digests(simulation.finish(simulation.start("--resume"))) == digests(undisturbed)


def test_a_full_disk_is_one_clear_line_and_loses_nothing(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    simulation = Simulation(tmp_path)
    process = simulation.start()
    simulation.wait_until(simulation.has_round(2), process)
    process.kill()
    process.communicate()
    saved = simulation.checkpoints()

    # The kernel refuses to let any file grow beyond this: what a full disk does, without filling one.
    limit = 6000
    full = simulation.start(
        "--resume", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    )
    _, err = full.communicate(timeout=120)
    assert full.returncode == 1
    assert "Traceback" not in err
    assert "File too large" in err
    assert set(saved) <= set(simulation.checkpoints())
    assert digests(simulation.finish(simulation.start("--resume"))) == digests(undisturbed)


def test_a_history_with_a_text_where_a_number_belongs_is_named_before_anything_is_done(
    ended: Simulation,
) -> None:
    history = ended.run_dir / "history.jsonl"
    lines = history.read_text("utf-8").splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"accuracy": {"global": "abc"}})
    history.write_text("\n".join(lines) + "\n", "utf-8")
    process = ended.start("--resume")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "history.jsonl, line 2 is no round (accuracy.global is 'abc'): take it out" in err
    assert "Traceback" not in err


def test_a_damaged_checkpoint_is_named_and_deleting_it_helps(
    ended: Simulation, undisturbed: dict[str, Any]
) -> None:
    newest = ended.run_dir / "checkpoints" / ended.checkpoints()[-1]
    body = bytearray(newest.read_bytes())
    body[-100] ^= 0xFF
    newest.write_bytes(body)
    process = ended.start("--resume")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert f"{newest.name} is damaged" in err
    assert "delete it to continue from round-00000004.ckpt" in err
    assert "Traceback" not in err
    newest.unlink()
    assert digests(ended.finish(ended.start("--resume"))) == digests(undisturbed)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("client.lrr=1", "fedil: --set client.lrr=1: unknown setting client.lrr; did you mean client.lr?"),
        ("split.labelled=99999", "split.labelled"),
        ("data.name=mnist", "data.root"),
        ("data.name=nothing:here", "nothing"),
        ("network.name=resnet9", 'use network.name = "cnn"'),
        ("client.lr=1e30", "client.lr"),
    ],
)
def test_bad_input_is_one_clear_line_that_names_it(tmp_path: Path, override: str, words: str) -> None:
    simulation = Simulation(tmp_path)
    more = ["--set", "client.clip_norm=0"] if "1e30" in override else []
    process = simulation.start("--set", override, *more)
    _, err = process.communicate(timeout=120)
    assert process.returncode in (1, 2)
    assert words in err
    assert "Traceback" not in err
