"""With real processes, which end at once because their arguments are wrong."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import ops.workers
from ops.view import QuietView
from ops.workers import WorkerPool

WRONG = ["--nonsense"]
PATIENCE = 60.0


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops.workers, "_CHECK_SECONDS", 0.02)


class Listener(QuietView):
    def __init__(self, on_note: Callable[[int], None] = lambda _: None) -> None:
        self.notes = 0
        self._on_note = on_note

    def note(self, text: str) -> None:
        self.notes += 1
        self._on_note(self.notes)


def test_workers_that_keep_dying_end_the_run_with_their_last_words(tmp_path: Path) -> None:
    listener, stop = Listener(), threading.Event()
    with WorkerPool(WRONG, 2, tmp_path, listener, stop) as pool:
        assert stop.wait(PATIENCE)
    assert "workers keep dying (exit code 2)" in str(pool.failure)
    assert "--broker" in str(pool.failure)
    assert listener.notes == 5


def test_deaths_with_work_done_between_them_do_not_add_up(tmp_path: Path) -> None:
    stop = threading.Event()

    def work_was_done(notes: int) -> None:
        if notes <= 7:
            pool.progress()

    listener = Listener(work_was_done)
    with WorkerPool(WRONG, 1, tmp_path, listener, stop) as pool:
        assert stop.wait(PATIENCE)
    assert listener.notes == 7 + 5


def test_a_watch_over_the_workers_that_fails_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    stop, reason = threading.Event(), BrokenPipeError(32, "Broken pipe")

    def closed(notes: int) -> None:
        raise reason

    with WorkerPool(WRONG, 1, tmp_path, Listener(closed), stop) as pool:
        assert stop.wait(PATIENCE)
    assert pool.failure is reason


def test_a_worker_that_cannot_be_replaced_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    stop, logs = threading.Event(), tmp_path / "logs"

    def logs_are_gone(notes: int) -> None:
        (logs / "worker-0.log").unlink()
        logs.rmdir()

    with WorkerPool(WRONG, 1, logs, Listener(logs_are_gone), stop) as pool:
        assert stop.wait(PATIENCE)
    assert isinstance(pool.failure, FileNotFoundError)
