"""Writes the dashboards that Grafana reads: python -m ops.monitoring.grafana"""

import json

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from ops.monitoring.grafana import DASHBOARDS
from ops.monitoring.grafana.convergence import convergence
from ops.monitoring.grafana.fleet import fleet
from ops.monitoring.grafana.wire import wire

BOARDS = {"convergence.json": convergence, "fleet.json": fleet, "wire.json": wire}


def as_text(board: Dashboard) -> str:
    made = json.loads(JSONEncoder().encode(board))
    for shown in (*made["links"], *made["annotations"]["list"]):
        del shown["placement"]  # the library hides links in a menu, and has no word for not doing so
    return json.dumps(made, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, board in BOARDS.items():
        (DASHBOARDS / name).write_text(as_text(board()), encoding="utf-8")
