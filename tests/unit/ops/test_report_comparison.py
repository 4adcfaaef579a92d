from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ops.inspect.report.comparison import (
    at_common_rounds,
    compare,
    differing_settings,
)
from ops.inspect.report.comparison_page import comparison_page
from ops.inspect.report.comparison_plots import comparison_plots, curves_of, draw_curve
from ops.inspect.report.drawing import inline_svg
from ops.inspect.report.reading import Run, read_run
from tests.unit.ops.records import make_record
from tests.unit.ops.report_runs import Parsed, edit_json, make_run, make_run_folder


def run_with(folder: Path, accuracies: dict[int, float], **settings: Any) -> Run:
    """A run of as many rounds as named, evaluated at those."""
    records = [
        make_record(number, accuracy={"global": accuracies[number]} if number in accuracies else {})
        for number in range(1, max(accuracies) + 1)
    ]
    return make_run(folder, records, planned=max(accuracies), **settings)


def three_seeds(tmp_path: Path) -> list[Run]:
    return [run_with(tmp_path / f"s{seed}", {1: 0.5, 2: 0.6 + seed / 10}, seed=seed) for seed in range(3)]


def test_runs_that_differ_by_their_seed_are_one_group(tmp_path: Path) -> None:
    (group,) = compare(three_seeds(tmp_path)).groups
    assert [run.recipe.seed for run in group.runs] == [0, 1, 2]
    assert group.label == "A digits"


def test_runs_that_differ_otherwise_are_side_by_side_and_named_by_that(tmp_path: Path) -> None:
    runs = three_seeds(tmp_path)
    runs.append(run_with(tmp_path / "other", {2: 0.5}, client={"lr": 0.7}, evaluate_every=2))
    comparison = compare(runs)
    assert [group.label for group in comparison.groups] == ["A digits", "B lr=0.7"]
    assert set(differing_settings([group.runs for group in comparison.groups])) == {
        "client.lr",
        "evaluate_every",
    }


@pytest.mark.parametrize(
    "change", [{"rounds": 40}, {"evaluate_every": 5}, {"name": "again"}, {"data": {"root": "/x"}}]
)
def test_what_changes_no_number_does_not_part_a_group(tmp_path: Path, change: dict[str, Any]) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1, **change)]
    assert len(compare(runs).groups) == 1


def test_a_setting_that_this_version_does_not_know_parts_runs_too(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "b", seed=1)
    edit_json(folder / "recipe.json", quantum=True)
    comparison = compare([make_run(tmp_path / "a"), read_run(folder)])
    assert [group.label for group in comparison.groups] == ["A digits", "B quantum=True"]


def test_the_spread_over_seeds_is_mean_and_sample_deviation(tmp_path: Path) -> None:
    (group,) = compare(three_seeds(tmp_path)).groups
    assert group.final_accuracy("global") == [0.6, 0.7, 0.8]
    text = Parsed(comparison_page(compare(three_seeds(tmp_path / "again")))).text
    assert "70.00 ± 10.00 (60.00 to 80.00)" in text


def test_a_seed_that_is_there_twice_counts_once_and_it_is_said(tmp_path: Path) -> None:
    runs = [*three_seeds(tmp_path), run_with(tmp_path / "again", {1: 0.5}, seed=0)]
    comparison = compare(runs)
    (group,) = comparison.groups
    assert [run.label for run in group.runs] == ["s0", "s1", "s2"]
    assert [run.label for run in group.repeated] == ["again"]
    assert "again has the seed 0 of another run" in comparison.notes[0]


def test_means_are_taken_at_rounds_that_all_have(tmp_path: Path) -> None:
    runs = [
        run_with(tmp_path / "a", {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}),
        run_with(tmp_path / "b", {2: 0.4, 4: 0.6, 6: 0.9}, seed=1, evaluate_every=2),
    ]
    comparison = compare(runs)
    accuracy = curves_of(comparison)["accuracy"][3]
    rounds, values = at_common_rounds([accuracy(run) for run in comparison.groups[0].runs])
    assert rounds == [2, 4]
    assert np.allclose(values, [[0.2, 0.4], [0.4, 0.6]])
    assert comparison.last_common_round() == 4


