import math
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure

from fedil_model.methods import METHODS, find_method
from ops.inspect.report.curves import ENGINE_OUTCOMES, STYLES, curves
from ops.inspect.report.drawing import (
    BLUE,
    ORANGE,
    Missing,
    Plot,
    inline_svg,
    label,
    panel,
    rounds_axis,
    write_plots,
)
from ops.inspect.report.reading import Run
from ops.inspect.report.rendering import environment
from server_worker.run.recipe import make_recipe
from server_worker.watch.events import ClientOutcome
from tests.unit.ops.records import make_record
from tests.unit.ops.report_runs import Parsed, make_run

HOSTILE = "$\\frac{x$ <script>alert(1)</script> -->\u202e 漢字 \x07"


def hostile_plot(name: str = "hostile") -> Plot:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([1, 2], [1, 2], color=BLUE, label=label(HOSTILE, 60))
        axes.set_title(label(HOSTILE, 60))
        axes.legend()

    return Plot(name, HOSTILE, draw, HOSTILE)


def shown(plot: Plot) -> str:
    source = '{% from "parts.html" import panels %}{{ panels([panel]) }}'
    return environment().from_string(source).render(panel=panel(plot))


def test_names_with_markup_and_dollar_signs_are_drawn_and_stay_text() -> None:
    made = shown(hostile_plot())
    parsed = Parsed(made)
    assert "script" not in {tag for tag, _ in parsed.tags}
    assert "<script>alert(1)</script>" in parsed.text
    assert "<!--" not in made


@pytest.mark.parametrize("last", [1, 2, 7, 60, 300])
def test_the_axis_of_rounds_names_whole_rounds_that_were_played(last: int) -> None:
    axes = Figure().subplots()
    rounds_axis(axes, range(1, last + 1))
    ticks = axes.get_xticks()
    assert 1 <= len(ticks) <= 10
    assert all(1 <= tick <= last and tick == int(tick) for tick in ticks)


def test_a_drawing_asks_for_nothing_from_outside() -> None:
    made = inline_svg(hostile_plot())
    assert "http" not in made
    assert "<style" not in made
    assert all(reference.startswith("#") for reference in Parsed(made).references())


def test_colours_become_those_of_the_page_and_none_is_left_behind() -> None:
    made = inline_svg(hostile_plot())
    assert "var(--c-blue)" in made
    assert "var(--text)" in made
    assert BLUE not in made
    assert not re.search(r"(fill|stroke): #(?!ffffff)", made)


def test_parts_of_two_drawings_do_not_get_in_each_others_way() -> None:
    both = inline_svg(hostile_plot("one")) + inline_svg(hostile_plot("two"))
    parsed = Parsed(both)
    ids = [attrs["id"] for _, attrs in parsed.tags if "id" in attrs]
    assert len(ids) == len(set(ids)) > 4
    assert {reference.removeprefix("#") for reference in parsed.references()} <= set(ids)
    clips = set(re.findall(r"url\(#([^)]*)\)", both))
    assert clips
    assert clips <= set(ids)


def test_the_same_figure_gives_the_same_bytes() -> None:
    assert inline_svg(hostile_plot()) == inline_svg(hostile_plot())


def test_a_persons_own_matplotlib_settings_change_nothing_and_come_back() -> None:
    usual = inline_svg(hostile_plot())
    with matplotlib.rc_context({"font.size": 30, "xtick.major.size": 20.0, "axes.grid": False}):
        assert inline_svg(hostile_plot()) == usual
        assert matplotlib.rcParams["font.size"] == 30


def test_a_plot_without_data_says_why_in_the_page() -> None:
    def draw(_: Figure) -> None:
        raise Missing("nobody <b>was</b> asked")

    assert "No curve: nobody <b>was</b> asked." in Parsed(shown(Plot("x", "X", draw))).text


