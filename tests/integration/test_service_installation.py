"""What `ops/scripts/test` does about missing services; apt is played by a script that notes how it was called."""

import shutil
import subprocess
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "ops" / "scripts"
TOOLS = ("bash", "env", "dirname", "touch", "chmod", "cat")
APT = """#!/usr/bin/env bash
echo "$RUNLEVEL $*" >>"$NOTES"
[[ "$1" == update ]] && { touch "$NOTES.updated"; exit; }
[[ -e "$NOTES.updated" ]] || { echo "unable to locate" >&2; exit 100; }
for word in "${@:3}"; do touch "$BIN/$word"; chmod +x "$BIN/$word"; done
"""
SUDO = """#!/usr/bin/env bash
shift  # -n
exec "$@"
"""


class Machine:
    """Where only a few programs are on the PATH. (What lies in /usr/sbin is always found.)"""

    def __init__(self, folder: Path) -> None:
        self.bin, self.notes, self.venv = folder / "bin", folder / "notes", folder / "venv"
        self.bin.mkdir()
        self.venv.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found
            (self.bin / tool).symlink_to(found)

    def have(self, name: str, text: str = "#!/bin/sh\n") -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def install_services(self) -> str:
        """What it said. It must not fail: many tests need no service."""
        code = f'set -euo pipefail; source "{SCRIPTS}/_common.sh"; venv="{self.venv}"; install_services'
        surroundings = {"PATH": str(self.bin), "BIN": str(self.bin), "NOTES": str(self.notes)}
        command = [str(self.bin / "bash"), "-c", code]
        done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def calls(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []


def test_nothing_is_installed_where_nothing_is_missing(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for name in ("rabbitmq-server", "redis-server", "prometheus", "chromium"):
        machine.have(name)
    machine.have("apt-get", APT)
    assert machine.install_services() == ""
    assert machine.calls() == []


def test_missing_services_come_from_apt_which_is_updated_only_if_it_must(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.have("rabbitmq-server")
    machine.have("prometheus")
    machine.have("apt-get", APT)
    machine.have("sudo", SUDO)
    assert "installing redis-server chromium with apt" in machine.install_services()
    wanted = "1 install -y redis-server chromium"
    assert machine.calls() == [wanted, "1 update", wanted]
    assert machine.install_services() == ""
    (machine.bin / "redis-server").unlink()
    machine.install_services()
    assert machine.calls()[3:] == ["1 install -y redis-server"]


def test_a_machine_without_apt_is_told_what_to_install(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.have("rabbitmq-server")
    said = machine.install_services()
    assert "tests need redis-server prometheus chromium" in said
    assert "FEDIL_REQUIRE_SERVICES=0 skips them" in said


def test_an_apt_that_fails_is_reported_and_does_not_end_the_tests(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.have("rabbitmq-server")
    machine.have("apt-get", "#!/bin/sh\necho no network\nexit 100\n")
    machine.have("sudo", SUDO)
    said = machine.install_services()
    assert f"{machine.venv}/apt.log says why" in said
    assert "no network" in (machine.venv / "apt.log").read_text()
    assert "sudo apt install redis-server prometheus chromium" in said


def test_the_scripts_let_nothing_be_skipped() -> None:
    assert 'FEDIL_REQUIRE_SERVICES="${FEDIL_REQUIRE_SERVICES:-1}"' in (SCRIPTS / "test").read_text()
    assert "FEDIL_REQUIRE_SERVICES=1" in (SCRIPTS.parents[1] / ".ci" / "run").read_text()
