"""The chart as Helm renders it, through Helm's own library."""

from collections.abc import Iterator, Mapping
from typing import Any

import helm_python
import yaml

from ops.broker.accounts import Addresses
from tests.deployment import ROOT

CHART = ROOT / "ops" / "deploy" / "chart"
EXAMPLES = ("minimal", "evaluation", "production")
RELEASE, NAMESPACE = "demo", "learning"
Values = dict[str, Any]
Manifest = dict[str, Any]
VHOST = Addresses("", "").vhost


def example(name: str) -> Values:
    values: Values = yaml.safe_load((CHART / "examples" / f"{name}.yaml").read_text())
    return values


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> Values:
    """As Helm merges a second --values"""
    both = dict(values)
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(both.get(key), Mapping)
        both[key] = merged(both[key], value) if nested else value
    return both


def render(values: Values, name: str = RELEASE) -> list[Manifest]:
    """Raises HelmValuesError for what the schema refuses."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        texts = chart.render(values, name=name, namespace=NAMESPACE)
    return [
        manifest
        for path, text in sorted(texts.items())
        if not path.endswith("NOTES.txt")
        for manifest in yaml.safe_load_all(text)
        if manifest
    ]


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    """By name"""
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] == kind}


def pods(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    """Each workload and the specification of its pods"""
    for one in manifests:
        if one["kind"] in ("Deployment", "StatefulSet"):
            yield one, one["spec"]["template"]["spec"]
