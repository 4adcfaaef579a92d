"""With real processes, most of which end at once because their arguments are wrong."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import client_worker.pool
from broker_config.protocol.errors import UsageError
from ops.cli.view import QuietView
from ops.local.workers import start_workers
from server_worker.watch.notices import Notice

PATIENCE = 60.0
DIES = """#!/bin/sh
echo "no more memory" >&2
exit ${FEDIL_TEST_CODE:-3}
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_worker.pool, "_CHECK_SECONDS", 0.02)
    monkeypatch.setattr(client_worker.pool, "_BACKOFF_SECONDS", 0.0)


@pytest.fixture
def _dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "dies"
    script.write_text(DIES)
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


class Listener(QuietView):
    def __init__(self, on_note: Callable[[int], None] = lambda _: None) -> None:
        self.notes = 0
        self._on_note = on_note

    def note(self, notice: Notice) -> None:
        self.notes += 1
        self._on_note(self.notes)


def pool_of(
    arguments: list[str], count: int, logs: Path, listener: QuietView, stop: threading.Event
) -> client_worker.pool.WorkerPool:
    return start_workers(arguments, [], count, logs, lambda text: listener.note(Notice(text)), stop.set)


@pytest.mark.usefixtures("_dying")
def test_workers_that_keep_dying_end_the_run_with_their_last_words(tmp_path: Path) -> None:
    listener, stop = Listener(), threading.Event()
    with pool_of([], 2, tmp_path, listener, stop) as pool:
        assert stop.wait(PATIENCE)
    assert str(pool.failure) == f"workers keep dying (exit code 3): no more memory (see {tmp_path})"
    assert listener.notes == 5


def test_a_worker_that_was_started_wrongly_is_not_started_again(tmp_path: Path) -> None:
    listener, stop = Listener(), threading.Event()
    with pool_of(["--nonsense"], 2, tmp_path, listener, stop) as pool:
        assert stop.wait(PATIENCE)
    assert isinstance(pool.failure, UsageError)
    assert "--site" in str(pool.failure)
    assert listener.notes == 0


@pytest.mark.usefixtures("_dying")
def test_what_has_worked_before_is_tried_again_whatever_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDIL_TEST_CODE", "2")
    listener, stop = Listener(), threading.Event()
    monkeypatch.setattr(client_worker.pool, "_CHECK_SECONDS", 0.5)
    with pool_of([], 1, tmp_path, listener, stop) as pool:
        pool.progress()
        assert stop.wait(PATIENCE)
    assert "workers keep dying (exit code 2)" in str(pool.failure)
    assert listener.notes == 5


@pytest.mark.usefixtures("_dying")
def test_deaths_with_work_done_between_them_do_not_add_up(tmp_path: Path) -> None:
    stop = threading.Event()

    def work_was_done(notes: int) -> None:
        if notes <= 7:
            pool.progress()

    listener = Listener(work_was_done)
    with pool_of([], 1, tmp_path, listener, stop) as pool:
        assert stop.wait(PATIENCE)
    assert listener.notes == 7 + 5


@pytest.mark.usefixtures("_dying")
def test_a_watch_over_the_workers_that_fails_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    stop, reason = threading.Event(), BrokenPipeError(32, "Broken pipe")

    def closed(notes: int) -> None:
        raise reason

    with pool_of([], 1, tmp_path, Listener(closed), stop) as pool:
        assert stop.wait(PATIENCE)
    assert pool.failure is reason


@pytest.mark.usefixtures("_dying")
def test_a_worker_that_cannot_be_replaced_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    stop, logs = threading.Event(), tmp_path / "logs"

    def logs_are_gone(notes: int) -> None:
        (logs / "worker-0.log").unlink()
        logs.rmdir()

    with pool_of([], 1, logs, Listener(logs_are_gone), stop) as pool:
        assert stop.wait(PATIENCE)
    assert isinstance(pool.failure, FileNotFoundError)


DEAF = """#!/bin/sh
trap '' TERM
echo $$
exec sleep 60
"""


def pids_in(logs: Path) -> list[int]:
    """Once both have said theirs."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        said = [log.read_text() for log in logs.glob("*.log")]
        if len(said) == 2 and all(text.endswith("\n") for text in said):
            return [int(text) for text in said]
        time.sleep(0.01)
    raise AssertionError("the workers did not start")


def test_an_interruption_while_workers_are_asked_to_end_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "deaf"
    script.write_text(DEAF)
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    pool = pool_of([], 2, tmp_path, QuietView(), threading.Event())
    pids = pids_in(tmp_path)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # others may have left their own
    try:
        with pytest.raises(KeyboardInterrupt), pool:
            # In here: one that came before would end all tests.
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
