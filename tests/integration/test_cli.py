"""The real command line in its own process, as a person runs it."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from ops.local.services.brokers_root import ROOT as BROKERS_ROOT
from tests.integration.test_simulation import workers_of

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "torchvision", "numpy", "rich", "pydantic"}
SMALL = [
    *("--set", "rounds=2", "--set", "client.epochs=1", "--set", "server.epochs=1"),
    *("--set", "server.pretrain_epochs=2", "--set", "baseline_epochs=2", "--workers", "1"),
]


def environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in os.environ if name == BROKERS_ROOT or name[:6] != "FEDIL_"}
    return kept | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"} | more


def fedil(
    *arguments: str | Path, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ops.cli", *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        env=environment(**variables),
        cwd=cwd or ROOT,
        timeout=300,
        check=False,
    )


def complaint(result: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line that a failed command says."""
    assert (result.returncode, result.stdout) == (code, ""), result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("fedil: ")
    return line


# ---- start-up: what is loaded, not how long it took, because that does not depend on the machine

LOADED_BY = """
import sys
from ops.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("LOADED", *sorted(set(sys.modules) & {heavy}))
"""


def heavy_modules_loaded_by(*arguments: str | Path) -> set[str]:
    result = subprocess.run(
        [sys.executable, "-c", LOADED_BY.replace("{heavy}", repr(HEAVY)), *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        env=environment(),
        cwd=ROOT,
        timeout=240,
        check=True,
    )
    return set(result.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["simulate", "--help"],
        ["export", "--help"],
        ["simulat"],
        ["simulate", "--workers", "0"],
        ["simulate", "nothing-like-it"],
        ["evaluate", "not/a/run"],
        ["predict", "not/a/run", "not/a/folder"],
        ["recipes"],
        ["recipes", "list"],
        ["recipes", "show", "digits"],
    ],
    ids=" ".join,
)
def test_help_and_wrong_arguments_load_nothing_heavy(arguments: list[str]) -> None:
    assert heavy_modules_loaded_by(*arguments) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "--set", "client.learning_rate=0.1"],
        ["simulate", "--set", "rounds=-1"],
        ["recipes", "explain", "quorum"],
    ],
    ids=" ".join,
)
def test_a_wrong_setting_loads_only_what_checks_it(arguments: list[str]) -> None:
    assert heavy_modules_loaded_by(*arguments) == {"pydantic"}


