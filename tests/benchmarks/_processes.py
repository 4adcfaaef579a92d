"""Processes of a benchmark: started, never left behind, and what Linux knows of their memory and traffic."""

import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ops.local.services.process import GuardedProcess
from tests.processes import family

ROOT = Path(__file__).parents[2]
_BYTES_ACKED = struct.Struct("<120xQ")
"""Of the kernel's tcp_info: what the other side has received, headers not counted."""


@contextmanager
def started(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Killed at the end, with all that it has started itself."""
    with log.open("wb") as file:
        process = GuardedProcess(
            command, env={**os.environ, **environment}, cwd=ROOT, stdout=file, stderr=file
        )
    try:
        yield process
    finally:
        descendants = family(process.pid)
        process.end()
        for pid in descendants:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def memory_bytes(what: str, pid: int | str = "self") -> int:
    """VmRSS is what it has now, VmHWM the most that it ever had. (getrusage's peak would outlive exec.)"""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))


def sent_bytes() -> int:
    """On all TCP connections that this process has open."""
    total = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile, or no TCP
            if os.readlink(link).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(link.name))) as connection:
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
                total += _BYTES_ACKED.unpack(info)[0]
    return total


def cpu_seconds(pid: int) -> float:
    """Of a process and all its living descendants, user and system"""
    total = 0.0
    for each in {pid} | family(pid):
        with suppress(OSError):  # it has just ended
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total
