"""The view for a terminal: a table of the last rounds, two progress bars, a sparkline."""

import time
from collections import deque
from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column as TableColumn
from rich.table import Table
from rich.text import Text

from ops.cli.view.curve import sparkline
from ops.cli.view.ending import print_summary
from ops.cli.view.lines import STOPPING, QuietView
from ops.cli.view.rows import ACCEPTED, GAP, Column, Columns, exclusions, heading
from ops.inspect.summary import Summary
from server_worker.run.history import read_records
from server_worker.run.recipe import Recipe
from server_worker.watch.events import ClientOutcome, RoundRecord
from server_worker.watch.notices import Notice
from server_worker.watch.palette import TERMINAL
from server_worker.watch.words import Trouble, duration, evaluated_words, phase_words

LINES_AROUND_THE_TABLE = 13
MOST_ROWS = 15
MARGIN = 3
"""A terminal echoes ^C at the cursor. In the last column that would wrap and shift the frame."""


class TailColumn(ProgressColumn):
    """After the bar: how many of how many, and the time left where it is known; nothing without a total."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text()
        text = f"{task.completed:.0f}/{task.total:.0f}{task.fields['unit']}"
        known = not task.fields["unit"] and not task.fields["stopped"] and task.time_remaining
        if left := task.fields["left"] or known:
            text += f", {duration(left)} left"
        return Text(text, no_wrap=True)


class LiveView(QuietView):
    def __init__(self, recipe: Recipe, title: str, history: Path, console: Console | None = None) -> None:
        """`history`: of the run, which may go on with rounds that it has"""
        display = recipe.spec.display
        self._title, self._expected = title, recipe.federation.expected
        self._history, self._evaluated = history, evaluated_words(recipe.evaluate_every)
        self._columns, self._shipped = Columns(display), f"{display.models[0].label} "
        self._console = console or Console()
        self._records: list[RoundRecord] = []
        self._notes: deque[str] = deque(maxlen=2)
        self._troubles: tuple[Trouble, ...] = ()
        self._stopping = False
        self._ended = False
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TailColumn(TableColumn(no_wrap=True)),
        )
        self._progress = Progress(*columns, console=self._console, expand=True)
        self._run = self._progress.add_task("rounds", total=None, unit="", left=None, stopped=False)
        self._round = self._new_bar("starting", None)
        self._live = Live(get_renderable=self.frame, console=self._console, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended = True
        self._live.stop()

    def run_started(self, first_round: int, rounds: int) -> None:
        self._records = [record for record in read_records(self._history) if record.round < first_round]
        self._progress.update(self._run, total=rounds, completed=first_round - 1)

    def phase(self, round_number: int, name: str) -> None:
        words = phase_words(name)
        # A bar without a total pulses: the server's own phases have no parts to count.
        total = self._expected if name == "wait" else None
        self._progress.remove_task(self._round)
        self._round = self._new_bar(f"round {round_number}: {words}" if round_number else words, total)

    def _new_bar(self, description: str, total: int | None) -> TaskID:
        return self._progress.add_task(description, total=total, unit=" answered", left=None, stopped=False)

    def epochs(self, done: int, total: int, left_seconds: float) -> None:
        self._progress.update(self._round, completed=done, total=total, unit=" epochs", left=left_seconds)

    def update_arrived(self, _round: int, _outcome: ClientOutcome, answered: int, selected: int) -> None:
        """Exclusions are shown when the round closes, together with the clients that never answered."""
        self._progress.update(self._round, completed=answered, total=selected)

    def round_closed(self, record: RoundRecord) -> None:
        self._records.append(record)
        self._notes.extend(f"round {record.round}: {text}" for text in exclusions(record.outcomes))
        self._progress.update(self._run, completed=record.round)

    def troubles(self, troubles: tuple[Trouble, ...]) -> None:
        self._troubles = troubles
        self._progress.update(self._run, stopped=any(trouble.stops for trouble in troubles))

    def note(self, notice: Notice) -> None:
        self._notes.append(str(notice))

    def stopping(self) -> None:
        self._stopping = True

    def finish(self, summary: Summary, recipe: Recipe, resume_line: str) -> None:
        print_summary(summary, recipe, resume_line, self._console)

    def frame(self) -> RenderableType:
        """Drawn in rich's own thread while the run's thread adds notices and rounds, hence the copies."""
        title = Text.assemble(
            ("FedIL ", "bold"), (self._title, TERMINAL["quiet"]), overflow="ellipsis", no_wrap=True
        )
        parts: list[RenderableType] = [title]
        if not self._ended:
            now = time.time()
            parts += [Text(trouble.sentence(now), style=TERMINAL["bad"]) for trouble in self._troubles]
        if self._records:
            parts += [self._table(), self._sparkline()]
            if self._evaluated:
                parts.append(Text(self._evaluated, style=TERMINAL["quiet"]))
        if not self._ended:
            parts.append(self._progress)
        parts += [
            Text(note, style=TERMINAL["quiet"], overflow="ellipsis", no_wrap=True)
            for note in tuple(self._notes)
        ]
        if self._stopping and not self._ended:
            parts.append(Text(STOPPING, style=TERMINAL["fair"]))
        return Constrain(Group(*parts), self._width)

    @property
    def _width(self) -> int:
        return self._console.width - MARGIN

    def _table(self) -> Table:
        columns = self._columns.that_fit(self._width, self._records[-1].accuracy)
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(
                "\n".join(heading(column.title)),
                vertical="bottom",
                width=column.width,
                justify="right",
                no_wrap=True,
            )
        rows = max(3, min(MOST_ROWS, self._console.height - LINES_AROUND_THE_TABLE))
        for record in self._records[-rows:]:
            table.add_row(*(self._cell(column, record) for column in columns))
        return table

    def _cell(self, column: Column, record: RoundRecord) -> Text:
        style = ""
        best = max(self._accuracies(), default=None)
        if column is self._columns.shipped and record.accuracy.get("global") == best:
            style = TERMINAL["good"]
        elif column is ACCEPTED and record.accepted < record.selected:
            style = TERMINAL["fair"]
        return Text(column.cell(record), style=style)

    def _sparkline(self) -> Text:
        values = self._accuracies()
        if not values:
            return Text()
        ends = f" {100 * values[0]:.1f} → {100 * values[-1]:.1f} %"
        width = max(1, self._width - len(self._shipped) - len(ends) - 1)
        return Text.assemble(
            self._shipped, (sparkline(values, width), TERMINAL["accent"]), ends, no_wrap=True
        )

    def _accuracies(self) -> list[float]:
        return [record.accuracy["global"] for record in self._records if "global" in record.accuracy]
