"""The state of a run for its live page: written in the run's thread, read in threads of the web server.

Rounds are kept as encoded rows and sent in parts. A page sends the number of the last round that it has; the token
`life` changes when earlier rounds are no longer valid, after a restart or when rounds are repeated.

A standby server has no rounds of its own: at each request it reads what the leader has added to the history.
"""

import json
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from broker_config.process.logs import plain
from broker_config.protocol.errors import FedILError
from server_worker.run.folder import RunDir, read_baseline
from server_worker.run.history import HistoryTail, read_records
from server_worker.run.recipe import Recipe
from server_worker.watch import page_rows as rows
from server_worker.watch.events import ClientOutcome, RoundRecord, Watcher
from server_worker.watch.notices import Notice
from server_worker.watch.survey import Survey
from server_worker.watch.words import Trouble

MOST_ROUNDS = 200
_MOST_BYTES = 250_000
"""Of one answer, a quarter of that when compressed: a slow link must receive it before the web server's time-out. The
page asks again for the rest."""
_MOST_NOTES = 200
_NUMBERED_LINE = re.compile(rb'\{"round": (\d+),')


@dataclass
class _OpenRound:
    """Answers that have arrived; shown until the round's record comes, with its accuracy."""

    round: int
    began: float
    selected: int = 0
    answered: int = 0
    outcomes: list[ClientOutcome] = field(default_factory=list)


class LiveRun(Watcher):
    def __init__(self, run: str, recipe: Recipe, history: Path) -> None:
        self._recipe, self._history = recipe, history
        self._encoder = rows.Rows(recipe.spec.display)
        self._lock = threading.Lock()
        self._about = rows.about(run, recipe)
        self._abouts = 1
        self._state: dict[str, Any] = {"state": "starting", "since": time.time(), "reason": ""}
        self._phase: dict[str, Any] | None = None
        self._open: dict[int, _OpenRound] = {}
        self._fleet: dict[str, Any] | None = None
        self._surveys = 0
        self._troubles: list[dict[str, Any]] = []
        self._notes: deque[tuple[int, float, str]] = deque(maxlen=_MOST_NOTES)
        self._noted = 0
        self._rows: dict[int, bytes] = {}
        """By round, in order"""
        self._restore(below=None)

    # ---- written by the run ----------------------------------------------------------------------------------

    def enter(self, state: str, reason: str = "") -> None:
        """States: starting, standby, running, done, stopped, failed"""
        with self._lock:
            reason = rows.cut(reason, rows.LONGEST_TEXT)
            self._state = {"state": state, "since": time.time(), "reason": reason}

    def learn(self, **facts: Any) -> None:
        """Facts: class_names, baseline, rounds"""
        with self._lock:
            self._about = {**self._about, **facts}  # a new dict: a request may be encoding the old one
            self._abouts += 1

    def survey(self, survey: Survey) -> None:
        fleet = rows.fleet(survey)
        with self._lock:
            self._fleet = fleet
            self._surveys += 1

    def run_started(self, first_round: int, rounds: int) -> None:
        """Rounds after the checkpoint from which the run resumes are repeated."""
        self._restore(below=first_round)
        self.learn(rounds=rounds)

    def phase(self, round_number: int, name: str) -> None:
        now = time.time()
        with self._lock:
            self._phase = {"round": round_number, "name": name, "since": now, "epochs": None}
            if name == "server_step":
                last = round_number - 1
                self._open = {number: kept for number, kept in self._open.items() if number == last}
                self._open[round_number] = _OpenRound(round_number, now)

    def epochs(self, done: int, total: int, left_seconds: float) -> None:
        told = {"done": done, "total": total, "ends": time.time() + left_seconds}
        with self._lock:
            if self._phase is not None:
                self._phase = {**self._phase, "epochs": told}

    def update_arrived(self, round_number: int, outcome: ClientOutcome, answered: int, selected: int) -> None:
        with self._lock:
            opened = self._open.setdefault(round_number, _OpenRound(round_number, time.time()))
            opened.answered, opened.selected = answered, selected
            opened.outcomes.append(outcome)

    def round_closed(self, record: RoundRecord) -> None:
        row = self._encoder.encode(record)
        with self._lock:
            if record.round <= self._last_round():
                self._forget_from(record.round)
            self._rows[record.round] = row
            self._open.pop(record.round, None)

    def troubles(self, troubles: tuple[Trouble, ...]) -> None:
        shown = [{**asdict(one), "words": rows.cut(one.words, rows.LONGEST_TEXT)} for one in troubles]
        with self._lock:
            self._troubles = shown[: rows.MOST_SITES]

    def note(self, notice: Notice) -> None:
        with self._lock:
            self._noted += 1
            self._notes.append((self._noted, time.time(), rows.cut(str(notice), rows.LONGEST_TEXT)))

    def _restore(self, below: int | None) -> None:
        # Before the records are read: lines added meanwhile are read again and not missed.
        tail = HistoryTail(self._history)
        records = (r for r in read_records(self._history) if below is None or r.round < below)
        kept = {record.round: self._encoder.encode(record) for record in records}
        baseline = _read_baseline(self._history)
        with self._lock:
            self._life = secrets.token_hex(6)
            self._rows = dict(sorted(kept.items()))
            self._open = {}
            self._tail = tail
        if baseline is not None:
            self.learn(baseline=baseline)

    def _follow(self) -> None:
        for line in self._tail.new_lines(lambda: self._forget_from(0)):
            last = self._last_round()
            numbered = _NUMBERED_LINE.match(line)
            if numbered and int(numbered[1]) <= last:
                continue
            # A server that begins to lead reports a damaged line; here it is skipped.
            with suppress(ValueError):
                record = RoundRecord.from_fields(json.loads(line))
                if record.round > last:
                    self._rows[record.round] = self._encoder.encode(record)

    def _last_round(self) -> int:
        return next(reversed(self._rows), 0)

    def _forget_from(self, first: int) -> None:
        self._rows = {number: row for number, row in self._rows.items() if number < first}
        self._life = secrets.token_hex(6)

    # ---- read by the page ------------------------------------------------------------------------------------

    def state(self, query: Mapping[str, str]) -> dict[str, Any]:
        """`after`: the last round that the page has; `about`, `fleet` and `note`: the counters of what it has. All are
        ignored if its `life` is another. Raises ValueError."""
        known = {name: _number(query, name) for name in ("after", "about", "fleet", "note")}
        with self._lock:
            if self._state["state"] == "standby":
                self._follow()
            if query.get("life", self._life) != self._life:
                known = dict.fromkeys(known, 0)
            wanted = [row for number, row in self._rows.items() if number > known["after"]]
            page = _first_page(wanted)
            answer: dict[str, Any] = {
                "life": self._life,
                "now": time.time(),
                **self._state,
                "phase": self._phase,
                "troubles": self._troubles,
                "open": [{**vars(one), **self._encoder.clients(one.outcomes)} for one in self._open.values()],
                "more": len(page) < len(wanted),
                "notes": [list(note) for note in self._notes if note[0] > known["note"]],
            }
            if known["about"] != self._abouts:
                answer |= {"about": self._about, "abouts": self._abouts}
            if self._fleet and known["fleet"] != self._surveys:
                answer |= {"fleet": self._fleet, "surveys": self._surveys}
        # Outside of the lock: a first part has thousands of dots, and the run must not wait for it.
        answer["rounds"] = [json.loads(row) for row in page]
        return answer

    def round(self, query: Mapping[str, str]) -> dict[str, Any]:
        """All of one round, with the outcome of every client: read from the history, since it is rarely needed. Raises
        ValueError."""
        if "number" not in query:
            raise ValueError("which round? ask for /api/round?number=1")
        number = _number(query, "number")
        fields = _find_line(self._history, number)
        if fields is None:
            with self._lock:
                known = f"{next(iter(self._rows))} to {self._last_round()}" if self._rows else "none yet"
            raise ValueError(f"round {number} is not in the history; rounds there: {known}")
        return {name: plain(value) for name, value in fields.items()}


