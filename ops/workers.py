"""Worker processes on this machine: started, watched, replaced when they die, ended with the run."""

import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from broker_config.errors import FedILError
from server_worker.events import Watcher

_GRACE_SECONDS = 5.0
_CHECK_SECONDS = 0.5
_MAX_DEATHS = 6


class WorkerPool:
    """`failure` is set, and the run asked to stop, when workers die without getting anything done or cannot be
    looked after any more."""

    def __init__(
        self, arguments: list[str], count: int, logs: Path, watcher: Watcher, stop: threading.Event
    ) -> None:
        self._arguments, self._logs, self._watcher = arguments, logs, watcher
        self._stop_run = stop
        self._closing = threading.Event()
        self.failure: Exception | None = None
        self._deaths = 0
        logs.mkdir(parents=True, exist_ok=True)
        self._processes = [self._start(number) for number in range(count)]
        self._thread = threading.Thread(target=self._watch, name="fedil-workers", daemon=True)
        self._thread.start()

    def _start(self, number: int) -> "subprocess.Popen[bytes]":
        # A session of its own: Ctrl-C in the terminal is the server's to handle.
        with (self._logs / f"worker-{number}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "client_worker", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def progress(self) -> None:
        """A worker got something done, so the deaths until now were no reason to give up."""
        self._deaths = 0

    def _watch(self) -> None:
        try:
            while not self._closing.wait(_CHECK_SECONDS):
                for number, process in enumerate(self._processes):
                    code = process.poll()
                    if code is not None and not self._closing.is_set():
                        self._replace(number, code)
        except Exception as error:
            # Unseen, it would leave the server waiting for workers that nobody starts.
            self.failure = error
            self._stop_run.set()

    def _replace(self, number: int, code: int) -> None:
        self._deaths += 1
        log = self._logs / f"worker-{number}.log"
        if self._deaths >= _MAX_DEATHS:
            raise FedILError(f"workers keep dying (exit code {code}): {_last_line(log)} (see {log})")
        self._watcher.note(
            f"worker {number} died (exit code {code}); its task goes to another, and it is replaced"
        )
        self._processes[number] = self._start(number)

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.set()
        try:
            self._thread.join()
            for process in self._processes:
                process.terminate()
            for process in self._processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_SECONDS)
        finally:  # also when a second Ctrl-C comes in here
            for process in self._processes:
                process.kill()
            for process in self._processes:
                process.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
