"""Prometheus asked as Grafana asks it: each query of each panel, with its variables filled in."""

import json
import math
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ops.monitoring.grafana import DASHBOARDS

_SPECIAL = re.compile(r"[$^*{}\[\]'+?.()|]")


@dataclass(frozen=True)
class PanelQuery:
    board: str
    panel: str
    expr: str
    instant: bool

    def __str__(self) -> str:
        return f"{self.board}, {self.panel}: {self.expr}"


def panel_queries() -> Iterator[PanelQuery]:
    for path in sorted(DASHBOARDS.glob("*.json")):
        outer = json.loads(path.read_text("utf-8"))["panels"]
        for panel in outer + [inner for row in outer for inner in row.get("panels", ())]:
            for target in panel.get("targets", ()):
                yield PanelQuery(path.stem, panel["title"], target["expr"], target["instant"])


def chosen(values: list[str]) -> str:
    """What Grafana's Prometheus source puts in for a variable of several values."""
    escaped = [_SPECIAL.sub(r"\\\\\g<0>", value.replace("\\", "\\\\\\\\")) for value in values]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def interpolated(expr: str, variables: dict[str, str], step_seconds: int, scrape_seconds: int) -> str:
    interval = max(step_seconds + scrape_seconds, 4 * scrape_seconds)
    for name, value in {**variables, "__rate_interval": f"{interval}s"}.items():
        expr = expr.replace(f"${name}", value)
    assert "$" not in expr.replace("$|", ""), expr
    return expr


class Api:
    """Prometheus' own."""

    def __init__(self, url: str, scrape_seconds: int) -> None:
        self._url, self._scrape_seconds, self._began = url, scrape_seconds, time.time()

    def get(self, path: str, **parameters: object) -> Any:
        asked = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{asked}", timeout=60) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def values(self, expr: str) -> dict[str, float]:
        """Now, by labels."""
        found = self.get("query", query=expr)["result"]
        return {json.dumps(one["metric"], sort_keys=True): float(one["value"][1]) for one in found}

    def panel_data(self, query: PanelQuery, variables: dict[str, str]) -> list[float]:
        """All numbers that the panel would draw, from when we began until now."""
        now = time.time()
        step = max(1, math.ceil((now - self._began) / 100))
        variables = {**variables, "__range": f"{math.ceil(now - self._began)}s"}
        expr = interpolated(query.expr, variables, step, self._scrape_seconds)
        if query.instant:
            return list(self.values(expr).values())
        series = self.get("query_range", query=expr, start=self._began, end=now, step=step)["result"]
        numbers = [float(value) for one in series for _, value in one["values"]]
        return [number for number in numbers if math.isfinite(number)]

    def alerts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("alerts")["alerts"]
        return found
