"""The parent of several workers, with children that are shell scripts."""

import argparse
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import client_worker.pool
from broker_config.addresses import BROKER_URL, STORE_URL
from broker_config.errors import FedILError
from client_worker.__main__ import main, run
from client_worker.options import add_arguments
from client_worker.stopping import SIGNALS

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
    assert main() == 1
    said = capsys.readouterr().err
    assert (
        said
        == f"client_worker: there is no folder {tmp_path / 'no'}: make the shards first, see fedil shards --help\n"
    )
