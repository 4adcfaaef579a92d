from dataclasses import replace

import numpy as np
import pytest

from broker_config.protocol.messages import Refusal, Update
from server_worker.round.selection import select_clients
from server_worker.round.state import OpenRound
from server_worker.watch.events import ClientOutcome

OPEN = OpenRound(run="r", number=4, activations={1: 2, 5: 1, 9: 3}, needed=3, quorum=2, deadline=100.0)


def answer(client: int, activation: int, number: int = 4, run: str = "r", base_version: int = 4) -> Update:
    return Update(run, number, client, activation, base_version, 10, 5, {"x": np.zeros(1)})


@pytest.mark.parametrize(
    ("given", "objection"),
    [
        (answer(1, 2), None),
        (Refusal("r", 4, 5, 1, "why", "because"), None),
        (answer(1, 2, run="q"), "other_run"),
        (answer(1, 1, number=3), "late"),
        (answer(1, 2, number=5), "not_asked"),
        (answer(1, 1), "not_asked"),
        (answer(2, 2), "not_asked"),
        (answer(1, 2, base_version=3), "not_asked"),
    ],
)
def test_an_answer_belongs_to_the_round_or_the_objection_has_a_name(
    given: Update | Refusal, objection: str | None
) -> None:
    assert OPEN.objection(given) == objection


def test_a_client_counts_once() -> None:
    once = OPEN.record(ClientOutcome(1, "accepted"))
    assert once.objection(answer(1, 2)) == "duplicate"
    assert once.record(ClientOutcome(1, "invalid")) is once
    assert once.record(ClientOutcome(77, "accepted")) is once


def test_who_was_given_up_may_still_answer_while_the_round_is_open() -> None:
    given_up = OPEN.record(ClientOutcome(1, "missing"))
    assert given_up.awaited == (5, 9)
    assert given_up.objection(answer(1, 2)) is None
    assert given_up.record(ClientOutcome(1, "accepted")) == OPEN.record(ClientOutcome(1, "accepted"))


def test_a_round_in_which_too_few_have_learned_waits_or_asks_more() -> None:
    """A site that vanishes, refuses or sends nonsense makes no model of one client's update."""
    one = OPEN.record(ClientOutcome(1, "accepted"))
    for rest in ("missing", "refused", "invalid"):
        settled = one.record(ClientOutcome(5, rest)).record(ClientOutcome(9, rest))
        assert settled.is_settled
        assert not settled.may_close(0.0)
        more = replace(settled, over=(0,) * 7 + (4,)).also([7])
        assert not more.is_settled
        assert more.awaited == (7,)
        assert more.objection(answer(7, 5)) is None
        enough = more.record(ClientOutcome(7, "rejected_cosine"))
        assert enough.may_close(0.0)
        assert [outcome.client for outcome in enough.outcomes()] == [1, 5, 7, 9]


def test_what_was_settled_before_is_late() -> None:
    again = replace(OPEN, activations={5: 2, 7: 1}, over=(0, 2, 0, 0, 0, 1, 0, 0, 0, 3))
    assert again.objection(answer(1, 2)) == "late"
    assert again.objection(answer(5, 1)) == "late"
    assert again.objection(answer(5, 2)) is None
    assert again.objection(answer(1, 3)) == "not_asked"


def test_it_closes_when_all_have_answered_or_the_quorum_has_at_the_deadline() -> None:
    one = OPEN.record(ClientOutcome(1, "accepted"))
    two = one.record(ClientOutcome(5, "rejected_cosine"))
    three = two.record(ClientOutcome(9, "invalid"))
    assert not one.may_close(100.0)
    assert one.overdue(100.0)
    assert not two.may_close(99.9)
    assert two.may_close(100.0)
    assert not two.overdue(100.0)
    assert three.may_close(0.0)


def test_with_over_selection_it_closes_when_enough_have_answered() -> None:
    over = OpenRound(1, "r", dict.fromkeys(range(5), 1), needed=2, quorum=2, deadline=9.0)
    over = over.record(ClientOutcome(3, "accepted")).record(ClientOutcome(4, "accepted"))
    assert over.may_close(0.0)


def test_what_is_invalid_does_not_close_a_round_over_those_who_still_learn() -> None:
    over = OpenRound(1, "r", dict.fromkeys(range(4), 1), needed=2, quorum=2, deadline=9.0)
    over = over.record(ClientOutcome(0, "invalid")).record(ClientOutcome(1, "invalid"))
    assert not over.may_close(0.0)
    assert (
        over.record(ClientOutcome(2, "accepted")).record(ClientOutcome(3, "rejected_cosine")).may_close(0.0)
    )
    nobody = over.record(ClientOutcome(2, "refused")).record(ClientOutcome(3, "invalid"))
    assert nobody.is_settled
    assert not nobody.may_close(0.0)  # others may be asked


def test_the_silent_are_explained_too() -> None:
    outcomes = OPEN.record(ClientOutcome(5, "accepted")).outcomes()
    assert [(o.client, o.outcome) for o in outcomes] == [(1, "missing"), (5, "accepted"), (9, "missing")]
    assert "no answer" in outcomes[0].detail


def test_selection_repeats_itself_and_changes_with_round_and_seed() -> None:
    chosen = select_clients(0, 1, range(100), 5)
    assert chosen == select_clients(0, 1, range(100), 5)
    assert len(set(chosen)) == 5
    assert chosen != select_clients(0, 2, range(100), 5)
    assert chosen != select_clients(1, 1, range(100), 5)


def test_over_many_rounds_everybody_is_asked_about_equally_often() -> None:
    counts = np.bincount(
        np.concatenate([select_clients(3, t, range(20), 5) for t in range(400)]), minlength=20
    )
    assert counts.min() > 60
    assert counts.max() < 140
