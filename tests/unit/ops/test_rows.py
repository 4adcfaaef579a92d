import pytest

from ops.cli.view.rows import columns_that_fit, exclusions, log_line
from server_worker.watch.events import ClientOutcome
from tests.unit.ops.records import make_record


def titles(width: int, with_average: bool = False) -> list[str]:
    return [column.title for column in columns_that_fit(width, with_average)]


def test_eighty_columns_hold_every_column() -> None:
    assert titles(80) == [
        "round",
        "θ′ %",
        "θ₀ %",
        "‖Δθ‖",
        "accepted",
        "pseudo",
        "pure %",
        "credible",
        "seconds",
    ]


def test_the_average_has_a_column_only_when_there_is_one() -> None:
    assert "EMA %" not in titles(200)
    assert "EMA %" in titles(200, with_average=True)


@pytest.mark.parametrize("width", range(5, 90, 5))
def test_columns_never_need_more_than_the_width(width: int) -> None:
    chosen = columns_that_fit(width, with_average=True)
    assert sum(column.width for column in chosen) + 2 * (len(chosen) - 1) <= width
    assert chosen[0].title == "round"


def test_a_narrow_table_keeps_accuracy_and_acceptance() -> None:
    assert titles(24) == ["round", "θ′ %", "accepted"]


def test_log_lines_of_different_rounds_are_aligned() -> None:
    one = log_line(make_record(3))
    two = log_line(make_record(24, delta_norm=0.00002, pseudo_labels=31_000))
    assert [one.index(word) for word in ("θ₀", "‖Δθ‖", "accepted", "pure", "took")] == [
        two.index(word) for word in ("θ₀", "‖Δθ‖", "accepted", "pure", "took")
    ]


def test_what_is_not_known_is_a_dash_and_not_a_zero() -> None:
    line = log_line(make_record(3, accuracy={}, purity={}))
    assert "θ′     –" in line
    assert "pure     –" in line


def test_everyone_who_did_not_count_is_named_with_the_reason() -> None:
    outcomes = [
        ClientOutcome(1, "accepted", 0.4),
        ClientOutcome(2, "projected", -0.1),
        ClientOutcome(17, "rejected_cosine", -0.0214),
        ClientOutcome(9, "rejected_cosine", -0.031, detail="cosine -0.0311 is negative"),
        ClientOutcome(4, "invalid", detail="norm 9e9"),
        ClientOutcome(5, "missing"),
    ]
    assert exclusions(outcomes) == [
        "client 17: rejected cosine (-0.021)",
        "client 9: rejected cosine (cosine -0.0311 is negative)",
        "client 4: invalid (norm 9e9)",
        "client 5: missing",
    ]
