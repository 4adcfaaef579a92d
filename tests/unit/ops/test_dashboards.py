"""The dashboards as Grafana will read them. There is no Grafana here: their schema is that of Grafana's own library,
their queries are run by tests/integration/test_monitoring.py."""

import dataclasses
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

import ops.monitoring.grafana.methods
from fedil_model.methods import METHODS, find_method
from fedil_model.methods.interface import Chart, ClientValue, Display, Model, Series
from ops.monitoring.grafana import DASHBOARDS
from ops.monitoring.grafana.__main__ import BOARDS, as_text
from ops.monitoring.grafana.board import board
from ops.monitoring.grafana.methods import method_rows, metrics_of, registered
from ops.monitoring.prometheus import RULES

ROOT = Path(__file__).parents[3]
ROOMS = ("broker_config", "server_worker", "client_worker")
FEDIL = re.compile(r"\bfedil_[a-z_]+")
SUFFIXES = re.compile(r"_(bucket|sum|count|total|info)$")
KNOWN_UNITS = {value for name, value in vars(units).items() if name[0].isupper() and isinstance(value, str)}


def read(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DASHBOARDS / name).read_text("utf-8"))
    return loaded


def rows_and_panels(name: str) -> list[dict[str, Any]]:
    outer: list[dict[str, Any]] = read(name)["panels"]
    return outer + [inner for panel in outer for inner in panel.get("panels", ())]


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in rows_and_panels(name) if panel["type"] not in ("row", "text")]


def queries(name: str) -> list[str]:
    return [target["expr"] for panel in panels(name) for target in panel["targets"]]


@pytest.mark.parametrize("name", BOARDS)
def test_what_grafana_reads_is_what_the_code_says(name: str) -> None:
    """If this fails: python -m ops.monitoring.grafana"""
    assert (DASHBOARDS / name).read_text("utf-8") == as_text(board(Path(name).stem))