@pytest.mark.parametrize(("ending", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_plots_are_written_in_every_format(tmp_path: Path, ending: str, begins: bytes) -> None:
    written, absent = write_plots([hostile_plot()], tmp_path / "new", ending)
    assert written == [tmp_path / "new" / f"hostile.{ending}"]
    assert written[0].read_bytes().startswith(begins)
    assert absent == []


def test_a_plot_without_data_leaves_no_file(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", rounds=0)
    written, absent = write_plots([curves(run)[0]], tmp_path / "plots", "png")
    assert written == list((tmp_path / "plots").iterdir()) == []
    assert absent == ["accuracy: no round has closed yet"]


@pytest.mark.parametrize("rounds", [1, 2, 12, 100])
def test_every_curve_can_be_drawn_of_few_and_of_many_rounds(tmp_path: Path, rounds: int) -> None:
    run = make_run(tmp_path / "r", rounds, planned=rounds)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for plot in curves(run):
            _, made, why = panel(plot)
            if made is None:
                assert why.endswith("in every round")
            else:
                ElementTree.fromstring(made)


def test_numbers_that_are_none_do_not_stop_a_drawing(tmp_path: Path) -> None:
    bad = {"loss_pseudo": math.inf, "loss_server": math.nan, "reference_norm": math.nan}
    outcomes = (
        ClientOutcome(0, "accepted", values={"cosine": math.nan}),
        ClientOutcome(1, "accepted", values={"cosine": 0.5}),
    )
    records = [
        make_record(1, delta_norm=math.inf, series=bad, seconds={"total": math.nan, "wait": math.inf}),
        make_record(2, delta_norm=0.0, outcomes=outcomes),
        make_record(3),
    ]
    for plot in curves(make_run(tmp_path / "r", records)):
        assert inline_svg(plot).startswith("<svg")


def drawn(name: str, run: Run) -> Any:
    figure = Figure()
    next(plot for plot in curves(run) if plot.name == name).draw(figure)
    return figure.axes[0]


def test_the_axes_of_a_single_round_have_whole_rounds_and_no_number_twice(tmp_path: Path) -> None:
    axes = drawn("delta_norm", make_run(tmp_path / "r", 1, planned=1))
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [1]
    low, high = axes.get_ylim()
    said = [axes.yaxis.get_major_formatter()(tick, 0) for tick in axes.get_yticks() if low <= tick <= high]
    assert len(said) == len(set(said)) > 0


@pytest.mark.parametrize("name", ["accuracy", "delta_norm", "losses"])
def test_what_has_a_name_in_the_legend_of_a_single_round_is_there_to_be_seen(
    tmp_path: Path, name: str
) -> None:
    axes = drawn(name, make_run(tmp_path / "r", 1, planned=1))
    measured = [line for line in axes.get_lines() if len(line.get_xdata()) == 1]
    assert all(line.get_marker() not in ("", "None", None) for line in measured)
    assert measured


def test_the_accuracy_curve_shows_what_was_measured_and_the_baseline(tmp_path: Path) -> None:
    records = [
        make_record(n, accuracy={"global": n / 10, "server": 0.5} if n % 2 else {}) for n in range(1, 6)
    ]
    run = make_run(tmp_path / "r", records)
    axes = drawn("accuracy", run)
    lines = {str(line.get_label()): line for line in axes.lines}
    assert list(lines["global model θ′"].get_xdata()) == [1, 3, 5]
    assert list(lines["global model θ′"].get_ydata()) == [0.1, 0.3, 0.5]
    assert "server-only" not in lines


def test_rounds_without_a_step_break_the_line_and_are_marked(tmp_path: Path) -> None:
    norms = [2.0, 0.0, 1.0]
    records = [make_record(n, delta_norm=norm) for n, norm in enumerate(norms, start=1)]
    axes = drawn("delta_norm", make_run(tmp_path / "r", records))
    lines = {str(line.get_label()): line for line in axes.lines}
    assert [math.isnan(value) for value in lines["update size"].get_ydata()] == [False, True, False]
    assert list(lines["Δθ = 0 (1 rounds)"].get_xdata()) == [2]
    assert axes.get_yscale() == "log"


def test_accepted_and_rejected_cosines_differ_in_colour_and_marker(tmp_path: Path) -> None:
    axes = drawn("cosine", make_run(tmp_path / "r"))
    shown = {str(points.get_label()): points for points in axes.collections}
    assert set(shown) == {"accepted (57)", "rejected: cosine (3)"}
    accepted, rejected = shown["accepted (57)"], shown["rejected: cosine (3)"]
    colours = [matplotlib.colors.to_hex(points.get_facecolor()[0]) for points in (accepted, rejected)]
    assert colours == [BLUE, ORANGE]
    assert len(accepted.get_paths()[0].vertices) != len(rejected.get_paths()[0].vertices)


def test_many_points_become_a_picture(tmp_path: Path) -> None:
    outcomes = tuple(
        ClientOutcome(client, "accepted", values={"cosine": client / 2000 - 1}) for client in range(4000)
    )
    run = make_run(tmp_path / "r", [make_record(1, outcomes=outcomes)])
    plot = next(plot for plot in curves(run) if plot.name == "cosine")
    made = inline_svg(plot)
    assert "data:image/png" in made
    assert len(made) < 200_000


def test_a_chart_shows_declared_series_without_those_that_stay_zero(tmp_path: Path) -> None:
    series = {"loss_credible": 0.0, "loss_invented": 1.0, "loss_pseudo": None}
    records = [make_record(n, series=series | {"loss_server": 1.0 / n}) for n in range(1, 6)]
    axes = drawn("losses", make_run(tmp_path / "r", records))
    assert [str(line.get_label()) for line in axes.lines] == ["server"]


def test_a_chart_of_constants_is_words(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", [make_record(n, series={"sure_share": 0.6}) for n in range(1, 4)])
    plot = next(plot for plot in curves(run) if plot.name == "confident_samples")
    assert "No curve: confident is 60 % in every round." in Parsed(shown(plot)).text


@pytest.mark.parametrize("cosine_filter", [True, False])
def test_a_threshold_is_drawn_only_where_it_is_in_force(tmp_path: Path, cosine_filter: bool) -> None:
    axes = drawn("cosine", make_run(tmp_path / "r", method={"cosine_filter": cosine_filter}))
    assert len(axes.lines) == cosine_filter


def test_a_threshold_that_a_setting_says_has_its_value() -> None:
    (divergence,) = find_method("fedu").display.client_values
    settings = make_recipe({"method": {"name": "fedu", "max_divergence": 0.7}}).method
    assert divergence.threshold_of(settings) == 0.7


def test_an_axis_of_accuracies_ends_at_100_percent(tmp_path: Path) -> None:
    records = [make_record(n, accuracy={"global": 0.9 + n / 50}) for n in range(1, 6)]
    assert drawn("accuracy", make_run(tmp_path / "r", records)).get_ylim()[1] == 1.0


def test_a_file_has_a_title_and_the_page_a_heading(tmp_path: Path) -> None:
    plot = replace(hostile_plot(), title="Sizes of steps")
    (file,), _ = write_plots([plot], tmp_path, "svg")
    assert "<!-- Sizes of steps -->" in file.read_text("utf-8")
    assert not any(tag == "text" or "suptitle" in str(attrs) for tag, attrs in Parsed(inline_svg(plot)).tags)


def test_a_label_is_short_and_never_hidden() -> None:
    assert label("_private") == "private"
    assert label("") == "–"
    assert len(label("x" * 100)) == 28


@pytest.mark.parametrize("name", METHODS)
def test_outcomes_that_a_method_declares_look_different(name: str) -> None:
    declared = find_method(name).display.outcomes
    assert len(ENGINE_OUTCOMES) + len(declared) < len(STYLES), "one is for outcomes that are not declared"
    assert len(set(STYLES)) == len(STYLES)
