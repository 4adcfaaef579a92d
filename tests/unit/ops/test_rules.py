"""Prometheus' configuration and rules, by its own promtool; and that no alert can be broken unnoticed."""

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.local.services import Prometheus
from ops.local.services.process import find_program
from ops.monitoring.files import Places, prometheus_files, write_monitoring
from ops.monitoring.grafana.board import runbook
from ops.monitoring.prometheus import PROMETHEUS, RULES
from tests.services import needed

NOWHERE = "127.0.0.1:1"
SCENARIOS = Path(__file__).parent / "rules"
ALERT = re.compile(
    r"^      - alert: (?P<name>\w+)$.*?^        expr:(?P<expr>.*?)(?=^        (?:for|labels):)"
    r".*?(?=^      - alert: |^  - name: |\Z)",
    re.DOTALL | re.MULTILINE,
)
METRIC = re.compile(r"(?:fedil|rabbitmq)_\w+(?:\{[^}]*\})?|up\{[^}]*\}")
ALERTS = {found["name"]: found for found in ALERT.finditer((RULES / "alerts.yml").read_text("utf-8"))}


@pytest.fixture(scope="module")
def promtool() -> str:
    return needed(
        lambda: find_program("promtool", missing="promtool is not installed: apt install prometheus")
    )


def run(promtool: str, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([promtool, *map(str, arguments)], capture_output=True, text=True, check=False)


def scenarios_with(alerts: str, folder: Path) -> list[Path]:
    """The scenarios, for other alert rules than ours."""
    (folder / "alerts.yml").write_text(alerts, "utf-8")
    made = []
    for scenario in sorted(SCENARIOS.glob("*.yml")):
        text = scenario.read_text("utf-8").replace(
            "../../../../ops/monitoring/prometheus/rules/alerts.yml", "alerts.yml"
        )
        text = text.replace(
            "../../../../ops/monitoring/prometheus/rules/recording.yml", str(RULES / "recording.yml")
        )
        made.append(folder / scenario.name)
        made[-1].write_text(text, "utf-8")
    return made


@pytest.mark.parametrize("scenario", sorted(SCENARIOS.glob("*.yml")), ids=lambda path: path.stem)
def test_rules_do_what_the_scenarios_say(promtool: str, scenario: Path) -> None:
    done = run(promtool, "test", "rules", scenario)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_in_a_scenario(promtool: str, tmp_path: Path) -> None:
    """When it has another name, an expectation is not met."""
    alerts = (RULES / "alerts.yml").read_text("utf-8").replace("- alert: Fedil", "- alert: NotFedil")
    done = run(promtool, "test", "rules", *scenarios_with(alerts, tmp_path))
    missed = "\n".join(line for line in done.stderr.splitlines() if "exp:" in line)
    assert {name for name in ALERTS if f'"{name}"' not in missed} == set()


def test_each_alert_has_a_scenario_in_which_it_must_not_fire(promtool: str, tmp_path: Path) -> None:
    """When it fires whenever its metric is there, an expectation is not met."""
    alerts = (RULES / "alerts.yml").read_text("utf-8")
    for found in ALERTS.values():
        metric = METRIC.search(found["expr"])
        assert metric
        always = found[0].replace(found["expr"], f" {metric[0]} * 0 == 0\n", 1).replace("  for: ", "  # ")
        alerts = alerts.replace(found[0], always)
    done = run(promtool, "test", "rules", *scenarios_with(alerts, tmp_path))
    fired = "\n".join(re.findall(r"exp: nil\s+got: (.+)", done.stderr))
    assert {name for name in ALERTS if f'"{name}"' not in fired} == set()


def test_the_shipped_configuration_is_valid(promtool: str) -> None:
    done = run(promtool, "check", "config", PROMETHEUS / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rule files found" in done.stdout


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """As Prometheus reads them."""
    folder = tmp_path_factory.mktemp("prometheus")
    files = prometheus_files(Places(servers=(NOWHERE,), rabbitmq=(NOWHERE,)))
    list(write_monitoring(folder, files))
    with needed(lambda: Prometheus(folder, files["prometheus.yml"])) as prometheus:
        with urllib.request.urlopen(f"{prometheus.url}/api/v1/rules") as reply:
            groups = json.load(reply)["data"]["groups"]
        yield [rule for group in groups for rule in group["rules"]]


def test_every_alert_says_what_is_wrong_what_it_means_and_what_to_do(rules: list[dict[str, Any]]) -> None:
    alerts = [rule for rule in rules if rule["type"] == "alerting"]
    assert len(alerts) == len(ALERTS) > 10
    for alert in alerts:
        assert set(alert["annotations"]) == {"summary", "description", "runbook"}, alert["name"]
        assert all(len(text) > 20 for text in alert["annotations"].values()), alert["name"]
        assert alert["labels"]["severity"] in ("critical", "warning", "info"), alert["name"]


def test_the_runbook_of_the_dashboards_is_what_prometheus_reads(rules: list[dict[str, Any]]) -> None:
    read = {rule["name"]: rule["annotations"]["runbook"] for rule in rules if rule["type"] == "alerting"}
    assert runbook() == read
