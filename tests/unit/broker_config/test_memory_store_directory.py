"""The memory store with a directory, beyond the contract: durability and detection of damaged files."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import broker_config
from broker_config.protocol.errors import BrokerUnavailable, LedgerFenced, LedgerMissing
from broker_config.stores.memory.store import MemoryStore


def test_the_next_store_on_the_directory_has_the_ledgers_and_fences(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path / "not" / "yet" / "there")
    store.commit("run", 7, 1, b"first")
    store.commit("run", 7, 2, b"second")
    store.open_activation("run", 7, 4)
    store.close()
    again = MemoryStore(tmp_path / "not" / "yet" / "there")
    assert again.read("run", 7, 2) == b"first"
    assert again.latest("run") == {7: (2, b"second")}
    assert not again.commit("run", 7, 2, b"other")
    with pytest.raises(LedgerFenced):
        again.commit("run", 7, 3, b"late")


def test_only_the_files_of_the_last_two_generations_are_kept(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    for activation in range(1, 6):
        store.commit("run", 7, activation, b"ledger")
    assert sorted(path.name for path in (tmp_path / "run" / "7").iterdir()) == [
        "4.ledger",
        "5.ledger",
        "record",
    ]


def test_every_confirmed_commit_survives_sigkill(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from broker_config.stores.memory.store import MemoryStore
store = MemoryStore(Path(sys.argv[1]))
for activation in range(1, 10_000):
    store.commit("run", 7, activation, b"%d" % activation)
    print(activation, flush=True)
"""
    root = Path(broker_config.__file__).parents[1]
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(20):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        confirmed = int([b"20", *process.stdout.read().split()][-1])
    activation, ledger = MemoryStore(tmp_path).latest("run")[7]
    assert activation >= confirmed
    assert ledger == b"%d" % activation


@pytest.mark.parametrize("name", ["2.ledger", "record"])
def test_the_error_for_a_damaged_file_names_it_and_the_remedy(tmp_path: Path, name: str) -> None:
    store = MemoryStore(tmp_path)
    for activation in (1, 2):
        store.commit("run", 7, activation, b"ledger")
    path = tmp_path / "run" / "7" / name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(LedgerMissing, match="new run") as lost:
        store.read("run", 7, 3)
    assert str(path) in str(lost.value)


@pytest.mark.parametrize("name", ["2.ledger", "record"])
def test_the_error_for_a_missing_file_names_it(tmp_path: Path, name: str) -> None:
    store = MemoryStore(tmp_path)
    for activation in (1, 2):
        store.commit("run", 7, activation, b"ledger")
    path = tmp_path / "run" / "7" / name
    path.unlink()
    with pytest.raises(LedgerMissing) as lost:
        store.read("run", 7, 3)
    assert str(path) in str(lost.value)


def test_a_ledger_file_of_another_client_is_detected(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    for client in (7, 8):
        store.commit("run", client, 1, b"ledger of %d" % client)
    (tmp_path / "run" / "8" / "1.ledger").replace(tmp_path / "run" / "7" / "1.ledger")
    with pytest.raises(LedgerMissing, match="belongs to"):
        store.read("run", 7, 2)


def test_a_damaged_file_affects_only_its_client(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    for client in (7, 8):
        store.commit("run", client, 1, b"ledger")
    (tmp_path / "run" / "7" / "1.ledger").write_bytes(b"")
    assert store.read("run", 8, 2) == b"ledger"


@pytest.mark.parametrize("failing_write", [1, 2])
def test_a_full_disk_loses_nothing_and_the_commit_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_write: int
) -> None:
    store = MemoryStore(tmp_path)
    store.commit("run", 7, 1, b"first")
    files_written = 0

    def replace_until_full(source: Path, target: Path) -> None:
        nonlocal files_written
        files_written += 1
        if files_written == failing_write:
            raise OSError(errno.ENOSPC, "No space left on device")
        source.rename(target)

    with monkeypatch.context() as full:
        full.setattr(os, "replace", replace_until_full)
        with pytest.raises(BrokerUnavailable, match="No space left on device"):
            store.commit("run", 7, 2, b"second")
    assert not list(tmp_path.rglob("*.tmp"))
    assert MemoryStore(tmp_path).latest("run") == {7: (1, b"first")}
    assert store.commit("run", 7, 2, b"second")
    assert store.read("run", 7, 3) == b"second"
