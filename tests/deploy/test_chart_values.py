"""Values of the chart: what is wrong or missing is refused by name, and what there is is used."""

import re
import tomllib
from typing import Any

import helm_python
import pytest
import yaml

from tests.deploy.rendered import CHART, Values, example, merged, render
from tests.deployment import ROOT

REFUSED: list[tuple[Values, str]] = [
    ({"image": {"repository": ""}}, "image/repository"),
    ({"recipe": ""}, "recipe"),
    ({"sites": {"default": None}}, "sites"),
    ({"sites": {"North": {"credentialsSecret": "s"}}}, "North"),
    ({"sites": {"a.b": {"credentialsSecret": "s"}}}, "a.b"),
    ({"sites": {"x" * 21: {"credentialsSecret": "s"}}}, "x" * 21),
    ({"sites": {"north": {}}}, "credentialsSecret"),
    ({"sites": {"north": {"credentialsSecret": "s", "replica": 2}}}, "replica"),
    ({"sites": {"north": {"credentialsSecret": "s", "replicas": 0}}}, "replicas"),
    ({"sites": {"north": {"credentialsSecret": "s", "processes": 65}}}, "processes"),
    ({"server": {"credentialsSecret": ""}}, "credentialsSecret"),
    ({"server": {"standby": True}}, "accessMode"),
    ({"server": {"standby": "yes"}}, "standby"),
    ({"server": {"volume": {"size": "10"}}}, "size"),
    ({"worker": {"graceSeconds": -1}}, "graceSeconds"),
    ({"worker": {"grace": 5}}, "grace"),
    ({"keda": {"enabled": True}}, "credentialsSecret"),
    ({"keda": {"cooldownSeconds": 0}}, "cooldownSeconds"),
    ({"brokers": {"bundled": True}}, "filesSecret"),
    ({"brokers": {"password": "word"}}, "password"),
    ({"networkPolicy": {"enabled": True}}, "networkPolicy/brokers"),
    ({"networkPolicy": {"enabled": True, "brokers": [{"cidr": "mq", "ports": [5671]}]}}, "cidr"),
    ({"tls": {"ca": "x"}}, "ca"),
    ({"monitors": {"enabled": 1}}, "monitors/enabled"),
    ({"brokr": {}}, "brokr"),
]


@pytest.mark.parametrize(("change", "named"), REFUSED, ids=lambda value: str(value)[:60])
def test_values_that_are_wrong_or_missing_are_refused_by_name(change: Values, named: str) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        render(merged(example("minimal"), change))
    assert named in str(refused.value)


def test_nothing_is_installed_with_the_defaults_alone_or_without_a_site() -> None:
    with pytest.raises(helm_python.HelmValuesError, match="image"):
        render({})
    with pytest.raises(helm_python.HelmValuesError, match="sites"):
        render({**example("minimal"), "sites": {}})


def test_a_release_name_that_leaves_no_room_is_refused() -> None:
    render(example("minimal"), name="x" * 25)
    with pytest.raises(helm_python.HelmRenderError, match="longer than 25"):
        render(example("minimal"), name="x" * 26)


def paths(values: Any, prefix: str = "") -> set[str]:
    if not isinstance(values, dict) or not values:
        return {prefix}
    return {path for key, value in values.items() for path in paths(value, f"{prefix}.{key}")}


def test_every_value_is_in_the_schema_and_used_by_a_template() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    templates = "".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))
    for path in sorted(paths(defaults)):
        assert re.search(rf"{re.escape(path.rpartition('.')[2])}\b", templates), f"{path} is not used"
    with helm_python.Chart.load(CHART) as chart:
        schema = chart.schema
    assert schema is not None

    def described(node: dict[str, Any], path: str = "") -> set[str]:
        node = schema["definitions"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
        properties = node.get("properties", {})
        return {path} | {
            one for key, value in properties.items() for one in described(value, f"{path}.{key}")
        }

    assert paths(defaults) <= described(schema)


def test_the_charts_version_is_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == project["version"]
