"""What a server tells the board of its run."""

from typing import Any

from server_worker.watch.events import ClientOutcome
from server_worker.watch.status import StatusTeller


def test_how_many_answers_are_wanted_is_told_before_the_first_one_comes() -> None:
    facts: dict[str, Any] = {}
    teller = StatusTeller(lambda **told: facts.update(told), 3)
    teller.run_started(1, 10)
    teller.phase(1, "wait")
    assert (facts["answered"], facts["selected"]) == (0, 3)
    teller.update_arrived(1, ClientOutcome(7, "accepted"), 1, 5)  # more were asked
    assert (facts["answered"], facts["selected"]) == (1, 5)
    teller.phase(2, "wait")
    assert (facts["answered"], facts["selected"]) == (0, 3)
