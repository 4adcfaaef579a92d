"""Worker processes on this machine: started, watched, replaced when they die, ended together."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import RawIOBase

from broker_config.process.logs import message_in
from broker_config.protocol.errors import FedILError, UsageError
from client_worker.placement import Slot

_CHECK_SECONDS = 0.5
_BACKOFF_SECONDS = 0.1
_LONGEST_BACKOFF_SECONDS = 30.0
_QUICK_SECONDS = 60.0
"""A worker that lived longer did not die of how it was started."""
_MIN_DEATHS = 6
WRONGLY_ASKED = 2
"""Exit code of a process that other arguments would put right"""


class WorkerPool:
    """`failure` is set, and `gave_up` called, when workers die without getting anything done or cannot be looked
    after any more."""

    def __init__(
        self,
        arguments: Sequence[str],
        count: int,
        *,
        open_log: Callable[[int], RawIOBase],
        note: Callable[[str], None],
        gave_up: Callable[[], None],
        grace_seconds: float = 5.0,
        see: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`see` tells where more can be read about workers that die. `environment`: default: that of this process"""
        self._arguments, self._count, self._open_log = list(arguments), count, open_log
        self._note, self._gave_up, self._grace, self._see = note, gave_up, grace_seconds, see
        self._environment = environment
        self._closing = threading.Event()
        self.failure: Exception | None = None
        self._deaths, self._has_replaced = 0, False
        self._workers: list[_Worker] = []
        try:
            for number in range(count):
                self._workers.append(self._start(number))
        except BaseException:
            self._end()
            raise
        self._thread = threading.Thread(target=self._watch, name="fedil-workers", daemon=True)
        self._thread.start()

    def _start(self, number: int) -> "_Worker":
        command = [sys.executable, "-m", "client_worker", *self._arguments]
        command += ["--slot", str(Slot(number, self._count))]
        return _Worker(command, self._open_log(number), self._environment)

    def progress(self) -> None:
        """A worker got something done, so the deaths until now were no reason to give up."""
        self._deaths, self._has_replaced = 0, True

    def _watch(self) -> None:
        try:
            while not self._closing.wait(_CHECK_SECONDS):
                for number, worker in enumerate(self._workers):
                    if worker.process.poll() is not None and not self._closing.is_set():
                        self._look_after(number, worker)
        except Exception as error:
            # An error that is not reported would leave the caller waiting for ever.
            self.failure = error
            self._gave_up()

    def _look_after(self, number: int, dead: "_Worker") -> None:
        if dead.replace_at is None:
            dead.replace_at = time.monotonic() + self._count_death(number, dead)
        elif time.monotonic() >= dead.replace_at:
            dead.close()
            self._workers[number] = self._start(number)

    def _count_death(self, number: int, dead: "_Worker") -> float:
        """How long to wait before it is replaced."""
        self._deaths = self._deaths + 1 if dead.lived_seconds() < _QUICK_SECONDS else 1
        code, said = dead.process.returncode, dead.last_words()
        if code == WRONGLY_ASKED and not self._has_replaced:
            raise UsageError(said)
        if self._deaths >= max(_MIN_DEATHS, 3 * self._count):
            raise FedILError(f"workers keep dying (exit code {code}): {said}{self._see}")
        self._has_replaced = True  # what was right once is no longer to blame
        self._note(f"worker {number} died (exit code {code}); its task goes to another, and it is replaced")
        return min(_BACKOFF_SECONDS * 2.0 ** (self._deaths // self._count), _LONGEST_BACKOFF_SECONDS)

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        try:
            self._thread.join()
            for worker in self._workers:
                worker.process.terminate()
            deadline = time.monotonic() + self._grace
            for worker in self._workers:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, deadline - time.monotonic()))
        finally:  # also when a second Ctrl-C comes in here
            self._end()

    def _end(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
            worker.close()


class _Worker:
    """One process. It has a session of its own, since Ctrl-C in the terminal is for the parent to handle; and it
    reads from a pipe which ends when the parent does, however that comes."""

    def __init__(self, command: Sequence[str], log: RawIOBase, environment: Mapping[str, str] | None) -> None:
        self._log = log
        self._last = b""
        self._began = time.monotonic()
        self.replace_at: float | None = None
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, name="fedil-worker-log", daemon=True)
        self._listener.start()

    def lived_seconds(self) -> float:
        return time.monotonic() - self._began

    def last_words(self) -> str:
        self._listener.join(1.0)
        said = message_in(self._last.decode("utf-8", errors="replace").strip())
        return said.removeprefix("client_worker: ") or "it said nothing"

    def close(self) -> None:
        """Once the process has ended."""
        self._listener.join(1.0)
        for end in (self.process.stdin, self.process.stdout):
            assert end is not None
            end.close()
        self._log.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._last = line if line.strip() else self._last
            # After a full disk the worker's output is still read, else the worker would block.
            with suppress(OSError):
                self._log.write(line)
