"""A program that runs as a private service: on free loopback ports, in its own folder, and in a process group that is
killed as a whole, at the latest when this process ends."""

import os
import random
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Self

from broker_config.protocol.errors import FedILError

LOOPBACK = "127.0.0.1"
# Below the range of ephemeral ports: a client that keeps connecting to a dead service on one of those may be given the
# same port, connect to itself, and keep the service from binding it again.
PORTS = range(15000, 32000)

_ATTEMPTS = 5
ANSWER_SECONDS = 120.0
_STOP_SECONDS = 60.0
_EXIT_SECONDS = 3.0
_POLL_SECONDS = 0.02
_SHOWN_LINES, _LINE_LENGTH = 15, 300


class ServiceMissing(FedILError):
    """A program is not installed; the text says what to install."""


class ServiceFailed(FedILError):
    """A program did not start; the text contains its output."""


class PrivateService(ABC):
    """A service that starts when it is created. It keeps its ports, so that clients find it again after a `kill`."""

    name: str
    port_names: tuple[str, ...]

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log = self.directory / "output.log"
        self._process: GuardedProcess | None = None
        for left in reversed(range(_ATTEMPTS)):
            self.ports = free_ports(self.port_names)
            try:
                self.start()
                break
            except PortTaken:
                if not left:
                    raise

    @property
    def port(self) -> int:
        """Of clients, the first of its ports"""
        return self.ports[self.port_names[0]]

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Writes the configuration, and returns the command that runs the program in the foreground."""

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it is ready; may raise OSError while the port is closed."""

    @property
    def pid(self) -> int:
        """Of the first process of its group"""
        if self._process is None:
            raise ServiceFailed(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if self.running:
            return
        self.kill()  # the rest of its process group, if it died by itself
        with self.log.open("ab") as log:
            since = log.tell()
            self._process = GuardedProcess(
                self._command(), env=self._environment(), cwd=self.directory, stdout=log, stderr=log
            )
        try:
            if wait_until(self._answers, ANSWER_SECONDS, while_=lambda: self.running):
                return
            reason = "did not answer" if self.running else "ended while starting"
        except BaseException:
            self.kill()
            raise
        self.kill()
        self._explain(reason, self.log.read_bytes()[since:].decode(errors="replace"))

    def _explain(self, reason: str, output: str) -> NoReturn:
        taken = [str(port) for port in self.ports.values() if not is_free(port)]
        if taken:
            raise PortTaken(f"{self.name} {reason}: another program listens on port {', '.join(taken)}")
        lines = [line[:_LINE_LENGTH] for line in output.splitlines() if line.strip()]
        # From the first error on: Erlang prints a lot after it.
        first = next((number for number, line in enumerate(lines) if "error" in line.lower()), -_SHOWN_LINES)
        shown = "\n  ".join(lines[first:][:_SHOWN_LINES])
        raise ServiceFailed(f"{self.name} {reason}. Its output (complete: {self.log}):\n  {shown}")

    def kill(self) -> None:
        if self._process is None:
            return
        self._process.end()
        self._process = None
        # Only a child process can be waited for; that the ports are free shows that the others have ended too.
        wait_until(lambda: all(map(is_free, self.ports.values())), _EXIT_SECONDS)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        self.kill()  # the rest of its process group, and itself after the time-out

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class PortTaken(ServiceFailed):
    """Another program took a port after `free_ports` chose it."""


class GuardedProcess(subprocess.Popen[bytes]):
    """A process in a session of its own, which keeps Ctrl-C from it. Its group is killed by `end`, at the end of a
    context, or by a shell when this process ends in any way: the shell's standard input then ends without a line.
    (PR_SET_PDEATHSIG would tie it to the thread that started it, and to Linux.)"""

    def __init__(self, command: Sequence[str], **how: Any) -> None:
        super().__init__(command, stdin=subprocess.DEVNULL, start_new_session=True, **how)
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        guard = ["sh", "-c", 'read -r _ || kill -s KILL -- "-$1"', "guard", str(self.pid)]
        self._guard = subprocess.Popen(guard, stdin=pipe, stdout=null, stderr=null, start_new_session=True)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        self._guard.communicate(b"\n")

    def __exit__(self, *_: object) -> None:
        self.end()


def wait_until(
    condition: Callable[[], bool], seconds: float, *, while_: Callable[[], bool] = lambda: True
) -> bool:
    """Polls `condition` and returns whether it became true in time. An OSError counts as false."""
    deadline = time.monotonic() + seconds
    while while_() and time.monotonic() < deadline:
        with suppress(OSError):
            if condition():
                return True
        time.sleep(_POLL_SECONDS)
    return False


def free_ports(names: Sequence[str]) -> dict[str, int]:
    ports: dict[str, int] = {}
    # Not the seeded generator, with which all processes of a test run would choose the same ports.
    generator = random.SystemRandom()
    while len(ports) < len(names):
        port = generator.choice(PORTS)
        if port not in ports.values() and is_free(port):
            ports[names[len(ports)]] = port
    return ports


def is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        with suppress(OSError):
            listener.bind((LOOPBACK, port))
            return True
    return False


def ask(request: bytes, port: int, host: str = LOOPBACK) -> bytes:
    """The first bytes of the response; empty if the server closes the connection."""
    with socket.create_connection((host, port), timeout=2.0) as connection:
        connection.sendall(request)
        return connection.recv(64)


def listens(port: int) -> bool:
    """Raises OSError if not."""
    with socket.create_connection((LOOPBACK, port), timeout=2.0):
        return True


def find_program(name: str, *places: str, missing: str) -> str:
    """Full path of a program. `places` come first: the PATH may have a wrapper for the system's own instance."""
    # Services are often in folders that are not on a user's PATH.
    elsewhere = "/usr/sbin:/usr/local/sbin:/sbin:/opt/homebrew/sbin:/opt/homebrew/bin"
    found = (*map(shutil.which, (*places, name)), shutil.which(name, path=elsewhere))
    if program := next(filter(None, found), None):
        return program
    raise ServiceMissing(missing)
