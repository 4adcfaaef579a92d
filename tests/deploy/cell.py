"""Runs a command as a container runs it, without an engine: with a root of its own that is read-only, only the mounts
that its manifest names, only its environment, an unprivileged user, and this machine's network.

The root has this machine's programs, as /opt/fedil the Python that runs the tests with its packages, and of FedIL what
is in a wheel that was built from the image's context. So a file that the image would lack, or a path that is written
to without a mount, fails here as it would there."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.local.services.process import ServiceMissing
from tests.deployment import ROOT

USER = 10001
_FILES_IN_ETC = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "ssl", "localtime")


@dataclass(frozen=True)
class Mount:
    source: Path | None
    """None: a tmpfs"""
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Cell:
    command: Sequence[str]
    environment: Mapping[str, str]
    mounts: Sequence[Mount]
    user: int = USER
    hosts: Sequence[str] = ()
    """Names of other containers, all of them on this machine"""
    image: Path | None = None
    """FedIL's packages; without them it is a cell of another product, with this machine's programs"""
    directory: str = "/plugins"
    """The working directory"""

    def start(self, folder: Path, log: Path) -> "subprocess.Popen[bytes]":
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").write_text(f"127.0.0.1 localhost {' '.join(self.hosts)}\n")
        script = folder / "enter"
        script.write_text("\n".join(["set -e", *self._enter(folder), ""]))
        with log.open("ab") as out:
            return subprocess.Popen(
                ["unshare", "--mount", *_rights(), "sh", str(script)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def run(self, folder: Path, timeout: float = 60.0) -> tuple[int, str]:
        """Exit code and output"""
        log = folder.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        before = log.stat().st_size if log.exists() else 0
        code = self.start(folder, log).wait(timeout)
        return code, log.read_bytes()[before:].decode()

    def _enter(self, folder: Path) -> list[str]:
        """Lines of shell that end in the command; the process id stays the same."""
        root = folder / "root"
        root.mkdir(exist_ok=True)
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        if self.image is not None:
            variables.append("PYTHONPATH=/fedil")
        drop = f"setpriv --reuid {self.user} --regid {self.user} --clear-groups --bounding-set=-all --no-new-privs"
        inside = shlex.join(["env", "-i", "-C", self.directory, *variables, *self.command])
        return [
            "mount --make-rprivate /",
            f"mount -t tmpfs -o mode=755 cell {root}",
            *_system(root),
            *_bind(root, folder / "hosts", "/etc/hosts"),
            *(_packages(root, self.image) if self.image is not None else ()),
            f"mkdir -p {root}{self.directory}",
            *(
                line
                for mount in sorted(self.mounts, key=lambda one: one.target)
                for line in _mount(root, mount)
            ),
            f"mount -o remount,bind,ro {root}",
            f"exec chroot {root} {drop if os.geteuid() == 0 else ''} {inside}",
        ]


def _system(root: Path) -> list[str]:
    """This machine's programs, and of /etc what they cannot do without"""
    lines = [f"mkdir -p {root}/etc", *_bind(root, Path("/usr"), "/usr")]
    for path in map(Path, ("/bin", "/sbin", "/lib", "/lib64")):
        if path.is_symlink():
            lines.append(f"ln -s {path.readlink()} {root}{path}")
        elif path.exists():
            lines += _bind(root, path, str(path))
    for path in (Path("/etc", name) for name in _FILES_IN_ETC):
        if path.exists():
            lines += _bind(root, path, str(path))
    mounts = (f"mount --rbind {place} {root}{place}" for place in ("/proc", "/dev"))
    return [*lines, f"mkdir -p {root}/proc {root}/dev", *mounts]


def _packages(root: Path, image: Path) -> list[str]:
    """FedIL, and the virtual environment with the interpreter that it leads to"""
    lines = [*_bind(root, Path(sys.prefix), "/opt/fedil"), *_bind(root, image, "/fedil")]
    base = Path(sys.base_prefix).resolve()
    return lines if base.is_relative_to("/usr") else [*lines, *_bind(root, base, str(base))]


def _mount(root: Path, mount: Mount) -> list[str]:
    if mount.source is None:
        return [f"mkdir -p {root}{mount.target}", f"mount -t tmpfs -o mode=1777 cell {root}{mount.target}"]
    if not mount.source.exists():
        mount.source.mkdir(parents=True)
        mount.source.chmod(0o1777)  # as the image's folders, of which new volumes are copies
    return _bind(root, mount.source, mount.target, mount.read_only)


def _bind(root: Path, source: Path, target: str, read_only: bool = True) -> list[str]:
    place, parent = f"{root}{target}", Path(f"{root}{target}").parent
    make = f"mkdir -p {place}" if source.is_dir() else f"mkdir -p {parent} && touch {place}"
    lines = [make, f"mount --bind {shlex.quote(str(source))} {place}"]
    return [*lines, f"mount -o remount,bind,ro {place}"] if read_only else lines


def _rights() -> list[str]:
    if shutil.which("unshare") is None:
        raise ServiceMissing("unshare is not installed: apt install util-linux")
    return [] if os.geteuid() == 0 else ["--map-root-user"]


def build_image(folder: Path) -> Path:
    """FedIL as the image has it: a wheel from the files of the context, unpacked."""
    context = folder / "context"
    for path in context_files():
        place = context / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, place)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(folder)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(context)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("fedil-*.whl")
    shutil.unpack_archive(wheel, folder / "image", "zip")
    return folder / "image"


def context_files() -> list[str]:
    """What of the repository's files .dockerignore lets into the image's context"""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [
        path for path in listed.stdout.splitlines() if (ROOT / path).is_file() and not _ignored(path, rules)
    ]


def _ignored(path: str, rules: Sequence[str]) -> bool:
    """The last rule that matches the file or a folder that it is in; of Docker's patterns those that ours uses."""
    ignored = False
    places = {path, *map(str, Path(path).parents)} - {"."}
    for rule in rules:
        pattern = rule.removeprefix("!")
        names = {Path(place).name for place in places} if pattern.startswith("**/") else places
        wanted = pattern.removeprefix("**/")
        if wanted == "*" or any(
            Path(name).match(wanted) if "*" in wanted else name == wanted for name in names
        ):
            ignored = not rule.startswith("!")
    return ignored
