"""A dashboard: rows of panels below the variables that they share, with links to the other dashboards."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.models import dashboard

from ops.monitoring.grafana import panels as kinds
from ops.monitoring.grafana.methods import accuracy, method_rows, outcomes, worker_row
from ops.monitoring.grafana.panels import PROMETHEUS, Panel
from ops.monitoring.prometheus import RULES

TAG = "fedil"
KINDS: dict[str, Callable[..., Panel]] = {
    "number": kinds.number,
    "lines": kinds.lines,
    "bars": kinds.bars,
    "buckets": kinds.buckets,
    "states": kinds.states,
    "rows": kinds.rows,
    "accuracy": accuracy,
    "outcomes": outcomes,
    "runbook": lambda: kinds.words(
        "Runbook", "\n".join(f"- **{a}**: {line}" for a, line in runbook().items())
    ),
}
Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""Title → settings of panels"""


def runbook() -> dict[str, str]:
    """Alert → what to do"""
    groups = yaml.safe_load((RULES / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule["annotations"]["runbook"] for group in groups for rule in group["rules"]}


def board(name: str) -> dashboard.Dashboard:
    """Reads boards/NAME.yml. Its `folded` rows are closed until they are opened."""
    text = (Path(__file__).parent / "boards" / f"{name}.yml").read_text(encoding="utf-8")
    return _board(name, **yaml.safe_load(text))


def _board(
    name: str, title: str, about: str, rows: Rows, folded: Rows, sites: bool = False
) -> dashboard.Dashboard:
    made = build.Dashboard(title).uid(f"fedil-{name}").description(about).tags([TAG])
    made.refresh("10s").time("now-1h", "now").timezone("browser").tooltip(
        dashboard.DashboardCursorSync.CROSSHAIR
    )
    source = build.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
    made.with_variable(source).with_variable(_labels("run", "label_values(fedil_run_info, run)"))
    if sites:
        made.with_variable(_labels("site", 'label_values(up{job="fedil-worker"}, site)'))
    others = build.DashboardLink("FedIL").type(dashboard.DashboardLinkType.DASHBOARDS).tags([TAG])
    made.link(others.include_vars(True).keep_time(True).as_dropdown(False)).annotation(_alerts())
    for row, panels in _rows(rows):
        made.with_row(build.Row(row))
        for panel in panels:
            made.with_panel(panel)
    for row, panels in _rows(folded):
        closed = build.Row(row)
        for panel in panels:
            closed.with_panel(panel)
        made.with_row(closed)
    return _numbered(made.build())


def _rows(rows: Rows) -> Iterator[tuple[str, list[Panel]]]:
    """The rows `first method` and `other methods` stand for those of the registered methods."""
    by_method, shared = method_rows()
    first, *others = by_method.items()
    generated = {"shared_by_methods": shared, "reported_by_workers": worker_row()}
    for title, panels in rows.items():
        if title == "first method":
            yield first
        elif title == "other methods":
            yield from others
        else:
            yield title, [made for panel in panels for made in _panels(generated, **panel)]


def _panels(generated: Mapping[str, list[Panel]], kind: str, **settings: Any) -> list[Panel]:
    return generated[kind] if kind in generated else [KINDS[kind](**settings)]


def _numbered(made: dashboard.Dashboard) -> dashboard.Dashboard:
    """Links to a panel contain its number."""
    panels = [[panel, *(getattr(panel, "panels", None) or ())] for panel in made.panels or ()]
    for number, panel in enumerate(chain.from_iterable(panels), start=1):
        panel.id_val = number
    return made


def _labels(name: str, query: str) -> build.QueryVariable:
    made = build.QueryVariable(name).label(name.capitalize()).datasource(PROMETHEUS).query(query)
    everything = dashboard.VariableOption(selected=True, text="All", value="$__all")
    made.multi(True).include_all(True).all_value(".*").current(everything)
    return made.refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(
        dashboard.VariableSort.NATURAL_ASC
    )


def _alerts() -> build.AnnotationQuery:
    """Marks in every panel when an alert fires"""
    firing = 'ALERTS{alertname=~"Fedil.+",alertstate="firing"}'
    query = prometheus.Dataquery().ref_id("Alerts").expr(firing)
    made = build.AnnotationQuery().name("Alerts").datasource(PROMETHEUS).enable(True).icon_color("red")
    return made.target(query).expr(firing).title_format("{{alertname}}")
