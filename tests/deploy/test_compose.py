"""compose.yaml: valid, closed to other machines, with arguments that the programs take. Its commands are run in
test_deployed.py; no engine has started it yet."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from client_worker.stopping import LAST_SECONDS
from ops.cli.recipe_files import read_recipe
from ops.monitoring.files import Places, monitoring_files
from tests.deploy.composed import COMPOSE, Service, load, mounts_of, words_of
from tests.deploy.programs import parse

OURS = ("accounts", "accounts-tls", "init", "server", "worker", "worker-gpu", "monitoring")


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    return load({"FEDIL_USER": "1000:1000"})


@pytest.fixture(scope="module")
def services(composed: dict[str, Any]) -> dict[str, Service]:
    found: dict[str, Service] = composed["services"]
    return found


def check(path: Path) -> "subprocess.CompletedProcess[str]":
    program = Path(sys.executable).with_name("check-jsonschema")
    return subprocess.run(
        [program, "--builtin-schema", "vendor.compose-spec", path],
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_follows_the_compose_specification(tmp_path: Path) -> None:
    done = check(COMPOSE)
    assert done.returncode == 0, done.stdout
    worse = tmp_path / "compose.yaml"
    worse.write_text(COMPOSE.read_text().replace("restart: on-failure", "restarts: on-failure"))
    assert "restarts" in check(worse).stdout


def test_compose_reads_it_as_these_tests_do_where_there_is_one() -> None:
    """Debian has version 2 from trixie on; elsewhere the specification's schema must do."""
    program = next(
        (words for words in (["docker", "compose"], ["docker-compose"]) if is_compose(words)), None
    )
    if program is None:
        return
    variables = {"FEDIL_USER": "1:1", "FEDIL_SITE": "north", "PATH": os.environ["PATH"]}
    command = [*program, "--file", str(COMPOSE), "--profile", "*", "config", "--format", "json"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    theirs, ours = json.loads(done.stdout)["services"], load(variables)["services"]
    assert set(theirs) == set(ours)
    for name in OURS:
        assert (theirs[name]["command"] or []) == ours[name].get("command", [])
        assert theirs[name].get("environment", {}) == ours[name].get("environment", {})
        targets = [mount["target"] for mount in theirs[name]["volumes"]]
        assert targets == [mount.target for mount in mounts_of(ours[name], COMPOSE.parent)]


def is_compose(words: list[str]) -> bool:
    try:
        told = subprocess.run(
            [*words, "version", "--short"], capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return False
    return told.strip().removeprefix("v").partition(".")[0] not in ("", "0", "1")


def test_a_user_must_be_named() -> None:
    with pytest.raises(KeyError, match="FEDIL_USER"):
        load({})


def test_only_this_machine_reaches_its_ports(services: dict[str, Service]) -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert set(published) == {"rabbitmq", "server", "prometheus", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert not any("network_mode" in service for service in services.values())


def test_no_password_is_written_down_or_in_an_environment(composed: dict[str, Any]) -> None:
    for service in composed["services"].values():
        for name, value in service.get("environment", {}).items():
            assert "PASS" not in name or name.endswith("__FILE")
            assert "@" not in value
    secrets = composed["secrets"]
    assert {name: one["file"] for name, one in secrets.items()} == {
        "admin": "./accounts/admin.env",
        "server": "./accounts/server.env",
        "site": "./accounts/site-default.env",
        "grafana": "./accounts/grafana.password",
    }
    used = {name for service in composed["services"].values() for name in service.get("secrets", [])}
    assert used == set(secrets)


def test_everything_but_rabbitmq_is_read_only_and_without_capabilities(services: dict[str, Service]) -> None:
    for name in set(services) - {"rabbitmq"}:  # its entry point changes owner and user
        assert services[name]["read_only"] is True, name
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["security_opt"] == ["no-new-privileges:true"]


def test_a_signal_ends_a_process_that_is_still_loading(services: dict[str, Service]) -> None:
    """Number 1 of a container ignores signals without a handler; with init it is the engine's own."""
    assert all(services[name]["init"] is True for name in OURS)


@pytest.mark.parametrize("name", OURS)
def test_our_commands_are_ones_that_the_programs_take(services: dict[str, Service], name: str) -> None:
    words = words_of(services[name])
    assert words[:2] == ["python", "-m"]
    options = parse(words[2:])
    if name in ("server", "worker", "worker-gpu"):
        assert str(options.web) == "0.0.0.0:8265"  # where the image's health check asks
    else:
        assert services[name]["healthcheck"] == {"disable": True}
        assert services[name]["restart"] == "no"


def test_a_worker_has_time_for_its_grace_and_for_what_follows(services: dict[str, Service]) -> None:
    for name in ("worker", "worker-gpu"):
        stop = float(services[name]["stop_grace_period"].removesuffix("s"))
        assert stop >= parse(words_of(services[name])[2:]).grace + LAST_SECONDS + 1 + 10


def test_gpus_are_dealt_out_within_one_container(services: dict[str, Service]) -> None:
    gpu = load({"FEDIL_USER": "1:1", "FEDIL_PROCESSES": "4"})["services"]["worker-gpu"]
    (devices,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert devices == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    options = parse(words_of(gpu)[2:])
    assert (options.processes, options.device) == (4, "auto")
    assert services["worker-gpu"]["profiles"] == ["gpu"]
    assert "deploy" not in services["worker"]


def test_another_site_and_recipe_can_be_chosen() -> None:
    chosen = load({"FEDIL_USER": "1:1", "FEDIL_SITE": "north", "FEDIL_RECIPE": "/r/two.toml"})
    assert parse(words_of(chosen["services"]["worker"])[2:]).site == "north"
    assert chosen["secrets"]["site"]["file"] == "./accounts/site-north.env"
    sources = [
        mount["source"] for mount in chosen["services"]["server"]["volumes"] if isinstance(mount, dict)
    ]
    assert "/r/two.toml" in sources


def test_the_recipe_that_it_has_by_default_has_the_site_that_it_has_by_default(
    services: dict[str, Service],
) -> None:
    recipe = next(mount for mount in services["worker"]["volumes"] if isinstance(mount, dict))
    assert set(read_recipe(str((COMPOSE.parent / recipe["source"]).resolve()), []).sites) == {"default"}


def test_all_volumes_and_dependencies_exist(composed: dict[str, Any]) -> None:
    services, named = composed["services"], set()
    for service in services.values():
        for name, how in service.get("depends_on", {}).items():
            assert how["condition"] in ("service_healthy", "service_completed_successfully")
            assert ("healthcheck" in services[name]) or how["condition"] != "service_healthy"
        for mount in service.get("volumes", []):
            source = mount["source"] if isinstance(mount, dict) else mount.partition(":")[0]
            named |= {source} if not source.startswith((".", "/")) else set()
        assert set(service.get("depends_on", {})) <= set(services)
    assert named == set(composed["volumes"])


def test_prometheus_and_grafana_read_what_fedil_monitoring_writes(services: dict[str, Service]) -> None:
    options = parse(words_of(services["monitoring"])[2:])
    assert (options.servers, options.rabbitmq) == (["server:8265"], ["rabbitmq:15692"])
    assert options.prometheus == "http://prometheus:9090"
    assert options.workers == ["default=workers:8265"]
    for name in ("worker", "worker-gpu"):
        assert services[name]["networks"]["default"]["aliases"] == ["workers"]
    written = dict(mount.split(":") for mount in services["monitoring"]["volumes"])
    assert {target.partition("/monitoring/")[2] for target in written.values()} == {
        path.partition("/")[0] for path in monitoring_files(Places())
    }
    for name, place in {"prometheus": "/etc/prometheus", "grafana": "/etc/grafana/provisioning"}.items():
        (read,) = [mount for mount in services[name]["volumes"] if isinstance(mount, dict)]
        assert (read["target"], read["read_only"]) == (place, True)
        assert written[read["source"]] == f"/monitoring/{name}"
        # An image's own files would else be copied into it, if this container is made first.
        assert read["volume"] == {"nocopy": True}
