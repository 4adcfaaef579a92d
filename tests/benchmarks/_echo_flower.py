"""The same echo on Flower: a SuperLink and one SuperNode per client on loopback, as they come; without TLS, telemetry
and the installing of an app's dependencies.

A SuperNode is one client, so ten clients are ten of them. By default it starts a process for every message and asks for
messages every three seconds, as the server does for replies: most of a round with few clients is that waiting. Flower
lives in an environment of its own, in the user's cache: it wants other versions of our dependencies.
"""

import json
import os
import subprocess
import sys
import tomllib
import venv
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ops.local.services.process import LOOPBACK, free_ports, is_free, wait_until
from tests.benchmarks._processes import ROOT, memory_bytes, started

_APP = """
[project]
name = "echo"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "fedil"
[tool.flwr.app.components]
serverapp = "echo.app:server"
clientapp = "echo.app:client"
[tool.flwr.app.config]
rounds = 1
clients = 2
parameters = 1
report = ""
"""
_UP_SECONDS = 120.0
_RUN_SECONDS = 900.0


def requirement() -> str:
    """The one of the extra `bench`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (found,) = project["optional-dependencies"]["bench"]
    return str(found)


def flower_programs() -> Path:
    """Where Flower's commands are; made at the first call."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "fedil" / requirement()
    programs, done = folder / "bin", folder / "installed"
    if not done.exists():
        print(f"installing {requirement()} into {folder}", file=sys.stderr, flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run(
            [programs / "pip", "install", "--quiet", requirement()],
            env={**os.environ, "PYTHONPATH": ""},
            check=True,
        )
        done.touch()
    return programs


def play_on_flower(folder: Path, *, rounds: int, clients: int, parameters: int) -> dict[str, Any]:
    """What its ServerApp reports of a run, and the SuperLink's memory."""
    programs, report = flower_programs(), folder / "report.json"
    ports = free_ports(["superlink", *(f"node {number}" for number in range(clients))])
    port = ports.pop("superlink")
    superlink = f"{LOOPBACK}:{port}"
    _write_app(folder / "app")
    (folder / "config.toml").write_text(f'[superlink.echo]\naddress = "{superlink}"\ninsecure = true\n')
    environment = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": "",
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    with ExitStack() as stack:
        command = [
            str(programs / "flower-superlink"),
            "--insecure",
            "--disable-runtime-dependency-installation",
        ]
        log = folder / "superlink.log"
        server = stack.enter_context(started([*command, "--port", str(port)], environment, log))
        if not wait_until(lambda: not is_free(port), _UP_SECONDS, while_=lambda: server.poll() is None):
            raise RuntimeError(f"Flower's SuperLink did not come up:\n{log.read_text()[-3000:]}")
        node = [str(programs / "flower-supernode"), "--insecure", "--superlink", superlink]
        for name, port_of_node in ports.items():
            own_log = folder / f"{name}.log"
            stack.enter_context(started([*node, "--port", str(port_of_node)], environment, own_log))
        config = f'rounds={rounds} clients={clients} parameters={parameters} report="{report}"'
        run = [str(programs / "flwr"), "run", str(folder / "app"), "echo", "--run-config", config]
        asked = subprocess.run(
            run, env={**os.environ, **environment}, check=False, capture_output=True, text=True
        )
        if asked.returncode:
            raise RuntimeError(f"flwr run failed:\n{asked.stdout[-2000:]}{asked.stderr[-2000:]}")
        if not wait_until(report.exists, _RUN_SECONDS, while_=lambda: server.poll() is None):
            raise RuntimeError(f"Flower's run did not end:\n{log.read_text()[-3000:]}")
        fields: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        fields["superlink_peak_bytes"] = memory_bytes("VmHWM", server.pid)
    if fields["num_replies"] != rounds * [clients] or not fields["right"]:
        raise RuntimeError(f"Flower's run went wrong: {fields}\n{log.read_text()[-3000:]}")
    return fields


def _write_app(folder: Path) -> None:
    package = folder / "echo"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(_APP, encoding="utf-8")
    (package / "__init__.py").touch()
    app = Path(__file__).with_name("_echo_flower_app.py")
    (package / "app.py").write_text(app.read_text(encoding="utf-8"), encoding="utf-8")
