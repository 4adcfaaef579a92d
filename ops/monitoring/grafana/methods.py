"""Panels for what the registered methods declare: a row for each method, one for metrics that several share, and what
workers export of it."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from grafana_foundation_sdk.models import units

from fedil_model.methods import METHODS, find_method
from fedil_model.methods.interface import Chart, ClientValue, MethodSpec, Series
from ops.monitoring.grafana.panels import Panel, Queries, bars, buckets, lines

RUN = 'run=~"$run"'
SITE = 'site=~"$site"'
MakePanel = Callable[[int], Panel]
"""Of this width"""
_COLORS = ("light-green", "orange", "light-orange", "yellow", "light-yellow", "light-red")


def registered() -> list[MethodSpec]:
    return [find_method(name) for name in METHODS]


def outcomes(colors: Mapping[str, str], **panel: Any) -> Panel:
    """Bars, also of the outcomes that methods declare"""
    names = dict.fromkeys(outcome.name for spec in registered() for outcome in spec.display.outcomes)
    declared = {name: _COLORS[index % len(_COLORS)] for index, name in enumerate(names)}
    return bars(**panel, colors={**colors, **declared})


def accuracy(about: str, **panel: Any) -> Panel:
    """Lines; the text says what each model is, by method."""
    models = (
        f"{spec.title}: {'; '.join(f'{model.name}, {model.help}' for model in spec.display.models)}."
        for spec in registered()
    )
    return lines(**panel, about=" ".join([about, *models]))


def method_rows() -> tuple[dict[str, list[Panel]], list[Panel]]:
    """Panels by method, in the order of registration; and those of metrics that several methods declare"""
    specs = registered()
    uses = Counter(metric for spec in specs for metric in metrics_of(spec))
    shared = {metric for metric, methods in uses.items() if methods > 1}
    own = {spec.title: _spread(_panels(spec, uses.keys() - shared)) for spec in specs}
    common: list[MakePanel] = []
    for spec in specs:
        common += _panels(spec, shared)
        shared -= metrics_of(spec)
    return {title: panels for title, panels in own.items() if panels}, _spread(common)


def worker_row() -> list[Panel]:
    """Means over clients, as the workers export them"""
    drawn: set[str] = set()
    panels: list[MakePanel] = []
    for chart in (chart for spec in registered() for chart in spec.display.charts):
        means = {_at_worker(series): series for series in chart.series if series.source == "client_mean"}
        # Of each worker's last task, by site: one that stands apart has other data, or bad data.
        fresh = {metric: series for metric, series in means.items() if metric not in drawn}
        new = dict(_query(metric, series, SITE, "avg") for metric, series in fresh.items())
        panels += [partial(_chart, chart, new)] if new else []
        drawn |= means.keys()
    return _spread(panels)


def metrics_of(spec: MethodSpec) -> set[str]:
    """Every metric that servers and workers export for this method"""
    declared = spec.display.series()
    return {
        *(_histogram(value) for value in spec.display.client_values),
        *(series.metric_name for series in declared),
        *(_at_worker(series) for series in declared if series.source == "client_mean"),
    }


def _panels(spec: MethodSpec, metrics: Collection[str]) -> list[MakePanel]:
    """Of what is declared, only these metrics"""
    charts = [(chart, _queries(chart, metrics)) for chart in spec.display.charts]
    values = [value for value in spec.display.client_values if _histogram(value) in metrics]
    return [
        *(partial(_chart, chart, queries) for chart, queries in charts if queries),
        *(partial(_heatmap, value) for value in values),
    ]


def _queries(chart: Chart, metrics: Collection[str]) -> dict[str, str]:
    """One for each metric: series that share one differ in a label."""
    by_metric = {series.metric_name: series for series in chart.series}
    return dict(_query(metric, series) for metric, series in by_metric.items() if metric in metrics)


def _query(metric: str, series: Series, by: str = RUN, how: str = "max") -> tuple[str, str]:
    """Legend and expression. max: one value for a run, also while a standby server shows the same run."""
    name = by.partition("=")[0]
    label = None if series.metric_label is None else series.metric_label[0]
    legend = series.title if label is None else f"{{{{{label}}}}}"
    names = name if label is None else f"{name}, {label}"
    expr = f"{how} by ({names}) ({metric}{{{by}}})"
    if series.source == "client_gain" and label is None:
        expr = f"sum by (run) (increase({metric}{{{by}}}[$__rate_interval]))"
    return f"{legend} {{{{{name}}}}}", expr


def _chart(chart: Chart, queries: Queries, width: int) -> Panel:
    kinds = {series.unit for series in chart.series}
    return lines(
        title=chart.title,
        about=chart.help,
        queries=queries,
        unit=units.PercentUnit if kinds == {"share"} else units.Short,
        lowest=None if "" in kinds else 0,
        highest=1 if kinds == {"share"} else None,
        logarithmic=chart.log,
        width=width,
    )


def _heatmap(value: ClientValue, width: int) -> Panel:
    increase = f"sum by (le) (increase({_histogram(value)}_bucket{{{RUN}}}[$__rate_interval]))"
    return buckets(f"Updates by {value.title}", value.help, increase, width=width)


def _histogram(value: ClientValue) -> str:
    return f"fedil_update_{value.name}"


def _at_worker(series: Series) -> str:
    return f"fedil_worker_{series.metric_name.removeprefix('fedil_')}"


def _spread(panels: list[MakePanel]) -> list[Panel]:
    """Two to a line; of an odd number the last three to one, or the only one."""
    widths = [12] * len(panels)
    if len(panels) % 2:
        widths[-3:] = [8] * 3 if len(panels) > 1 else [24]
    return [make(width) for make, width in zip(panels, widths, strict=True)]
