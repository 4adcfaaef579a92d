"""Grafana's dashboards. Grafana reads provisioning/; `python -m ops.monitoring.grafana` writes the dashboards there
with grafana-foundation-sdk, which no other code needs."""

from pathlib import Path

PROVISIONING = Path(__file__).parent / "provisioning"
"""Mount it as /etc/grafana/provisioning"""
DASHBOARDS = PROVISIONING / "dashboards"
