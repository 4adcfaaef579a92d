"""What a person sees of a study while it runs, and its table at the end."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from ops.cli.view.ending import duration
from ops.cli.view.rows import percent
from ops.study.results import accuracy_words
from ops.study.runner import Progress


class StudyView:
    """A live table on a terminal; elsewhere a line whenever a cell's state changes."""

    def __init__(self, quiet: bool) -> None:
        self._console = Console(file=sys.stderr)
        self._began = time.monotonic()
        self._states: dict[str, str] = {}
        self._first: int | None = None
        is_live = self._console.is_terminal and not quiet
        self.live = Live(console=self._console, auto_refresh=False) if is_live else None
        """Draws within its context"""
        self._quiet = quiet

    def show(self, progress: Sequence[Progress]) -> None:
        if self.live:
            self.live.update(self._table(progress), refresh=True)
            return
        for one in progress:
            if not self._quiet and self._states.get(one.cell.name, "waiting") != one.state:
                self._console.print(_line(one), highlight=False, soft_wrap=True)
            self._states[one.cell.name] = one.state

    def _table(self, progress: Sequence[Progress]) -> Table:
        done = sum(one.state in ("done", "failed") for one in progress)
        left = self._left(progress)
        title = f"{done} of {len(progress)} runs, {duration(time.monotonic() - self._began)}"
        table = Table(title=title + (f", about {duration(left)} left" if left is not None else ""))
        for heading in ("variant", "seed", "state", "round", "accuracy", "CPU s"):
            table.add_column(heading, justify="left" if heading in ("variant", "state") else "right")
        for one in progress:
            state = f"failed: {one.reason}" if one.state == "failed" else one.state
            rounds = f"{one.round} / {one.rounds}" if one.round else ""
            cpu = f"{one.cpu_seconds:.0f}" if one.round else ""
            accuracy = percent(one.accuracy) if one.accuracy is not None else ""
            table.add_row(one.cell.variant, str(one.cell.seed), state, rounds, accuracy, cpu)
        return table

    def _left(self, progress: Sequence[Progress]) -> float | None:
        """From the share of rounds that this process has seen pass"""
        total = sum(one.rounds for one in progress if one.state != "failed")
        passed = sum(one.round for one in progress if one.state != "failed")
        self._first = passed if self._first is None else self._first
        gained = passed - self._first
        return (time.monotonic() - self._began) * (total - passed) / gained if gained > 0 else None


def _line(one: Progress) -> str:
    name = f"{one.cell.variant} seed {one.cell.seed}"
    if one.state == "failed":
        return f"{name}: failed: {one.reason}"
    if one.state == "done":
        return f"{name}: done, {percent(one.accuracy)} after {one.round} rounds, {one.cpu_seconds:.0f} CPU s"
    return f"{name}: {one.state}"


def print_table(results: Mapping[str, Any]) -> None:
    table = Table()
    for heading in ("variant", "accuracy, %", "seeds", "rounds", "CPU s", "wall s", "MB sent", "MB received"):
        table.add_column(heading, justify="left" if heading == "variant" else "right", no_wrap=True)
    for row in results["table"]:
        numbers = (row[key] for key in ("rounds", "cpu_seconds", "seconds"))
        sizes = (row[key] for key in ("megabytes_sent", "megabytes_received"))
        table.add_row(
            row["variant"],
            accuracy_words(row),
            str(row["seeds"]),
            *("–" if value is None else f"{value:.0f}" for value in numbers),
            *("–" if value is None else f"{value:.1f}" for value in sizes),
        )
    terminal = Console()
    (terminal if terminal.is_terminal else Console(width=120)).print(table)
