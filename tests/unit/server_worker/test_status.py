"""The status of a run on the board."""

from typing import Any

from server_worker.watch.events import ClientOutcome
from server_worker.watch.notices import Notice
from server_worker.watch.status import StatusTeller


def test_the_number_of_wanted_answers_is_known_before_the_first_answer() -> None:
    facts: dict[str, Any] = {}
    teller = StatusTeller(lambda **shown: facts.update(shown), 3)
    teller.run_started(1, 10)
    teller.phase(1, "wait")
    assert (facts["answered"], facts["selected"]) == (0, 3)
    teller.update_arrived(1, ClientOutcome(7, "accepted"), 1, 5)  # more clients were asked
    assert (facts["answered"], facts["selected"]) == (1, 5)
    teller.phase(2, "wait")
    assert (facts["answered"], facts["selected"]) == (0, 3)


def test_a_notice_is_cut() -> None:
    facts: dict[str, Any] = {}
    StatusTeller(lambda **shown: facts.update(shown), 3).note(Notice("x" * 1000, 4))
    assert facts["note"].startswith("round 4: xxx")
    assert len(facts["note"]) == 300
