"""`fedil cluster`: a deployment on one machine, killed, stopped and gone on with, ends as an undisturbed simulation."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ops.local.cluster import shares
from ops.local.services.brokers_root import ROOT
from ops.local.services.process import wait_until
from tests.integration.test_simulation import RECIPE
from tests.processes import alive, family
from tests.services import must_run_everything

SITES = "[federation.sites]\nnorth = 5\nsouth = 3\n"
PATIENCE_SECONDS = 30.0


class Command:
    """`fedil COMMAND` on the tiny recipe, with its lines."""

    def __init__(self, folder: Path, *words: str) -> None:
        recipe = folder / "tiny.toml"
        recipe.write_text(RECIPE + SITES)
        command = [sys.executable, "-m", "ops.cli", words[0], str(recipe), "--workers", "2", *words[1:]]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self.lines: list[str] = []

    def read_until(self, pattern: str) -> str:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f"it ended without {pattern!r}:\n{''.join(self.lines)}")

    def finish(self) -> tuple[int, str]:
        assert self.process.stdout
        self.lines += self.process.stdout
        self.process.stdout.close()
        return self.process.wait(), "".join(self.lines)


def read_first_round(cluster: Command) -> None:
    cluster.read_until(r"round +1/5|is not installed")
    if "is not installed" in cluster.lines[-1]:
        cluster.finish()
        (pytest.fail if must_run_everything() else pytest.skip)(cluster.lines[-1])


def test_a_cluster_that_was_killed_and_stopped_ends_as_an_undisturbed_simulation(tmp_path: Path) -> None:
    run_dir = str(tmp_path / "run")
    killed = Command(tmp_path, "cluster", "--run-dir", run_dir)
    read_first_round(killed)
    everybody = family(killed.process.pid)
    assert (
        len(everybody) > 8
    )  # two brokers with their helpers, Prometheus or not, a server, two workers, guards
    killed.process.kill()
    assert wait_until(lambda: not alive(everybody), PATIENCE_SECONDS)
    killed.finish()

    stopped = Command(tmp_path, "cluster", "--run-dir", run_dir)
    stopped.read_until(r"round +[23]/5")
    everybody = family(stopped.process.pid)
    stopped.process.terminate()
    code, said = stopped.finish()
    assert code == 128 + signal.SIGTERM, said
    assert "Go on with" in said
    assert "cluster" in said.splitlines()[-1]
    assert wait_until(lambda: not alive(everybody), PATIENCE_SECONDS)

    code, said = Command(tmp_path, "cluster", "--run-dir", run_dir).finish()
    assert code == 0, said
    code, told = Command(tmp_path, "simulate", "--run-dir", str(tmp_path / "other"), "--json").finish()
    assert code == 0, told
    summary = json.loads(told.splitlines()[-1])
    assert summary["model_digest"] in said
    assert summary["ledger_digest"] in said


def pids_of(program: str, ancestor: int) -> list[int]:
    """Those that run it, of all that a process has started."""
    return [pid for pid in family(ancestor) if Path(f"/proc/{pid}/comm").read_text().startswith(program)]


def test_brokers_that_die_are_started_again_and_the_run_goes_on(tmp_path: Path) -> None:
    cluster = Command(tmp_path, "cluster", "--run-dir", str(tmp_path / "run"))
    read_first_round(cluster)
    for program, name in (("redis-server", "Redis"), ("beam.smp", "RabbitMQ")):
        (pid,) = pids_of(program, cluster.process.pid)
        os.kill(pid, signal.SIGKILL)
        cluster.read_until(f"cluster: {name} is back")
    code, said = cluster.finish()
    assert code == 0, said
    assert "finished 5 of 5 rounds" in said


def test_a_missing_service_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    code = (
        "import shutil, sys; shutil.which = lambda *_, **__: None; from ops.cli.main import main;"
        " sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "cluster", "digits", "--run-dir", str(tmp_path / "run")]
    installed = {name: value for name, value in os.environ.items() if name != ROOT}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=installed)
    assert done.returncode == 1
    assert done.stderr == "fedil: RabbitMQ is not installed: apt install rabbitmq-server\n"


def test_two_clusters_cannot_share_a_folder(tmp_path: Path) -> None:
    from server_worker.run.lock import sole_use

    with sole_use(tmp_path / "run" / "services"):
        code, said = Command(tmp_path, "cluster", "--run-dir", str(tmp_path / "run")).finish()
    assert code == 1
    assert "in use by another fedil" in said


@pytest.mark.parametrize(
    ("workers", "sites", "expected"),
    [
        (3, ["all"], {"all": 3}),
        (5, ["a", "b"], {"a": 3, "b": 2}),
        (1, ["a", "b", "c"], {"a": 1, "b": 1, "c": 1}),
    ],
)
def test_workers_are_dealt_out_and_every_site_has_one(
    workers: int, sites: list[str], expected: dict[str, int]
) -> None:
    assert shares(workers, sites) == expected
