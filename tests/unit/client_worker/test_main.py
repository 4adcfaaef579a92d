"""The parent of several workers, with children that are shell scripts."""

import argparse
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import client_worker.pool
from broker_config.process.addresses import BROKER_URL, STORE_URL
from broker_config.protocol.errors import AddressMissing, AddressWrong, BrokerRefused, FedILError, PortTaken
from client_worker.__main__ import main, run
from client_worker.options import add_arguments
from client_worker.shards import write_shards
from client_worker.stopping import SIGNALS
from fedil_model.errors import DataError, SettingError

SAYS_WHY_AND_DIES = """#!/bin/sh
echo "the reason is $FEDIL_BROKER_URL" >&2
exit 3
"""


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(client_worker.pool, "_CHECK_SECONDS", 0.02)
    monkeypatch.setattr(client_worker.pool, "_BACKOFF_SECONDS", 0.0)
    for name in (BROKER_URL, STORE_URL, "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.setenv(name, "")  # so that what is set is taken back
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["--site", "s", "--broker", "memory:///b", "--store", "memory:///s", *words])


def test_children_that_keep_dying_end_the_parent_with_their_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "child"
    script.write_text(SAYS_WHY_AND_DIES)
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    write_shards(tmp_path, {0: np.zeros((2, 3), dtype=np.uint8)})
    with pytest.raises(FedILError, match=r"workers keep dying \(exit code 3\): the reason is memory:///b"):
        run(parsed("--shards", str(tmp_path), "--processes", "2"))
    said = capfd.readouterr().err
    assert "worker 0: the reason is memory:///b\n" in said
    assert "worker 1: the reason is memory:///b\n" in said


def test_a_missing_folder_is_one_line_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    addresses = ["--broker", "memory:///b", "--store", "memory:///s"]
    words = ["--site", "s", "--shards", str(tmp_path / "no"), *addresses]
    monkeypatch.setattr(sys, "argv", ["client_worker", *words])
    assert main() == 2
    said = capsys.readouterr().err
    assert (
        said
        == f"client_worker: there is no folder {tmp_path / 'no'}: make the shards first, see fedil shards --help\n"
    )


@pytest.mark.parametrize("processes", ["1", "2"])
def test_wrong_limits_are_one_line_before_anything_is_started(
    processes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_shards(tmp_path, {0: np.zeros((20, 30), dtype=np.uint8)})
    limits = tmp_path / "limits.toml"
    limits.write_text("clip = 1.0", encoding="utf-8")
    words = ["--site", "s", "--shards", str(tmp_path), "--limits", str(limits), "--processes", processes]
    monkeypatch.setattr(
        sys, "argv", ["client_worker", *words, "--broker", "memory:///b", "--store", "memory:///s"]
    )
    monkeypatch.setattr(subprocess, "Popen", no_process)
    assert main() == 2
    assert capsys.readouterr().err == (
        f"client_worker: {limits}: unknown setting clip; did you mean clip_norm?\n"
    )


DAMAGE = {
    "none": (lambda folder: (folder / "offsets.npy").unlink(), 2, "there are no shards in"),
    "lost inputs": (lambda folder: (folder / "inputs.npy").unlink(), 1, "no shards in"),
    "cut off": (lambda folder: os.truncate(folder / "inputs.npy", 100), 1, "inputs.npy is damaged; make"),
    "other offsets": (lambda folder: np.save(folder / "offsets.npy", [0, 9]), 1, "offsets.npy must go"),
}


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize(("damage", "code", "says"), DAMAGE.values(), ids=DAMAGE)
def test_shards_are_looked_at_before_a_process_is_started(
    damage: Callable[[Path], object],
    code: int,
    says: str,
    processes: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_shards(tmp_path, {0: np.zeros((20, 30), dtype=np.uint8)})
    damage(tmp_path)
    addresses = ["--broker", "memory:///b", "--store", "memory:///s"]
    words = ["--site", "s", "--shards", str(tmp_path), "--processes", processes, *addresses]
    monkeypatch.setattr(sys, "argv", ["client_worker", *words])
    monkeypatch.setattr(subprocess, "Popen", no_process)
    assert main() == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("client_worker: ")
    assert says in line
    assert str(tmp_path) in line


def no_process(*_: object, **__: object) -> None:
    raise AssertionError("a process was started")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingError("wrong"), 2),
        (AddressMissing("wrong"), 2),
        (AddressWrong("wrong"), 2),
        (PortTaken("wrong"), 2),
        (DataError("damaged"), 1),
        (BrokerRefused("the password"), 1),
        (OSError("a full disk"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("module", ["client_worker", "server_worker"])
def test_the_exit_code_tells_wrong_settings_from_other_failures(
    module: str,
    log_format: str,
    error: Exception,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise error

    program = importlib.import_module(f"{module}.__main__")
    words = {"client_worker": ["--site", "s", "--shards", "folder"], "server_worker": ["--recipe", "file"]}
    monkeypatch.setattr(sys, "argv", [module, *words[module], "--log-format", log_format])
    monkeypatch.setattr(program, "fill_from_environment", fail)
    assert program.main() == code
    assert str(error) in capsys.readouterr().err
