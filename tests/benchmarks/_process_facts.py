"""What Linux knows of a process: how much memory it has and had, how much it has sent."""

import os
import socket
import struct
from pathlib import Path

_BYTES_ACKED = struct.Struct("<120xQ")
"""Of the kernel's tcp_info: what the other side has received, headers not counted."""


def memory_bytes(what: str, pid: int | str = "self") -> int:
    """VmRSS is what it has now, VmHWM the most that it ever had. (getrusage's peak would outlive exec.)"""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))


def sent_bytes() -> int:
    """On all TCP connections that this process has open."""
    total = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(descriptor))) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size)
        except OSError:
            continue  # no socket, no TCP, or closed meanwhile
        total += _BYTES_ACKED.unpack(info)[0] if len(info) == _BYTES_ACKED.size else 0
    return total
