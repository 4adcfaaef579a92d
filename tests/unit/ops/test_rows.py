import dataclasses

import pytest

from fedil_model.methods import find_method
from fedil_model.methods.interface import Chart, Display, Model, Series
from ops.cli.view.rows import Columns, exclusions, heading
from server_worker.watch.events import ClientOutcome
from tests.unit.ops.records import make_record

FEDIL = Columns(find_method("fedil").display)
EVALUATED = ("global", "server")


def titles(width: int, *more: str) -> list[str]:
    return [column.title for column in FEDIL.that_fit(width, [*EVALUATED, *more])]


def test_eighty_columns_hold_all_but_the_least_important_one() -> None:
    assert titles(90) == [
        "round",
        "global model θ′ %",
        "server model θ₀ %",
        "update size ‖Δθ‖",
        "accepted",
        "pseudo",
        "pure %",
        "credible",
        "seconds",
    ]
    assert titles(80) == [title for title in titles(90) if title != "credible"]


def test_a_long_heading_takes_several_lines() -> None:
    assert heading("global model θ′ %") == ["global", "model θ′ %"]
    assert heading("seconds") == ["seconds"]


def test_an_optional_model_has_a_column_only_when_it_was_evaluated() -> None:
    assert "averaged model EMA %" not in titles(200)
    assert "averaged model EMA %" in titles(200, "ema")


@pytest.mark.parametrize("width", range(5, 90, 5))
def test_columns_never_need_more_than_the_width(width: int) -> None:
    chosen = FEDIL.that_fit(width, [*EVALUATED, "ema"])
    assert sum(column.width for column in chosen) + 2 * (len(chosen) - 1) <= width
    assert chosen[0].title == "round"


def test_a_narrow_table_keeps_accuracy_and_acceptance() -> None:
    assert titles(28) == ["round", "global model θ′ %", "accepted"]


def test_log_lines_of_different_rounds_are_aligned() -> None:
    one = FEDIL.log_line(make_record(3))
    series = {"pseudo_labels": 31_000, "purity_pseudo_labels": 1.0}
    two = FEDIL.log_line(make_record(24, delta_norm=0.00002, series=series))
    assert [one.index(word) for word in ("server model", "update size", "accepted", "pure", "took")] == [
        two.index(word) for word in ("server model", "update size", "accepted", "pure", "took")
    ]


def test_the_line_of_a_round_is_the_one_in_the_readme() -> None:
    record = dataclasses.replace(
        make_record(1),
        accuracy={"global": 0.9109, "server": 0.8969, "ema": 0.9},
        delta_norm=2.164,
        series={"pseudo_labels": 149.0, "credible": 0.0, "purity_pseudo_labels": 1.0},
        seconds={"total": 0.8},
    )
    assert FEDIL.log_line(record) == (
        "round  1/30  global model 91.09  server model 89.69  update size   2.164  accepted 5/5  "
        "pseudo   149  pure 100.0  took 0.8 s"
    )


def test_what_is_not_known_is_a_dash_and_not_a_zero() -> None:
    line = FEDIL.log_line(make_record(3, accuracy={}, series={}))
    assert "global model     –" in line
    assert "pure     –" in line


def test_a_method_without_series_has_the_columns_of_every_run() -> None:
    columns = Columns(Display(models=(Model("global", "w", "the model"),)))
    assert [column.title for column in columns.that_fit(200, ["global"])] == [
        *("round", "w %", "update size ‖Δθ‖", "accepted", "seconds")
    ]
    assert columns.log_line(make_record(3)) == (
        "round  3/30  w 67.71  update size   0.567  accepted 5/5  took 1.9 s"
    )


def test_a_series_is_written_as_its_unit_asks() -> None:
    series = tuple(
        Series(name, name, "", unit=unit, column=name)  # type: ignore[arg-type]
        for name, unit in {"share": "share", "samples": "samples", "norm": "norm", "plain": ""}.items()
    )
    columns = Columns(
        Display((Model("global", "w", ""),), tuple(Chart(one.name, "", (one,)) for one in series))
    )
    record = make_record(1, series={"share": 0.5, "samples": 7.0, "norm": 1e-9, "plain": 2.5})
    assert columns.log_line(record).endswith(
        "share  50.0  samples     7  norm 1.0e-09  plain   2.500  took 1.9 s"
    )


def test_every_client_that_did_not_count_is_named_with_the_reason() -> None:
    outcomes = [
        ClientOutcome(1, "accepted", counts=True, values={"cosine": 0.4}),
        ClientOutcome(2, "projected", counts=True, values={"cosine": -0.1}),
        ClientOutcome(17, "rejected_cosine", values={"cosine": -0.0214}),
        ClientOutcome(9, "rejected_cosine", "cosine -0.0311 is negative", values={"cosine": -0.031}),
        ClientOutcome(4, "invalid", "norm 9e9"),
        ClientOutcome(5, "missing"),
    ]
    assert exclusions(outcomes) == [
        "client 17: rejected cosine (cosine -0.021)",
        "client 9: rejected cosine (cosine -0.0311 is negative)",
        "client 4: invalid (norm 9e9)",
        "client 5: missing",
    ]
