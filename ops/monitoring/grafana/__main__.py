"""Writes the dashboards that Grafana reads: python -m ops.monitoring.grafana"""

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from ops.monitoring.grafana import DASHBOARDS
from ops.monitoring.grafana.board import board

BOARDS = ("convergence.json", "fleet.json", "wire.json")


def as_text(dashboard: Dashboard) -> str:
    made = json.loads(JSONEncoder().encode(dashboard))
    for shown in (*made["links"], *made["annotations"]["list"]):
        del shown["placement"]  # the library hides links in a menu, and has no word for not doing so
    return json.dumps(made, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in BOARDS:
        (DASHBOARDS / name).write_text(as_text(board(Path(name).stem)), encoding="utf-8")
