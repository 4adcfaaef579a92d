"""Kinds of panels, each with a title, a text `about` it that says how to read it, and queries."""

from collections.abc import Mapping
from typing import Any, TypeVar

from grafana_foundation_sdk.builders import common as build_common
from grafana_foundation_sdk.builders import dashboard as build_dashboard
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, statetimeline, table, text, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common, dashboard, units
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode

PROMETHEUS = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
_P = TypeVar("_P", heatmap.Panel, stat.Panel, statetimeline.Panel, table.Panel, timeseries.Panel)
BLUE, GREY = "blue", "#808080"

Panel = Builder[dashboard.Panel]
Steps = Mapping[float | None, str]
"""From which value on which colour; None: from the lowest"""
Queries = Mapping[str, str]
"""Legend → expression"""
Words = Mapping[str, tuple[str, str]]
"""What to show instead of a value, and in which colour"""


def _begun(
    panel: _P, title: str, about: str, queries: Queries, width: int, height: int, instant: bool = False
) -> _P:
    panel.title(title).description(about).datasource(PROMETHEUS).span(width).height(height)
    for letter, (legend, expr) in zip("ABCDEFGH", queries.items(), strict=False):
        made = _target(letter, legend, expr)
        panel.with_target(made.instant() if instant else made.range())
    return panel


def _target(letter: str, legend: str, expr: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id(letter).expr(expr).legend_format(legend).datasource(PROMETHEUS)


def _thresholds(steps: Steps) -> Builder[dashboard.ThresholdsConfig]:
    levels = [dashboard.Threshold(value=value, color=color) for value, color in steps.items()]
    return build_dashboard.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(levels)


def _by_thresholds() -> Builder[dashboard.FieldColor]:
    return build_dashboard.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS)


def number(
    unit: str = units.Short,
    steps: Steps | None = None,
    words: Words | None = None,
    names_only: bool = False,
    width: int = 3,
    **what: Any,
) -> Panel:
    """The last value, large. `names_only`: names of the series that exist now; a query over time would also find
    earlier ones."""
    panel = _begun(stat.Panel(), **what, width=width, height=4, instant=names_only)
    panel.unit(unit).thresholds(_thresholds(steps or {None: BLUE})).color_scheme(_by_thresholds())
    panel.reduce_options(build_common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel.graph_mode(common.BigValueGraphMode.NONE).color_mode(common.BigValueColorMode.VALUE)
    panel.text_mode(common.BigValueTextMode.NAME if names_only else common.BigValueTextMode.AUTO)
    if words:
        panel.mappings([_mapping(words)])
    return panel


def _mapping(words: Words) -> dashboard.ValueMap:
    return dashboard.ValueMap(
        options={
            value: dashboard.ValueMappingResult(text=shown, color=color)
            for value, (shown, color) in words.items()
        }
    )


def lines(
    lowest: float | None = 0,
    highest: float | None = None,
    logarithmic: bool = False,
    marks: Steps | None = None,
    **what: Any,
) -> Panel:
    """`marks`: lines across the panel, where something begins to be good or bad."""
    panel = _graph(**what)
    panel.fill_opacity(0).line_width(2).show_points(common.VisibilityMode.AUTO)
    if lowest is not None and not logarithmic:
        panel.min(lowest)
    if highest is not None:
        panel.max(highest)
    if logarithmic:
        scale = build_common.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10)
        panel.scale_distribution(scale)
    if marks:
        panel.thresholds(_thresholds(marks)).thresholds_style(
            build_common.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        )
    return panel


def bars(colors: Mapping[str, str] | None = None, **what: Any) -> Panel:
    """Stacked: what happened within each step of time. `colors`: by name of a series."""
    panel = _graph(**what)
    panel.draw_style(common.GraphDrawStyle.BARS).fill_opacity(80).line_width(0).min(0)
    panel.stacking(build_common.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    for name, color in (colors or {}).items():
        fixed = {"mode": "fixed", "fixedColor": color}
        panel.override_by_name(name, [dashboard.DynamicConfigValue(id_val="color", value=fixed)])
    return panel


def _graph(unit: str = units.Short, width: int = 12, **what: Any) -> timeseries.Panel:
    panel = _begun(timeseries.Panel(), **what, width=width, height=8)
    panel.unit(unit).span_nulls(True)
    legend = build_common.VizLegendOptions().show_legend(True).placement(common.LegendPlacement.BOTTOM)
    panel.legend(legend.display_mode(common.LegendDisplayMode.TABLE).calcs(["lastNotNull", "max"]))
    shown = build_common.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
    return panel.tooltip(shown.sort(common.SortOrder.DESCENDING))


def buckets(title: str, about: str, expr: str, *, unit: str = units.Short, width: int = 12) -> Panel:
    """A histogram over time; `expr` gives the increase by `le`."""
    panel = _begun(heatmap.Panel(), title, about, {}, width, 8)
    panel.with_target(_target("A", "{{le}}", expr).format(PromQueryFormat.HEATMAP).range())
    colors = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(32)
    panel.calculate(False).color(colors.exponent(0.5).fill("dark-blue"))
    panel.y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(common.AxisPlacement.LEFT))
    return panel.rows_frame(heatmap.RowsHeatmapOptions().layout(common.HeatmapCellLayout.AUTO)).cell_gap(1)


def states(title: str, about: str, queries: Queries, words: Words, width: int = 12) -> Panel:
    """A band for each series, coloured by what it was when."""
    panel = _begun(statetimeline.Panel(), title, about, queries, width, 8)
    panel.mappings([_mapping(words)]).thresholds(_thresholds({None: GREY})).color_scheme(_by_thresholds())
    panel.show_value(common.VisibilityMode.NEVER).merge_values(True).row_height(0.8).fill_opacity(80)
    return panel.legend(build_common.VizLegendOptions().show_legend(False))


def rows(title: str, about: str, expr: str) -> Panel:
    """A table of the labels of what is there now. A cell `instance` leads to the live page behind it."""
    panel = _begun(table.Panel(), title, about, {}, 24, 6)
    panel.with_target(_target("A", "", expr).format(PromQueryFormat.TABLE).instant())
    hidden = dict.fromkeys(("Time", "Value", "__name__", "job"), True)
    panel.with_transformation(
        dashboard.DataTransformerConfig(id_val="organize", options={"excludeByName": hidden})
    )
    page = {"title": "live page", "url": "http://${__value.text}/", "targetBlank": True}
    panel.override_by_name("instance", [dashboard.DynamicConfigValue(id_val="links", value=[page])])
    return panel


def words(title: str, content: str) -> Panel:
    return text.Panel().title(title).mode(TextMode.MARKDOWN).content(content).span(24).height(24)
