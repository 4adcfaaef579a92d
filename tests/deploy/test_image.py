"""The Dockerfile as far as it can be checked without an engine. Commands are run in an imitation of its image by
test_deployed.py; no engine has built it yet."""

import re
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.deploy.cell import context_files
from tests.deploy.dockerfile import (
    DOCKERFILE,
    entrypoint,
    environment,
    health_command,
    instructions,
    last_stage,
)
from tests.deployment import ROOT


def hadolint(path: Path) -> "subprocess.CompletedProcess[str]":
    program = Path(sys.executable).with_name("hadolint")
    return subprocess.run(
        [program, "--failure-threshold", "style", path], capture_output=True, text=True, check=False
    )


def test_hadolint_has_nothing_to_say_and_says_it_of_a_worse_file(tmp_path: Path) -> None:
    done = hadolint(DOCKERFILE)
    assert done.returncode == 0, done.stdout
    worse = tmp_path / "Dockerfile"
    worse.write_text(DOCKERFILE.read_text().replace("WORKDIR /src", "RUN cd /src"))
    assert "DL3003" in hadolint(worse).stdout


def test_signals_reach_a_process_without_privileges() -> None:
    stage = last_stage()
    assert entrypoint() == ["python", "-m"]  # a list: no shell in between
    assert stage["STOPSIGNAL"] == ["SIGTERM"]
    user, group = stage["USER"][-1].split(":")
    assert int(user) > 0
    assert int(group) > 0


def test_its_labels_are_those_of_the_open_container_initiative() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]+)"', " ".join(last_stage()["LABEL"])))
    assert set(labels) == {"title", "description", "licenses", "version", "revision"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert labels["licenses"] == project["license"]
    assert f"VERSION={project['version']}" in last_stage()["ARG"]


def test_torch_is_the_one_that_the_project_wants_from_an_index_that_can_be_chosen() -> None:
    arguments = [one.rest for one in instructions() if one.name == "ARG"]
    assert [one for one in arguments if one.startswith("TORCH_INDEX=https://")]
    (install,) = [one.rest for one in instructions() if "--index-url" in one.rest]
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert re.findall(r'"?(torch(?:vision)?[^\s"]*)"?', install.partition("$TORCH_INDEX")[2]) == [
        one for one in wanted if one.startswith("torch")
    ]


def test_the_context_is_what_the_wheel_is_built_from_and_small() -> None:
    files = context_files()
    assert {path.partition("/")[0] for path in files} == {
        *("broker_config", "client_worker", "fedil_model", "ops", "server_worker"),
        *("LICENSE", "README.md", "pyproject.toml"),
    }
    assert not [path for path in files if path.startswith(("ops/deploy/", "ops/results/", "ops/pictures/"))]
    assert "ops/recipes/digits.toml" in files
    assert sum((ROOT / path).stat().st_size for path in files) < 4e6


def test_places_that_are_written_to_are_writable_for_any_user() -> None:
    (made,) = last_stage()["RUN"]
    assert (
        "install --directory --mode 1777 /var/lib/fedil /shards /monitoring/prometheus /monitoring/grafana"
        in made
    )
    assert environment()["HOME"] == "/tmp"


def test_the_health_check_asks_the_port_that_is_exposed() -> None:
    (port,) = last_stage()["EXPOSE"]
    assert health_command()[0] == "python"
    assert f"'127.0.0.1', {port}" in health_command()[2]


@pytest.mark.parametrize("status", [200, 503])
def test_the_health_check_tells_good_from_bad(status: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        code = health_command()[2].replace("8265", str(server.server_port))
        done = subprocess.run([sys.executable, "-c", code], check=False)
    assert (done.returncode == 0) == (status == 200)