def _first_page(wanted: Sequence[bytes]) -> Sequence[bytes]:
    """At least one"""
    sizes = accumulate(map(len, wanted[:MOST_ROUNDS]))
    return wanted[: max(1, sum(size <= _MOST_BYTES for size in sizes))]


def _number(query: Mapping[str, str], name: str) -> int:
    value = query.get(name, "0")
    if not re.fullmatch(r"[0-9]{1,15}", value):
        raise ValueError(f"{name} wants a number, got {rows.cut(value, 40)!r}")
    return int(value)


def _read_baseline(history: Path) -> float | None:
    """Accuracy of training on the labels alone, where it was measured"""
    with suppress(FedILError, OSError):
        return rows.finite(read_baseline(RunDir(history.parent)).get("accuracy"))
    return None


def _find_line(history: Path, number: int) -> dict[str, Any] | None:
    """The last one of this round. Reads a file that may be large, without decoding the other rounds."""
    found = None
    # Lines of many clients are long: with a small buffer they would be read in hundreds of pieces.
    with suppress(FileNotFoundError), history.open("rb", buffering=1 << 20) as lines:
        for line in lines:
            numbered = _NUMBERED_LINE.match(line)
            if numbered and int(numbered[1]) != number:
                continue
            with suppress(ValueError):  # an incomplete line
                fields = json.loads(line)
                if isinstance(fields, dict) and fields.get("round") == number:
                    found = fields
    return found