def test_groups_are_compared_seed_by_seed_at_the_last_round_that_all_have(tmp_path: Path) -> None:
    runs = [
        run_with(tmp_path / "a0", {2: 0.5, 3: 0.9}),
        run_with(tmp_path / "a1", {2: 0.6, 3: 0.9}, seed=1),
        run_with(tmp_path / "b1", {2: 0.8}, seed=1, client={"lr": 0.5}),
        run_with(tmp_path / "b7", {2: 0.1}, seed=7, client={"lr": 0.5}),
    ]
    comparison = compare(runs)
    first, second = comparison.groups
    assert comparison.last_common_round() == 2
    assert second.lead_over(first, 2) == pytest.approx([0.2])
    assert second.accuracy_at(2) == {1: 0.8, 7: 0.1}


def test_the_page_says_mean_spread_n_and_what_differs(tmp_path: Path) -> None:
    runs = [*three_seeds(tmp_path), run_with(tmp_path / "other", {1: 0.4, 2: 0.5}, client={"lr": 0.7})]
    text = Parsed(comparison_page(compare(runs))).text
    assert "4 runs of 2 recipes" in text
    assert "A digits 3 0, 1, 2 70.00 ± 10.00 (60.00 to 80.00)" in text
    assert "B lr=0.7 1 0 50.00 –" in text
    assert "−10.00 (n = 1)" in text
    assert "setting A digits B lr=0.7 client.lr 0.03 0.7" in text
    assert "Fewer than 3 seeds" in text


def test_no_warning_of_few_seeds_where_there_are_enough(tmp_path: Path) -> None:
    text = Parsed(comparison_page(compare(three_seeds(tmp_path)))).text
    assert "Fewer than" not in text
    assert "None but the seed." in text
    assert "3 runs of one recipe" in text


def test_a_run_without_rounds_is_listed_and_in_no_curve(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", rounds=0, seed=1)]
    comparison = compare(runs)
    assert "b: no round has closed yet, so it is in no curve" in comparison.notes
    text = Parsed(comparison_page(comparison)).text
    assert "accuracy at the end" in text.lower()
    assert len(comparison.groups[0].final_accuracy("global")) == 1


def test_runs_of_which_none_has_rounds_still_make_a_page(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a", rounds=0), make_run(tmp_path / "b", rounds=0, seed=1)]
    comparison = compare(runs)
    text = Parsed(comparison_page(comparison)).text
    assert text.count("No curve: no run has measured it.") == len(curves_of(comparison))


def test_bands_go_from_the_lowest_to_the_highest_and_the_line_is_the_mean(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    figure: Any = Figure()
    comparison = compare(three_seeds(tmp_path))
    draw_curve(figure, comparison, curves_of(comparison)["accuracy"])
    (axes,) = figure.axes
    mean = next(line for line in axes.lines if str(line.get_label()).startswith("A digits"))
    assert str(mean.get_label()) == "A digits (n = 3)"
    assert list(mean.get_ydata()) == pytest.approx([0.5, 0.7])
    corners = axes.collections[0].get_paths()[0].vertices
    assert corners[:, 1].min() == pytest.approx(0.5)
    assert corners[:, 1].max() == pytest.approx(0.8)
    assert len(axes.lines) == 4  # the seeds themselves


def test_no_axis_goes_beyond_what_there_can_be(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    records = [make_record(number, selected=2, accepted=2, series={"credible": 0.0}) for number in (1, 2)]
    runs = [make_run(tmp_path / str(seed), records, seed=seed) for seed in range(2)]
    for name, highest in (("accepted", 1.01), ("credible", 1.0)):
        figure: Any = Figure()
        comparison = compare(runs)
        draw_curve(figure, comparison, curves_of(comparison)[name])
        low, high = figure.axes[0].get_ylim()
        assert 0 <= low < high <= highest, name


def test_thirty_recipes_can_be_drawn(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(n), client={"lr": 0.01 * (n + 1)}) for n in range(30)]
    comparison = compare(runs)
    assert [group.letter for group in comparison.groups][25:28] == ["Z", "AA", "AB"]
    for plot in comparison_plots(comparison)[:2]:
        assert inline_svg(plot).startswith("<svg")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    hostile = "<script>alert(1)<script>"
    runs = [make_run(tmp_path / hostile), make_run(tmp_path / "b", data={"options": {hostile: "$x"}})]
    parsed = Parsed(comparison_page(compare(runs)))
    assert "script" not in {tag for tag, _ in parsed.tags}
    assert hostile in parsed.text
