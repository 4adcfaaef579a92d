"""Views for logs, pipes and machines: lines of text, lines of JSON, or only the summary."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from broker_config.process.logs import plain
from ops.cli.view.rows import Columns, exclusions
from ops.inspect.summary import Summary
from server_worker.run.recipe import Recipe
from server_worker.watch.events import RoundRecord, Watcher
from server_worker.watch.notices import Notice
from server_worker.watch.pace import LINES_EVERY_SECONDS, Every
from server_worker.watch.words import OUTSIDE_ROUNDS, epoch_words, evaluated_words, phase_words

STOPPING = "stopping once what is under way is safe; press Ctrl-C again to stop at once"


class QuietView(Watcher):
    """Only the summary; base of the other views: a Watcher with a beginning, an end, and an answer to Ctrl-C."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def stopping(self) -> None:
        """The person has asked to stop. Called by a signal handler, in the middle of anything: it must not print
        through buffers that the interrupted code may be filling."""
        with suppress(OSError):  # a notebook's stderr may have no number
            os.write(sys.stderr.fileno(), f"\nfedil: {STOPPING}\n".encode())

    def finish(self, summary: Summary, recipe: Recipe, resume_line: str) -> None:
        """The run has ended; `resume_line` is the command that continues a stopped one."""
        from ops.cli.view.ending import print_summary

        print_summary(summary, recipe, resume_line)


class PlainView(QuietView):
    """One aligned line per round, elapsed time first."""

    def __init__(self, recipe: Recipe) -> None:
        self._columns = Columns(recipe.spec.display)
        self._evaluated = evaluated_words(recipe.evaluate_every)
        self._started = time.monotonic()
        self._epochs_due = Every(LINES_EVERY_SECONDS)

    def run_started(self, first_round: int, rounds: int) -> None:
        is_over = first_round > rounds
        why = f"; {self._evaluated}" if self._evaluated else ""
        self._print(f"all {rounds} rounds are over" if is_over else f"rounds {first_round} to {rounds}{why}")

    def phase(self, round_number: int, name: str) -> None:
        """Within a round there is a line soon; before the first and after the last, minutes may pass."""
        if round_number == 0 and name in OUTSIDE_ROUNDS:
            self._epochs_due = Every(LINES_EVERY_SECONDS)
            self._print(phase_words(name))

    def epochs(self, done: int, total: int, left_seconds: float) -> None:
        if self._epochs_due():
            self._print(epoch_words(done, total, left_seconds))

    def round_closed(self, record: RoundRecord) -> None:
        self._print(self._columns.log_line(record))
        for text in exclusions(record.outcomes):
            self._print(f"round {record.round}: {text}")

    def note(self, notice: Notice) -> None:
        self._print(str(notice))

    def _print(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:7.1f} s  {text}", flush=True)


class JsonView(QuietView):
    """stdout is for the machine: a line per round and one for the summary. Notices go to stderr."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet

    def round_closed(self, record: RoundRecord) -> None:
        if not self._quiet:
            print(json_line("round", dataclasses.asdict(record)), flush=True)

    def note(self, notice: Notice) -> None:
        if not self._quiet:
            print(f"fedil: {notice}", file=sys.stderr, flush=True)

    def finish(self, summary: Summary, recipe: Recipe, resume_line: str) -> None:  # noqa: ARG002
        values = dataclasses.asdict(summary)
        if summary.stopped:
            values["resume"] = resume_line
        print(json_line("summary", values), flush=True)


def json_line(event: str, values: Mapping[str, Any]) -> str:
    fields = {"event": event, **values}
    return json.dumps(plain(fields), ensure_ascii=False, allow_nan=False)
