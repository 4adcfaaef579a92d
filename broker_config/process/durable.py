"""Files that are whole or absent, whenever the process or the machine dies."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from broker_config.protocol.errors import BrokerUnavailable


def write_atomically(path: Path, body: Iterable[bytes | memoryview]) -> None:
    """Write aside, force to disk, rename. If it fails (full disk), `path` is as it was."""
    _write_aside(path, body, 0o666)


def write_privately(path: Path, body: Iterable[bytes | memoryview]) -> None:
    """`write_atomically`, readable for its owner only, from the first byte on"""
    _write_aside(path, body, 0o600)


def _write_aside(path: Path, body: Iterable[bytes | memoryview], mode: int) -> None:
    aside = path.with_name(path.name + ".tmp")
    with translated_disk_errors(path):
        try:
            # What a crash, or another user, has left there would keep its mode, and a link lead elsewhere.
            aside.unlink(missing_ok=True)
            with open(aside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                file.writelines(body)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        _fsync_directory(path.parent)


def append_line(path: Path, line: bytes) -> None:
    """Force it to disk. If it fails (full disk), `path` is as it was."""
    # Unbuffered: a buffer would write what is left in it when it is closed, after the file was cut back.
    with translated_disk_errors(path), open(path, "ab", buffering=0) as file:
        before = file.tell()
        rest = memoryview(line + b"\n")
        try:
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            os.truncate(path, before)
            raise


def make_directory(path: Path) -> None:
    """With its parents, and so that they survive a power cut too."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with translated_disk_errors(path):
        path.mkdir(exist_ok=True)
        _fsync_directory(path.parent)


def _fsync_directory(directory: Path) -> None:
    """The rename itself must reach the disk too."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def translated_disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise  # the caller knows whether the file ought to be there
    except OSError as error:
        raise BrokerUnavailable(
            f"cannot use {path}: {error.strerror or error}. Nothing committed is lost: "
            "free space or repair the disk, then try again"
        ) from error
