"""A run's rounds, one JSON line each, in an append-only file that survives a crash."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker_config.process.durable import append_line, write_atomically
from broker_config.protocol.errors import FedILError
from server_worker.watch.events import ClientOutcome, RoundRecord, Watcher


def read_history(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines; a half-written last one, left by a crash, is skipped."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield json.loads(line)
            except ValueError as error:
                if next(file, None) is not None:
                    raise FedILError(f"{path}, line {number} is damaged ({error}): take it out") from error


def read_records(path: Path) -> Iterator[RoundRecord]:
    for number, fields in enumerate(read_history(path), start=1):
        try:
            yield RoundRecord.from_fields(fields)
        except ValueError as error:
            raise FedILError(f"{path}, line {number} is no round ({error}): take it out") from error


class HistoryTail:
    """What is new in a history that another process writes: its whole lines, each of them once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        with suppress(OSError):
            self._file = path.stat().st_ino
        self.offset = 0
        """Up to which it has been read"""

    def new_lines(self, on_another_file: Callable[[], None]) -> Iterator[bytes]:
        """A server that resumes writes the history anew: it is read from its beginning then, and what was known of it
        is no longer true."""
        with suppress(OSError), self._path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._file or found.st_size < self.offset:
                self._file, self.offset = found.st_ino, 0
                on_another_file()
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # the rest of it is yet to come
                self.offset += len(line)
                yield line


class HistoryWriter(Watcher):
    """Hands every event on to another watcher, and keeps each round once. `on_answer` is called for every
    answer of a client."""

    def __init__(self, path: Path, watcher: Watcher, on_answer: Callable[[], None] = lambda: None) -> None:
        super().__init__(watcher)
        self._path, self._on_answer = path, on_answer
        self._written = 0

    def run_started(self, first_round: int, rounds: int) -> None:
        """Rounds after the checkpoint that the run resumes from will be played again."""
        write_atomically(self._path, self._before(first_round))
        super().run_started(first_round, rounds)

    def _before(self, first_round: int) -> Iterator[bytes]:
        self._written = 0
        for fields in read_history(self._path):
            if fields["round"] < first_round:
                self._written = fields["round"]
                yield json.dumps(fields).encode() + b"\n"

    def update_arrived(self, round_number: int, outcome: ClientOutcome, answered: int, selected: int) -> None:
        self._on_answer()
        super().update_arrived(round_number, outcome, answered, selected)

    def round_closed(self, record: RoundRecord) -> None:
        if record.round > self._written:
            append_line(self._path, record.to_json().encode())
            self._written = record.round
            super().round_closed(record)
