"""Installation of services by `ops/scripts/test`; scripts in place of apt and debootstrap record their calls."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "ops" / "scripts"
TOOLS = ("bash", "env", "dirname", "touch", "chmod", "cat", "mkdir", "rm", "mv", "tee", "head", "true")
APT = """#!/usr/bin/env bash
echo "$RUNLEVEL $*" >>"$NOTES"
[[ "$1" == update ]] && { touch "$NOTES.updated"; exit; }
[[ -e "$NOTES.updated" ]] || { echo "unable to locate" >&2; exit 100; }
for word in "${@:3}"; do touch "$BIN/$word"; chmod +x "$BIN/$word"; done
"""
DEBOOTSTRAP = """#!/usr/bin/env bash
echo "debootstrap $*" >>"$NOTES"
[[ "$3" == trixie ]] || { echo "no such release" >&2; exit 1; }
mkdir -p "$4/etc"
"""
SUDO = """#!/usr/bin/env bash
shift  # -n
exec "$@"
"""


class Machine:
    """A machine with only a few programs on the PATH; those in /usr/sbin are always found."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.notes, self.venv = folder / "bin", folder / "notes", folder / "venv"
        self.bin.mkdir()
        self.venv.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found
            (self.bin / tool).symlink_to(found)

    def add_program(self, name: str, text: str = "#!/bin/sh\n") -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def install_services(self) -> str:
        """The script's messages. It must not fail: many tests need no service."""
        done = self.run(f'venv="{self.venv}"; install_services')
        assert done.returncode == 0, done.stderr
        return done.stderr

    def run(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        code = f'set -euo pipefail; source "{SCRIPTS}/_common.sh"; {code}'
        environment |= {"PATH": str(self.bin), "BIN": str(self.bin), "NOTES": str(self.notes)}
        command = [str(self.bin / "bash"), "-c", code]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def calls(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []


def test_nothing_is_installed_if_nothing_is_missing(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for name in ("rabbitmq-server", "redis-server", "prometheus", "chromium"):
        machine.add_program(name)
    machine.add_program("apt-get", APT)
    assert machine.install_services() == ""
    assert machine.calls() == []


def test_missing_services_are_installed_by_apt_whose_lists_are_updated_if_needed(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.add_program("rabbitmq-server")
    machine.add_program("prometheus")
    machine.add_program("apt-get", APT)
    machine.add_program("sudo", SUDO)
    assert "installing redis-server chromium with apt" in machine.install_services()
    wanted = "1 install -y redis-server chromium"
    assert machine.calls() == [wanted, "1 update", wanted]
    assert machine.install_services() == ""
    (machine.bin / "redis-server").unlink()
    machine.install_services()
    assert machine.calls()[3:] == ["1 install -y redis-server"]


def test_without_apt_the_missing_services_are_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.add_program("rabbitmq-server")
    said = machine.install_services()
    assert "tests need redis-server prometheus chromium" in said
    assert "FEDIL_REQUIRE_SERVICES=0 skips them" in said


def test_a_failed_apt_is_reported_and_does_not_end_the_tests(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.add_program("rabbitmq-server")
    machine.add_program("apt-get", "#!/bin/sh\necho no network\nexit 100\n")
    machine.add_program("sudo", SUDO)
    said = machine.install_services()
    assert f"{machine.venv}/apt.log says why" in said
    assert "no network" in (machine.venv / "apt.log").read_text()
    assert "sudo apt install redis-server prometheus chromium" in said


def test_the_scripts_skip_no_test() -> None:
    assert 'FEDIL_REQUIRE_SERVICES="${FEDIL_REQUIRE_SERVICES:-1}"' in (SCRIPTS / "test").read_text()
    assert "FEDIL_REQUIRE_SERVICES=1" in (SCRIPTS.parents[1] / ".ci" / "run").read_text()


# ops/scripts/test --brokers


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.add_program("sudo", SUDO)
    machine.add_program("debootstrap", DEBOOTSTRAP)
    return machine


def test_a_root_folder_of_brokers_is_built_once(machine: Machine, tmp_path: Path) -> None:
    machine.add_program(
        "apt-get", '#!/bin/sh\n[ "$1" = indextargets ] && echo http://mirror.example/debian\n'
    )
    for _ in range(2):
        done = machine.run("brokers_root trixie", XDG_CACHE_HOME=str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{tmp_path}/fedil/brokers-trixie"
    (call,) = machine.calls()
    assert call.startswith(
        "debootstrap --variant=minbase --include=rabbitmq-server,redis-server,valkey-server trixie "
    )
    assert call.endswith(".part http://mirror.example/debian")
    assert (tmp_path / "fedil/brokers-trixie/etc/hosts").read_text() == "127.0.0.1 localhost\n"


def test_a_root_folder_that_cannot_be_built_is_no_root_folder(machine: Machine, tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path), "DEBIAN_MIRROR": "http://mirror.example"}
    done = machine.run("brokers_root unheard", **environment)
    assert done.returncode == 1
    assert "does http://mirror.example have unheard?" in done.stderr
    assert (tmp_path / "fedil/brokers-unheard.log").read_text() == "no such release\n"
    assert not (tmp_path / "fedil/brokers-unheard").exists()


def test_a_machine_without_a_debian_mirror_is_asked_for_one(machine: Machine, tmp_path: Path) -> None:
    done = machine.run("brokers_root trixie", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "set DEBIAN_MIRROR=URL" in done.stderr