def test_the_check_of_loaded_modules_would_see_torch(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text("{}")
    assert "torch" in heavy_modules_loaded_by("evaluate", tmp_path)


# ---- mistakes


def test_a_misspelt_setting_is_named_with_the_one_that_was_meant(tmp_path: Path) -> None:
    line = complaint(fedil("simulate", "--run-dir", tmp_path / "r", "--set", "client.leraning_rate=1"), 2)
    assert "unknown setting client.leraning_rate" in line
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["simulate", "--device", "gpu"], "wants auto, cpu or cuda:N, got 'gpu'"),
        (["simulate", "--workers", "none"], "wants a number from 1 up, got 'none'"),
        (["simulate", "--resume", "--overwrite"], "not allowed with"),
        (["simulate", "digitz"], "did you mean digits?"),
        (["simulate", "missing.toml"], "cannot read recipe missing.toml"),
        (["simulate", "--set", "lr"], "--set wants key=value"),
        (["simulate", "--resume", "--run-dir", "not/there"], "nothing to resume in not/there"),
        (["simulat"], "invalid choice: 'simulat', did you mean simulate? (see: fedil --help)"),
        (["xyzzy"], "invalid choice: 'xyzzy' (choose from "),
        (["ledger", "lst"], "did you mean list? (see: fedil ledger --help)"),
        (["ledger", "list", "x", "y"], "unrecognized arguments: x y (see: fedil ledger list --help)"),
        (["simulate", "--round", "3"], "unrecognized arguments: --round (see: fedil simulate --help)"),
        (["ledger", "show", "x"], "CLIENT: wants a client's number, from 0 up, got 'x'"),
        (["simulate", "--web", "99999"], "got '99999': ports end at 65535"),
        (
            ["status", "--store", "ampq://x"],
            "--store (or FEDIL_STORE_URL) must begin with "
            "redis:// or rediss:// or redis+sentinel:// or rediss+sentinel:// or redis+cluster:// or rediss+cluster://",
        ),
        (["export", "not/a/run", "--format", "onnx"], "there is no folder not/a/run"),
        (["export", "ops", "--format", "onnx"], "ops is not the folder of a run"),
        (["report", "not/a/run"], "there is no folder not/a/run"),
        (["ledger", "list", "--run-dir", "not/a/run"], "there is no folder not/a/run"),
        (["export", "not/a/run", "--format", "onyx"], "invalid choice: 'onyx'"),
        (["recipes", "show", "mnist-iid-02"], "did you mean"),
        (["recipes", "show", "ops/pictures/live-page.png"], "is not UTF-8 text"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_one_line_and_exit_code_2(arguments: list[str], says: str) -> None:
    assert says in complaint(fedil(*arguments), 2)


NOWHERE = ("redis://127.0.0.1:1", "amqp://127.0.0.1:1/")  # who waits for either is not heard of again


@pytest.mark.parametrize(
    ("broker", "store", "says"),
    [
        (
            "foo://u:secret@x",
            NOWHERE[0],
            "--broker (or FEDIL_BROKER_URL) must begin with amqp:// or amqps://, not foo://",
        ),
        (
            NOWHERE[1],
            "u:secret@x",
            "--store (or FEDIL_STORE_URL) must begin with "
            "redis:// or rediss:// or redis+sentinel:// or rediss+sentinel:// or redis+cluster:// or rediss+cluster://",
        ),
    ],
    ids=["broker", "store"],
)
@pytest.mark.parametrize(
    "words", [["server", "--recipe", "digits"], ["worker", "--site", "s", "--shards", "ops"]]
)
def test_an_address_that_no_broker_has_is_refused_before_the_other_one_is_waited_for(
    words: list[str], broker: str, store: str, says: str
) -> None:
    assert complaint(fedil(*words, "--broker", broker, "--store", store), 2) == f"fedil: {says}"
    assert heavy_modules_loaded_by(*words, "--broker", broker, "--store", store) == set()


def test_a_name_that_no_run_can_have_is_refused_in_plain_words(tmp_path: Path) -> None:
    words = ["server", "--recipe", "digits", "--broker", NOWHERE[1], "--store", NOWHERE[0], "--quiet"]
    line = complaint(fedil(*words, "--run-dir", tmp_path / "new", "--run", "<b>x</b>"), 2)
    assert line.startswith("fedil: '<b>x</b>' cannot be the name of a run: take 1 to 80 letters")
    assert not (tmp_path / "new").exists()
    (tmp_path / "run.json").write_text('{"run": "mine"}')
    line = complaint(fedil(*words, "--run-dir", tmp_path, "--run", "yours"), 2)
    assert line == f"fedil: {tmp_path} belongs to run mine, not yours: use another --run-dir"


def test_a_folder_without_shards_is_named_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    words = ["worker", "--site", "s", "--broker", NOWHERE[1], "--store", NOWHERE[0], "--processes", "2"]
    line = complaint(fedil(*words, "--shards", tmp_path), 2)
    assert line == f"fedil: there are no shards in {tmp_path}: make them first, see fedil shards --help"
    line = complaint(fedil(*words, "--shards", tmp_path / "no"), 2)
    assert line.startswith(f"fedil: there is no folder {tmp_path / 'no'}: make the shards first")
    assert heavy_modules_loaded_by(*words, "--shards", tmp_path) == set()


def test_damaged_shards_are_named_without_torch(tmp_path: Path) -> None:
    words = ["worker", "--site", "s", "--broker", NOWHERE[1], "--store", NOWHERE[0], "--processes", "2"]
    (tmp_path / "offsets.npy").write_bytes(b"")
    line = complaint(fedil(*words, "--shards", tmp_path), 1)
    assert line.startswith(f"fedil: no shards in {tmp_path} (it has no inputs.npy): make them")
    assert heavy_modules_loaded_by(*words, "--shards", tmp_path) == {"numpy"}


def test_a_port_that_is_taken_is_a_wrong_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        for words in (
            ["simulate", "--quiet", "--run-dir", str(tmp_path / "run")],
            [
                "worker",
                "--site",
                "s",
                "--shards",
                str(tmp_path),
                "--broker",
                NOWHERE[1],
                "--store",
                NOWHERE[0],
            ],
        ):
            assert f"cannot serve pages at {place}" in complaint(fedil(*words, "--web", place), 2)


def test_a_missing_dataset_is_one_line_exit_code_1_and_leaves_an_older_run_alone(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "recipe.json").write_text("{}")
    options = ("--overwrite", "--quiet", "--run-dir", run_dir)
    result = fedil("simulate", "mnist-iid-001", *options, FEDIL_DATA=str(tmp_path))
    assert "mnist" in complaint(result, 1).lower()
    assert (run_dir / "recipe.json").read_text() == "{}"


def test_a_reader_that_leaves_early_is_not_an_error_message() -> None:
    command = f"{sys.executable} -m ops.cli recipes show digits --resolved | head -n 1"
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=environment(), cwd=ROOT, check=True
    )
    assert result.stderr == ""


