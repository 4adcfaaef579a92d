import pytest

from ops.cli.view.curve import BLOCKS, curve, sparkline, squeeze

RISING = [0.5, 0.6, 0.7, 0.8, 0.9]


def test_a_sparkline_rises_with_its_values() -> None:
    line = sparkline(RISING, width=20)
    assert line[0] == BLOCKS[0]
    assert line[-1] == BLOCKS[-1]
    assert list(line) == sorted(line)


@pytest.mark.parametrize("values", [[], [0.3], [0.3, 0.3]])
def test_a_sparkline_of_little_or_flat_data_does_not_divide_by_zero(values: list[float]) -> None:
    assert len(sparkline(values, width=20)) == len(values)


def test_a_long_run_is_squeezed_into_the_width_and_keeps_its_last_value() -> None:
    values = [index / 1000 for index in range(1000)]
    squeezed = squeeze(values, 37)
    assert len(squeezed) == 37
    assert squeezed[-1] == values[-1]
    assert squeezed == sorted(squeezed)


def test_a_rising_curve_starts_at_the_bottom_left_and_ends_at_the_top_right() -> None:
    lines = curve(RISING, [1, 2, 3, 4, 5], None, width=40, height=5)
    assert lines[0].startswith(" 90.0 % ┤")
    assert lines[0].endswith(" ╭─────")
    assert lines[4].startswith(" 50.0 % ┤──────")
    assert lines[-1].split() == ["round", "1", "5"]


def test_the_baseline_is_drawn_at_its_height_and_named() -> None:
    lines = curve(RISING, [1, 2, 3, 4, 5], 0.7, width=60, height=5)
    assert [index for index, line in enumerate(lines) if "┄" in line] == [2, len(lines) - 1]
    assert "server-only" in lines[-1]


def test_a_baseline_outside_of_the_curve_widens_the_scale() -> None:
    lines = curve(RISING, [1, 2, 3, 4, 5], 0.1, width=40, height=5)
    assert "┄" in lines[4]
    assert lines[4].startswith(" 10.0 %")


@pytest.mark.parametrize("width", [10, 20, 40, 80])
@pytest.mark.parametrize("count", [2, 7, 60, 500])
def test_a_curve_stays_within_its_width(width: int, count: int) -> None:
    values = [0.5 + 0.4 * index / count for index in range(count)]
    lines = curve(values, list(range(1, count + 1)), 0.6, width=width, height=6)
    assert all(len(line) <= max(width, 20) for line in lines[:-1])


def test_a_flat_curve_is_a_line() -> None:
    lines = curve([0.5, 0.5, 0.5], [1, 2, 3], None, width=40, height=5)
    assert sum("──" in line for line in lines[:-2]) == 1
