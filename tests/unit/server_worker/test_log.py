"""What a server's log says of each event."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_config.process.logs import set_up_logs
from server_worker.watch.events import ClientOutcome
from server_worker.watch.log import LogWatcher
from tests.unit.ops.records import make_record


class Told:
    def __init__(self, watcher: LogWatcher, log: Path) -> None:
        self.watcher, self._log = watcher, log

    def last(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._log.read_text("utf-8").splitlines()[-1])
        return found

    def where(self) -> tuple[str | None, int | None, int | None]:
        last = self.last()
        return last["run"], last["round"], last["client"]


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    with set_up_logs("json", "debug", tmp_path / "log") as logs:
        yield Told(LogWatcher("r", logs.always), tmp_path / "log")


@pytest.mark.parametrize(("first", "word"), [(1, "started"), (3, "resumed")])
def test_a_run_that_goes_on_is_told_from_a_new_one(told: Told, first: int, word: str) -> None:
    told.watcher.run_started(first, 9)
    assert told.last()["message"] == f"{word}: round {first} of 9 is next"


def test_a_note_is_about_the_round_and_client_that_it_names(told: Told) -> None:
    told.watcher.phase(5, "wait")
    told.watcher.note("round 4, client 7: late")
    assert (told.where(), told.last()["message"]) == (("r", 4, 7), "late")
    told.watcher.note("round 5: nobody was accepted")
    assert (told.where(), told.last()["message"]) == (("r", 5, None), "nobody was accepted")
    told.watcher.note("site north has no worker")
    assert (told.where(), told.last()["level"]) == (("r", 5, None), "WARNING")


def test_what_others_say_in_a_note_does_not_count_as_a_name(told: Told) -> None:
    told.watcher.phase(5, "wait")
    told.watcher.note("message refused (digest): \nround 4, client 7: late")
    assert told.where() == ("r", 5, None)


def test_before_the_first_round_there_is_none(told: Told) -> None:
    told.watcher.phase(0, "pretrain")
    assert (told.where(), told.last()["level"]) == (("r", None, None), "INFO")
    told.watcher.phase(1, "wait")
    assert (told.where(), told.last()["level"]) == (("r", 1, None), "DEBUG")


@pytest.mark.parametrize(
    ("outcome", "level", "message"),
    [
        (ClientOutcome(7, "accepted", 0.5), "INFO", "accepted, cosine 0.500; 1 of 4"),
        (
            ClientOutcome(7, "accepted", 0.5, staleness=2),
            "INFO",
            "accepted, cosine 0.500, 2 versions old; 1 of 4",
        ),
        (ClientOutcome(7, "rejected_cosine", -0.25), "INFO", "rejected_cosine, cosine -0.250; 1 of 4"),
        (ClientOutcome(7, "refused", detail="no data"), "WARNING", "refused (no data); 1 of 4"),
        (ClientOutcome(7, "invalid", float("nan"), "NaN"), "WARNING", "invalid, cosine nan (NaN); 1 of 4"),
        (ClientOutcome(7, "missing", detail="gone"), "INFO", "missing (gone); 1 of 4"),
    ],
    ids=lambda value: value.outcome if isinstance(value, ClientOutcome) else "",
)
def test_each_outcome_is_told_with_its_reason(
    told: Told, outcome: ClientOutcome, level: str, message: str
) -> None:
    told.watcher.update_arrived(3, outcome, 1, 4)
    last = told.last()
    assert (told.where(), last["level"], last["message"]) == (("r", 3, 7), level, message)
    assert (last["outcome"], last["detail"]) == (outcome.outcome, outcome.detail or None)
    assert last["cosine"] == (None if outcome.outcome == "invalid" else outcome.cosine)


def test_a_round_that_closes_late_is_told_as_itself(told: Told) -> None:
    told.watcher.phase(5, "server_step")
    record = make_record(4)
    told.watcher.round_closed(record)
    last = told.last()
    assert told.where() == ("r", 4, None)
    assert last["message"].startswith(f"closed: accepted {record.accepted} of {record.selected}, ‖Δθ‖ ")
    assert last["message"].endswith(f"rounds left: {record.rounds - 4}")
    assert last["accuracy"] == dict(record.accuracy)