# ---- one small run, and everything that can be done with it


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("cli") / "run"
    result = fedil("simulate", "--run-dir", run_dir, *SMALL, "--json")
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    (run_dir / "said.json").write_text(json.dumps(lines))
    return run_dir


def summary_of(run_dir: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run_dir / "said.json").read_text())[-1]
    return summary


def test_json_is_a_line_per_round_and_one_for_the_summary(run_dir: Path) -> None:
    *rounds, summary = json.loads((run_dir / "said.json").read_text())
    assert [(line["event"], line["round"]) for line in rounds] == [("round", 1), ("round", 2)]
    assert all(len(line["outcomes"]) == line["selected"] for line in rounds)
    assert (summary["event"], summary["rounds_done"], summary["stopped"]) == ("summary", 2, False)
    assert 0.0 < summary["accuracy"]["global"] <= 1.0
    assert summary["baseline_accuracy"] > 0.0


def test_a_second_run_in_the_same_folder_is_refused_with_both_ways_out(run_dir: Path) -> None:
    line = complaint(fedil("simulate", "--run-dir", run_dir, *SMALL), 2)
    assert "--resume" in line
    assert "--overwrite" in line


def test_resuming_with_other_settings_is_refused_and_names_them(run_dir: Path) -> None:
    line = complaint(fedil("simulate", "--run-dir", run_dir, *SMALL, "--set", "client.lr=0.5", "--resume"), 2)
    assert "client.lr was 0.05, is 0.5" in line


def test_evaluate_measures_the_accuracy_that_the_run_reported(run_dir: Path) -> None:
    result = fedil("evaluate", run_dir, "--json")
    quality = json.loads(result.stdout)
    assert quality["accuracy"] == pytest.approx(summary_of(run_dir)["accuracy"]["global"])
    assert sum(map(sum, quality["confusion"])) == quality["samples"]
    assert list(quality["per_class"]) == list("0123456789")


def test_a_model_that_the_run_does_not_have_is_named(run_dir: Path) -> None:
    assert "ema" in complaint(fedil("evaluate", run_dir, "--model", "ema"), 2)


