"""A program of this machine, run privately: on free loopback ports, in a folder of its own, in a process group
that can be killed at once and does not outlive us."""

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
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Protocol, Self

from broker_config.protocol.errors import FedILError

LOOPBACK = "127.0.0.1"
# Below the ports that systems hand to outgoing connections: a client that keeps dialling a dead service on one of
# those may be given that very port and then talks to itself, and the service cannot have it back.
PORTS = range(15000, 32000)

_ATTEMPTS = 5
ANSWER_SECONDS = 120.0
_STOP_SECONDS = 60.0
_DEATH_SECONDS = 3.0
_LOOK_SECONDS = 0.02
_TOLD_LINES, _LINE_LENGTH = 15, 300


class ServiceMissing(FedILError):
    """The text says what to install."""


class ServiceFailed(FedILError):
    """It is installed and did not come up. The text ends with what it said last."""


class Service(Protocol):
    """A broker or store that a test may use, and may treat badly. As a context it is killed at the end."""

    @property
    def url(self) -> str: ...

    def start(self) -> None:
        """Again, on the same ports and data; returns when it answers."""
        ...

    def kill(self) -> None:
        """As if its machine had lost power: no goodbye, the data stays as it lies."""
        ...

    def stop(self) -> None:
        """Gracefully."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True)
class Tls:
    """A second listener with TLS. Clients must show a certificate of the same authority, unless told otherwise."""

    authority: Path
    certificate: Path
    key: Path
    ask_clients: bool = True


class PrivateService(ABC):
    """Starts when it is made. `ports` are chosen then and kept, so that clients find it again after a `kill`."""

    name: str
    port_names: tuple[str, ...]

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log = self.directory / "output.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self.ports = free_ports(self.port_names)
        self._start_for_the_first_time(_ATTEMPTS)

    def _start_for_the_first_time(self, attempts: int) -> None:
        try:
            self.start()
        except PortTaken:
            if attempts == 1:
                raise
            self.ports = free_ports(self.port_names)
            self._start_for_the_first_time(attempts - 1)

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Writes what the program reads at its start, and says how to run it in the foreground."""

    @abstractmethod
    def _environment(self) -> Mapping[str, str]: ...

    @abstractmethod
    def _answers(self) -> bool:
        """May raise OSError while nobody listens."""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if self.running:
            return
        self.kill()  # what is left of one that died by itself
        with self.log.open("ab") as log:
            since = log.tell()
            self._process = subprocess.Popen(
                self._command(),
                env=self._environment(),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._guard = Guard(self._process.pid)
        try:
            if wait_until(self._answers, ANSWER_SECONDS, while_=lambda: self.running):
                return
            reason = "did not answer" if self.running else "ended while starting"
        except BaseException:
            self.kill()
            raise
        self.kill()
        self._explain(reason, self.log.read_bytes()[since:].decode(errors="replace"))

    def _explain(self, reason: str, said: str) -> NoReturn:
        taken = [str(port) for port in self.ports.values() if not is_free(port)]
        if taken:
            raise PortTaken(f"{self.name} {reason}: something else listens on port {', '.join(taken)}")
        lines = [line[:_LINE_LENGTH] for line in said.splitlines() if line.strip()]
        # The cause stands first; Erlang says a lot after it.
        first = next((number for number, line in enumerate(lines) if "error" in line.lower()), -_TOLD_LINES)
        told = "\n  ".join(lines[first:][:_TOLD_LINES])
        raise ServiceFailed(f"{self.name} {reason}. It said (all of it: {self.log}):\n  {told}")

    def kill(self) -> None:
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        if self._guard:
            self._guard.release()
            self._guard = None
        # Only our child can be waited for. Sockets and files of the others close together, when they are really gone.
        wait_until(lambda: all(map(is_free, self.ports.values())), _DEATH_SECONDS)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        self.kill()  # its helpers, and itself if it would not go

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()


class PortTaken(ServiceFailed):
    """Somebody else took a port between our look and the program's."""


class Guard:
    """A shell that kills a process group when we die, however we die: only then does its standard input end
    without a line. (PR_SET_PDEATHSIG would tie the service to the thread that started it, and to Linux.)"""

    def __init__(self, group: int) -> None:
        self._shell = subprocess.Popen(
            ["sh", "-c", 'read -r _ || kill -s KILL -- "-$1"', "guard", str(group)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us alone
        )

    def release(self) -> None:
        self._shell.communicate(b"\n")


def wait_until(
    condition: Callable[[], bool], seconds: float, *, while_: Callable[[], bool] = lambda: True
) -> bool:
    """Whether it came true. An OSError means not yet."""
    deadline = time.monotonic() + seconds
    while while_() and time.monotonic() < deadline:
        with suppress(OSError):
            if condition():
                return True
        time.sleep(_LOOK_SECONDS)
    return False


def free_ports(names: Sequence[str]) -> dict[str, int]:
    ports: dict[str, int] = {}
    # Not the seeded generator: processes of one test run would all choose the same.
    choice = random.SystemRandom()
    while len(ports) < len(names):
        port = choice.choice(PORTS)
        if port not in ports.values() and is_free(port):
            ports[names[len(ports)]] = port
    return ports


def is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            listener.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def ask(question: bytes, port: int, host: str = LOOPBACK) -> bytes:
    """The first bytes of the answer; empty when the other side hangs up."""
    with socket.create_connection((host, port), timeout=2.0) as connection:
        connection.sendall(question)
        return connection.recv(64)


def listens(port: int) -> bool:
    with socket.create_connection((LOOPBACK, port), timeout=2.0):
        return True


def find_program(name: str, *places: str, missing: str) -> str:
    """`places` come first: what is on the PATH may be a wrapper for the system's own instance."""
    for place in (*places, name):
        found = shutil.which(place)
        if found:
            return found
    # A service lives where an ordinary user's PATH may not look.
    found = shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin:/opt/homebrew/sbin:/opt/homebrew/bin")
    if found:
        return found
    raise ServiceMissing(missing)