@pytest.mark.parametrize("name", BOARDS)
def test_grafanas_own_library_reads_every_field(name: str) -> None:
    read_back = Dashboard.from_json(read(name))
    assert json.loads(as_text(read_back)) == read(name)


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_explains_itself_and_has_a_unit(name: str) -> None:
    assert len(panels(name)) > 10
    for panel in panels(name):
        assert len(panel["description"]) > 10, panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert panel["targets"], panel["title"]
        if panel["type"] in ("timeseries", "stat"):
            assert panel["fieldConfig"]["defaults"]["unit"] in KNOWN_UNITS, panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_numbers_of_their_own_and_do_not_overlap(name: str) -> None:
    everything = rows_and_panels(name)
    assert len({panel["id"] for panel in everything}) == len(everything)
    titles = [panel["title"] for panel in read(name)["panels"] if panel["type"] == "row"]
    assert len(set(titles)) == len(titles)
    cells: set[tuple[int, int]] = set()
    for panel in everything:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        covered = {
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & covered, panel["title"]
        cells |= covered


@pytest.mark.parametrize("name", BOARDS)
def test_rows_are_filled_from_edge_to_edge(name: str) -> None:
    by_line: dict[int, int] = {}
    for panel in rows_and_panels(name):
        by_line[panel["gridPos"]["y"]] = by_line.get(panel["gridPos"]["y"], 0) + panel["gridPos"]["w"]
    assert set(by_line.values()) == {24}
    lines = sorted({(panel["gridPos"]["y"], panel["gridPos"]["h"]) for panel in rows_and_panels(name)})
    assert all(y + height == following for (y, height), (following, _) in pairwise(lines))


@pytest.mark.parametrize("name", BOARDS)
def test_every_variable_is_there_and_used(name: str) -> None:
    board = read(name)
    there = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", " ".join(queries(name)))) - {"__rate_interval", "__range"}
    assert used | {"datasource"} == there
    run = next(variable for variable in board["templating"]["list"] if variable["name"] == "run")
    assert run["multi"]
    assert run["includeAll"]


def test_dashboards_link_to_each_other_by_their_tag() -> None:
    for name in BOARDS:
        board = read(name)
        assert [link["tags"] for link in board["links"]] == [board["tags"]] == [["fedil"]]
    assert len({read(name)["uid"] for name in BOARDS}) == len(BOARDS)


@pytest.mark.parametrize("name", BOARDS)
def test_a_legend_names_all_that_its_series_differ_in(name: str) -> None:
    """Else two runs have the same name in one panel."""
    for panel in panels(name):
        for target in panel["targets"]:
            grouped = re.match(r"[\w(]* ?by \(([^)]*)\)", target["expr"])
            if grouped and panel["type"] != "heatmap":
                named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
                assert set(grouped[1].split(", ")) <= named, panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_what_servers_and_workers_both_export_is_asked_of_one_of_them(name: str) -> None:
    """`run=~".*"`, all runs, is also true of a worker's series, which have no run."""
    shared = {"fedil_transport_bytes_total", "process_cpu_seconds_total", "process_resident_memory_bytes"}
    for query in queries(name):
        for metric, labels in re.findall(r"\b(\w+)\{([^}]*)\}", query):
            assert metric not in shared or "job=" in labels, query


def exported() -> set[str]:
    """Every name is written once, in a metrics.py or in what a method declares."""
    sources = [path for room in ROOMS for path in (ROOT / room).rglob("metrics.py")]
    written = [re.findall(r'"(fedil_[a-z_]+)"', source.read_text("utf-8")) for source in sources]
    return {name for names in written for name in names} | {
        metric for spec in registered() for metric in metrics_of(spec)
    }


def without_suffix(name: str) -> str:
    return name if name in exported() else SUFFIXES.sub("", name)


@pytest.mark.parametrize("method", METHODS)
def test_everything_that_a_method_declares_has_a_panel(method: str) -> None:
    asked = " ".join(query for name in BOARDS for query in queries(name))
    for metric in metrics_of(find_method(method)):
        assert f"{metric}{{" in asked or f"{metric}_bucket{{" in asked


def test_metrics_that_methods_share_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def method(title: str, *series: Series) -> Any:
        value = ClientValue(f"of_{title}", "value", "help", 0, 1)
        display = Display((Model("global", "w", "help"),), (Chart("Chart", "help", series),), (value,))
        return dataclasses.replace(find_method("fedil"), title=title, display=display)

    common = Series("common", "in both", "help", unit="share")
    specs = [method("one", common, Series("grown", "grown", "help", "client_gain")), method("two", common)]
    monkeypatch.setattr(ops.monitoring.grafana.methods, "registered", lambda: specs)
    own, shared = method_rows()
    rows = {title: [panel.build() for panel in panels] for title, panels in (own | {"both": shared}).items()}
    asked: dict[str, list[Any]] = {title: [] for title in rows}
    for title, panels in rows.items():
        asked[title] += [vars(target)["expr"] for panel in panels for target in panel.targets or ()]
    assert [title for title in asked if "fedil_common{" in " ".join(asked[title])] == ["both"]
    assert len(asked["both"]) == 1
    assert len(asked["one"]) == 2
    assert "increase(fedil_grown_total{" in asked["one"][0]
    assert "fedil_update_of_two_bucket{" in asked["two"][0]
    widths = {title: [panel.grid_pos.w for panel in panels] for title, panels in rows.items()}  # type: ignore[union-attr]
    assert widths == {"one": [12, 12], "two": [24], "both": [24]}


def test_every_metric_that_is_asked_for_is_exported() -> None:
    rules = "".join(path.read_text("utf-8") for path in RULES.glob("*.yml"))
    recorded = set(re.findall(r"record: (\S+)", rules))
    asked = " ".join(query for name in BOARDS for query in queries(name))
    for name in recorded:
        asked, rules = asked.replace(name, ""), rules.replace(name, "")
    assert {without_suffix(name) for name in FEDIL.findall(asked + rules)} <= exported()


def test_every_metric_that_is_exported_is_shown_somewhere() -> None:
    recording = (RULES / "recording.yml").read_text("utf-8")
    shown = " ".join(query for name in BOARDS for query in queries(name)) + recording
    unseen = exported() - {without_suffix(name) for name in FEDIL.findall(shown)}
    # The time of the last round is for queries by hand; the panels show how long ago anything happened. How many were
    # asked to spare and how many rounds were empty is for alerts.
    assert unseen == {
        "fedil_round_closed_timestamp_seconds",
        "fedil_over_selected_ratio",
        "fedil_empty_rounds",
    }
