"""The units, as systemd reads them. Their commands are parsed, not run: no test starts a service manager."""

import configparser
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from client_worker.stopping import LAST_SECONDS
from ops.local.services.process import find_program
from tests.deploy.programs import parse
from tests.deployment import ROOT
from tests.services import needed

UNITS = ROOT / "ops" / "deploy" / "systemd"
SERVER, WORKER = UNITS / "fedil-server.service", UNITS / "fedil-worker@.service"


def service(unit: Path) -> dict[str, str]:
    config = configparser.ConfigParser(strict=False, interpolation=None)
    config.optionxform = str  # type: ignore[assignment, method-assign]
    config.read(unit)
    return dict(config["Service"])


def command(unit: Path) -> list[str]:
    words = shlex.split(service(unit)["ExecStart"].replace("%i", "north").replace("${PROCESSES}", "4"))
    assert words[:2] == ["/opt/fedil/bin/python", "-m"]
    return words[2:]


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)s", text)
    assert found
    return float(found[1])


@pytest.mark.parametrize("unit", [SERVER, WORKER], ids=lambda unit: unit.name)
def test_systemd_understands_every_line(unit: Path, tmp_path: Path) -> None:
    analyze = needed(
        lambda: find_program(
            "systemd-analyze", missing="systemd-analyze is not installed: apt install systemd"
        )
    )

    def verify(text: str) -> str:
        # The program must be there, which is another one here.
        (tmp_path / unit.name).write_text(text.replace("/opt/fedil/bin/python", sys.executable))
        done = subprocess.run(
            [analyze, "verify", tmp_path / unit.name], capture_output=True, text=True, check=False
        )
        return done.stderr if done.returncode == 0 else f"{done.returncode}: {done.stderr}"

    assert verify(unit.read_text()) == ""
    assert "KillSignl" in verify(unit.read_text().replace("KillSignal=", "KillSignl="))


def test_the_commands_are_ones_that_the_programs_take() -> None:
    server = parse(command(SERVER))
    assert str(server.web) == "127.0.0.1:8265"
    worker = parse(command(WORKER))
    assert (worker.site, worker.processes, str(worker.shards)) == ("north", 4, "/var/lib/fedil/shards/north")
    assert str(server.run_dir).startswith(f"/var/lib/{service(SERVER)['StateDirectory']}/")


def test_a_worker_has_time_for_its_grace_and_for_what_follows() -> None:
    stop = seconds(service(WORKER)["TimeoutStopSec"])
    assert stop >= parse(command(WORKER)).grace + LAST_SECONDS + 1 + 10
    for unit in (SERVER, WORKER):
        # To the first process alone: the children of a pool would take a second signal as an order to end at once.
        assert (service(unit)["KillSignal"], service(unit)["KillMode"]) == ("SIGTERM", "mixed")


def test_addresses_come_from_the_files_that_broker_init_writes() -> None:
    assert service(SERVER)["EnvironmentFile"] == "/etc/fedil/server.env"
    assert service(WORKER)["EnvironmentFile"] == "/etc/fedil/site-%i.env"
    assert "@" not in service(SERVER)["ExecStart"] + service(WORKER)["ExecStart"]


def test_both_are_hardened() -> None:
    for unit in (SERVER, WORKER):
        said = service(unit)
        assert said["User"] == "fedil"
        assert said["CapabilityBoundingSet"] == ""
        for name in ("NoNewPrivileges", "PrivateTmp", "ProtectHome"):
            assert said[name] == "yes"
        assert said["ProtectSystem"] == "strict"
