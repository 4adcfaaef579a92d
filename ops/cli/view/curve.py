"""Accuracy by round as text: a sparkline for the live view, a curve for the summary."""

from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"
LABEL_WIDTH = 7


def sparkline(values: Sequence[float], width: int) -> str:
    if not values:
        return ""
    points = squeeze(values, width)
    low, high = min(points), max(points)
    steps = (high - low) or 1.0
    return "".join(BLOCKS[round((value - low) / steps * (len(BLOCKS) - 1))] for value in points)


def curve(
    values: Sequence[float], rounds: Sequence[int], level: float | None, width: int, height: int
) -> list[str]:
    """Lines of a line chart of `values` (shares, labelled in per cent) with a dashed line at `level`."""
    columns = max(8, width - LABEL_WIDTH - 2)
    points = stretch(squeeze(values, columns), columns)
    shown = points if level is None else [*points, level]
    low, high = min(shown), max(shown)
    if high == low:
        low, high = low - 0.005, high + 0.005
    rows = [round((value - low) / (high - low) * (height - 1)) for value in points]
    canvas = [[" "] * len(points) for _ in range(height)]
    if level is not None:
        canvas[round((level - low) / (high - low) * (height - 1))] = list("┄" * len(points))
    draw(rows, canvas)
    shares = [100 * (low + (high - low) * row / (height - 1)) for row in range(height)]
    lines = [
        f"{shares[row]:{LABEL_WIDTH - 2}.1f} % ┤{''.join(canvas[row])}" for row in reversed(range(height))
    ]
    axis = " " * (LABEL_WIDTH + 1) + "└" + "─" * len(points)
    return [*lines, axis, foot(rounds, len(points), "" if level is None else "┄ server-only")]


def foot(rounds: Sequence[int], columns: int, legend: str) -> str:
    first, last = f"round {rounds[0]}", str(rounds[-1])
    room = columns - len(first) - len(last)
    middle = legend if len(legend) + 2 <= room else ""
    return " " * (LABEL_WIDTH + 2) + first + middle.center(room) + last


def draw(rows: Sequence[int], canvas: list[list[str]]) -> None:
    """Box-drawing strokes from each point to the next."""
    for column, row in enumerate(rows):
        before = rows[column - 1] if column else row
        if row == before:
            canvas[row][column] = "─"
            continue
        rising = row > before
        canvas[before][column] = "╯" if rising else "╮"
        canvas[row][column] = "╭" if rising else "╰"
        for between in range(min(row, before) + 1, max(row, before)):
            canvas[between][column] = "│"


def squeeze(values: Sequence[float], width: int) -> list[float]:
    """At most `width` points: means of neighbours, and the last value as it is."""
    if len(values) <= width:
        return list(values)
    edges = [index * len(values) // width for index in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    return [*means[:-1], values[-1]]


def stretch(points: Sequence[float], width: int) -> list[float]:
    """A short run is widened, but not so much that it becomes a staircase."""
    times = max(1, min(8, width // len(points)))
    return [point for point in points for _ in range(times)]
