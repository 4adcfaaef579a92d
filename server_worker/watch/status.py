"""A watcher that writes the run's status to the store's board, for `fedil status` on any machine."""

import time
from collections.abc import Callable
from dataclasses import asdict

from server_worker.watch.events import ClientOutcome, RoundRecord, Watcher
from server_worker.watch.notices import Notice
from server_worker.watch.words import Trouble

_RECENT_ROUNDS = 5
_MOST_TROUBLES = 20
_LONGEST_NOTE = 300


class StatusTeller(Watcher):
    def __init__(self, tell: Callable[..., None], expected: int) -> None:
        """`expected`: answers wanted, until the first answer of a round says how many clients were asked"""
        self._tell, self._expected = tell, expected
        self._rounds: list[dict[str, object]] = []
        self.last: dict[str, object] = {}
        """What is told of the last rounds"""

    def run_started(self, first_round: int, rounds: int) -> None:
        self._tell(state="running", round=first_round, rounds=rounds)

    def phase(self, round_number: int, name: str) -> None:
        self._tell(round=round_number, phase=name, answered=0, selected=self._expected, epochs=None)

    def epochs(self, done: int, total: int, left_seconds: float) -> None:
        self._tell(epochs={"done": done, "total": total, "ends": time.time() + left_seconds})

    def update_arrived(self, _round: int, _outcome: ClientOutcome, answered: int, selected: int) -> None:
        self._tell(answered=answered, selected=selected)

    def round_closed(self, record: RoundRecord) -> None:
        self._rounds = [*self._rounds, record.headline][-_RECENT_ROUNDS:]
        self.last = {"recent": self._rounds, "verdict": record.verdict}
        self._tell(**self.last)

    def troubles(self, troubles: tuple[Trouble, ...]) -> None:
        self._tell(troubles=[asdict(trouble) for trouble in troubles[:_MOST_TROUBLES]])

    def note(self, notice: Notice) -> None:
        self._tell(note=str(notice)[:_LONGEST_NOTE])
