"""Grafana's dashboards. What Grafana reads lies in provisioning/; `python -m ops.grafana` writes the dashboards there,
with grafana-foundation-sdk, which nothing else needs."""

from pathlib import Path

PROVISIONING = Path(__file__).parent / "provisioning"
"""Mount it as /etc/grafana/provisioning"""
DASHBOARDS = PROVISIONING / "dashboards"