def test_an_exported_model_carries_the_digest_that_the_run_reported(run_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "model.onnx"
    result = fedil("export", run_dir, "--format", "onnx", "--out", file)
    assert result.stdout == f"{file}\n{file.with_name('model.MODEL_CARD.md')}\n", result.stderr
    session = onnxruntime.InferenceSession(str(file))
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata["model_digest"] == summary_of(run_dir)["model_digest"]
    logits, _ = session.run(None, {"input": np.zeros((3, 1, 8, 8), dtype=np.uint8)})
    assert logits.shape == (3, 10)


def test_a_folder_is_no_place_for_an_export(run_dir: Path, tmp_path: Path) -> None:
    line = complaint(fedil("export", run_dir, "--format", "safetensors", "--out", tmp_path), 2)
    assert line == f"fedil: {tmp_path} is a folder: --out wants the name of a file"


def test_predict_labels_pictures_names_the_unreadable_and_exits_with_1(run_dir: Path, tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    Image.new("RGB", (50, 30), (200, 10, 10)).save(pictures / "a.png")
    (pictures / "b.png").write_text("not a picture")
    result = fedil("predict", run_dir, pictures, "--json", "--csv", tmp_path / "out.csv")
    (answer,) = (json.loads(line) for line in result.stdout.splitlines())
    assert answer["file"] == str(pictures / "a.png")
    assert answer["label"] in set("0123456789")
    assert 0.1 <= answer["confidence"] <= 1.0
    assert result.stderr == f"fedil: skipped {pictures / 'b.png'}: not an image\n"
    assert result.returncode == 1
    assert (
        (tmp_path / "out.csv").read_text().splitlines()[1].startswith(f"{answer['file']},{answer['label']},")
    )


# ---- Ctrl-C


ROUNDS = 20  # enough that the run cannot end between its first line and the signal


@pytest.fixture
def started(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-u", "-m", "ops.cli", "simulate", *SMALL, "--set", f"rounds={ROUNDS}"]
    process = subprocess.Popen(
        [*command, "--run-dir", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=environment(),
        cwd=ROOT,
        start_new_session=True,
    )
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def wait_for_round(process: subprocess.Popen[str], number: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if f"round  {number}/{ROUNDS}" in line:
            return
    raise AssertionError("the run ended before that round")


def test_ctrl_c_stops_cleanly_and_the_command_that_it_prints_goes_on(
    started: subprocess.Popen[str], tmp_path: Path
) -> None:
    wait_for_round(started, 1)
    os.killpg(started.pid, signal.SIGINT)  # as a terminal does; the workers are in sessions of their own
    output, errors = started.communicate(timeout=120)
    assert started.returncode == 130, errors
    assert "Ctrl-C again" in errors
    assert "Traceback" not in errors
    (resume,) = [line.strip() for line in output.splitlines() if line.rstrip().endswith("--resume")]
    assert f"--run-dir {tmp_path / 'run'}" in resume

    resumed = subprocess.run(
        [*shlex.split(resume), "--json"],
        capture_output=True,
        encoding="utf-8",
        env=environment(),
        cwd=ROOT,
        timeout=300,
        check=True,
    )
    *rounds, summary = (json.loads(line) for line in resumed.stdout.splitlines())
    assert rounds[0]["round"] > 1
    assert (summary["rounds_done"], summary["stopped"]) == (ROUNDS, False)


def test_a_folder_in_use_is_refused_and_the_run_in_it_goes_on(
    started: subprocess.Popen[str], tmp_path: Path
) -> None:
    wait_for_round(started, 1)
    for option in ("--resume", "--overwrite"):
        line = complaint(fedil("simulate", *SMALL, "--run-dir", tmp_path / "run", option), 1)
        assert f"{tmp_path / 'run'} is in use by another fedil (pid {started.pid})" in line
    wait_for_round(started, 3)


def test_a_second_ctrl_c_stops_at_once_and_leaves_no_worker_behind(started: subprocess.Popen[str]) -> None:
    wait_for_round(started, 1)
    workers = workers_of(started)
    assert workers
    for _ in range(2):
        os.killpg(started.pid, signal.SIGINT)
        time.sleep(0.05)
    _, errors = started.communicate(timeout=240)
    assert started.returncode == 130, errors
    assert "Traceback" not in errors
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
