"""A dashboard: rows of panels below the variables that they share, with links to the other dashboards."""

from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.models import dashboard

from ops.monitoring.grafana.panels import PROMETHEUS, Panel

TAG = "fedil"
RUN = 'run=~"$run"'
SITE = 'site=~"$site"'
Rows = Mapping[str, Sequence[Panel]]


def board(
    name: str, title: str, about: str, rows: Rows, folded: Rows, sites: bool = False
) -> dashboard.Dashboard:
    """`folded` rows are closed until they are opened."""
    made = build.Dashboard(title).uid(f"fedil-{name}").description(about).tags([TAG])
    made.refresh("10s").time("now-1h", "now").timezone("browser").tooltip(
        dashboard.DashboardCursorSync.CROSSHAIR
    )
    made.with_variable(_datasource()).with_variable(_labels("run", "label_values(fedil_run_info, run)"))
    if sites:
        made.with_variable(_labels("site", 'label_values(up{job="fedil-worker"}, site)'))
    made.link(_to_the_others()).annotation(_alerts())
    for row, panels in rows.items():
        made.with_row(build.Row(row))
        for panel in panels:
            made.with_panel(panel)
    for row, panels in folded.items():
        closed = build.Row(row)
        for panel in panels:
            closed.with_panel(panel)
        made.with_row(closed)
    return _numbered(made.build())


def of_run(metric: str, *labels: str) -> str:
    """One value for a run, also while a standby server shows the same run."""
    return f"max by (run) ({metric}{{{','.join([RUN, *labels])}}})"


def _numbered(made: dashboard.Dashboard) -> dashboard.Dashboard:
    """Links to a panel contain its number."""
    every = []
    for panel in made.panels or ():
        every.append(panel)
        if isinstance(panel, dashboard.RowPanel):
            every += panel.panels
    for number, panel in enumerate(every, start=1):
        panel.id_val = number
    return made


def _datasource() -> build.DatasourceVariable:
    return build.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def _labels(name: str, query: str) -> build.QueryVariable:
    made = build.QueryVariable(name).label(name.capitalize()).datasource(PROMETHEUS).query(query)
    everything = dashboard.VariableOption(selected=True, text="All", value="$__all")
    made.multi(True).include_all(True).all_value(".*").current(everything)
    return made.refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(
        dashboard.VariableSort.NATURAL_ASC
    )


def _to_the_others() -> build.DashboardLink:
    link = build.DashboardLink("FedIL").type(dashboard.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.include_vars(True).keep_time(True).as_dropdown(False)


def _alerts() -> build.AnnotationQuery:
    """Marks in every panel when an alert fires"""
    query = prometheus.Dataquery().ref_id("Alerts").expr('ALERTS{alertname=~"Fedil.+",alertstate="firing"}')
    made = build.AnnotationQuery().name("Alerts").datasource(PROMETHEUS).enable(True).icon_color("red")
    return (
        made.target(query)
        .expr('ALERTS{alertname=~"Fedil.+",alertstate="firing"}')
        .title_format("{{alertname}}")
    )
