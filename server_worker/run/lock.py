"""One server at a time in the folder of a run."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker_config.protocol.errors import FedILError


class FolderInUse(FedILError):
    pass


@contextmanager
def sole_use(run_dir: Path) -> Iterator[None]:
    """One fedil at a time. The kernel lets go of the lock when the process ends, however it ends."""
    place = run_dir.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    path = lock_file(place)
    while True:
        descriptor = _open(path)
        try:
            lock(descriptor, run_dir)
            if not is_at(descriptor, path):
                continue  # its holder deleted the file meanwhile: it locks nothing any more
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(descriptor)


def _open(path: Path) -> int:
    """Not through a symbolic link: in a folder that others can write to, it would empty and remove a file elsewhere."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise FedILError(
            f"{path} is a symbolic link, where the lock of a run should be: delete it, or use another --run-dir"
        ) from error


def lock_file(place: Path) -> Path:
    """Beside the folder, which `replacing` renames; inside where only the folder itself can be written to, as
    in a mounted volume, which cannot be renamed anyway."""
    only_inside = place.is_dir() and not os.access(place.parent, os.W_OK)
    return (place if only_inside else place.parent) / f".{place.name}.lock"


def lock(descriptor: int, run_dir: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 20, 0).decode() or "unknown"
        raise FolderInUse(
            f"{run_dir} is in use by another fedil (pid {holder}): stop it or use another --run-dir"
        ) from error


def is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
