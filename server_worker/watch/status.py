"""What the board says of a run, so that `fedil status` on any machine can show it."""

from collections.abc import Callable

from server_worker.watch.events import ClientOutcome, RoundRecord

_ROUNDS_TOLD = 5


class StatusTeller:
    def __init__(self, tell: Callable[..., None], expected: int) -> None:
        """`expected`: answers in a round of which nothing else is known yet"""
        self._tell, self._expected = tell, expected
        self._rounds: list[dict[str, object]] = []

    def run_started(self, first_round: int, rounds: int) -> None:
        self._tell(state="running", round=first_round, rounds=rounds)

    def phase(self, round_number: int, name: str) -> None:
        self._tell(round=round_number, phase=name, answered=0, selected=self._expected)

    def update_arrived(self, _round: int, _outcome: ClientOutcome, answered: int, selected: int) -> None:
        self._tell(answered=answered, selected=selected)

    def round_closed(self, record: RoundRecord) -> None:
        told = {
            "round": record.round,
            "accuracy": dict(record.accuracy),
            "delta_norm": record.delta_norm,
            "accepted": record.accepted,
            "selected": record.selected,
            "seconds": record.seconds.get("total"),
        }
        self._rounds = [*self._rounds, told][-_ROUNDS_TOLD:]
        self._tell(recent=self._rounds, verdict=record.verdict)

    def note(self, text: str) -> None:
        self._tell(note=text[:300])
