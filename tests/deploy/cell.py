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
from dataclasses import dataclass, field
from pathlib import Path

from ops.local.services.process import ServiceMissing
from tests.deployment import ROOT

USER = 10001
_FILES_IN_ETC = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "ssl", "localtime")
_LINKS = ("bin", "sbin", "lib", "lib64")


@dataclass(frozen=True)
class Mount:
    source: Path | None
    """None: a tmpfs"""
    target: str
    read_only: bool = False


@dataclass
class Cell:
    command: Sequence[str]
    environment: Mapping[str, str]
    mounts: Sequence[Mount]
    user: int = USER
    hosts: Sequence[str] = ()
    """Names of other containers, all of them on this machine"""
    image: Path | None = None
    """FedIL's packages; without them it is a cell of another product, with this machine's programs"""
    directories: Sequence[str] = field(default=("/plugins",))

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
        lines = ["mount --make-rprivate /", f"mount -t tmpfs -o mode=755 cell {root}", f"mkdir -p {root}/etc"]
        for name in _LINKS:
            if Path("/", name).is_symlink():
                lines.append(f"ln -s {os.readlink(f'/{name}')} {root}/{name}")
            elif Path("/", name).exists():
                lines += _bind(root, f"/{name}", f"/{name}", True)
        lines += _bind(root, "/usr", "/usr", True)
        for name in _FILES_IN_ETC:
            if Path("/etc", name).exists():
                lines += _bind(root, f"/etc/{name}", f"/etc/{name}", True)
        lines += _bind(root, str(folder / "hosts"), "/etc/hosts", True)
        lines += [f"mkdir -p {root}/proc {root}/dev", f"mount --rbind /proc {root}/proc"]
        lines += [f"mount --rbind /dev {root}/dev", *(f"mkdir -p {root}{path}" for path in self.directories)]
        environment = dict(self.environment)
        if self.image is not None:
            lines += [line for place in _pythons() for line in _bind(root, place, place, True)]
            lines += _bind(root, sys.prefix, "/opt/fedil", True) + _bind(
                root, str(self.image), "/fedil", True
            )
            environment["PYTHONPATH"] = "/fedil"
        for mount in self.mounts:
            if mount.source is not None and not mount.source.exists():
                mount.source.mkdir(parents=True)
                mount.source.chmod(0o1777)  # as the image's folders, of which new volumes are copies
        for mount in sorted(self.mounts, key=lambda mount: mount.target):
            if mount.source is None:
                lines += [
                    f"mkdir -p {root}{mount.target}",
                    f"mount -t tmpfs -o mode=1777 cell {root}{mount.target}",
                ]
            else:
                lines += _bind(root, str(mount.source), mount.target, mount.read_only)
        variables = [f"{name}={value}" for name, value in environment.items()]
        drop = f"setpriv --reuid {self.user} --regid {self.user} --clear-groups --bounding-set=-all --no-new-privs"
        inside = shlex.join(["env", "-i", "-C", self.directories[0], *variables, *self.command])
        lines += [
            f"mount -o remount,bind,ro {root}",
            f"exec chroot {root} {drop if os.geteuid() == 0 else ''} {inside}",
        ]
        return lines


def _rights() -> list[str]:
    if shutil.which("unshare") is None:
        raise ServiceMissing("unshare is not installed: apt install util-linux")
    return [] if os.geteuid() == 0 else ["--map-root-user"]


def _bind(root: Path, source: str, target: str, read_only: bool) -> list[str]:
    place = shlex.quote(f"{root}{target}")
    make = (
        f"mkdir -p {place}"
        if Path(source).is_dir()
        else f"mkdir -p {shlex.quote(str(Path(f'{root}{target}').parent))}; touch {place}"
    )
    lines = [make, f"mount --bind {shlex.quote(source)} {place}"]
    return [*lines, f"mount -o remount,bind,ro {place}"] if read_only else lines


def _pythons() -> list[str]:
    """Where the interpreter lies that the virtual environment points to, unless /usr has it"""
    base = str(Path(sys.base_prefix).resolve())
    return [] if base.startswith("/usr") and not base.startswith("/usr/local") else [base]


def build_image(folder: Path) -> Path:
    """FedIL as the image has it: a wheel from the files of the context, unpacked."""
    context = folder / "context"
    for path in context_files():
        place = context / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, place)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--quiet",
    ]
    done = subprocess.run(
        [*command, "--wheel-dir", str(folder), str(context)], capture_output=True, text=True, check=False
    )
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
