"""The lines of a server's log."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_config.process.logs import set_up_logs
from fedil_model.methods import find_method
from server_worker.watch.events import ClientOutcome, Watcher
from server_worker.watch.log import LogWatcher
from server_worker.watch.notices import Notice
from server_worker.watch.pace import EpochTeller, Every
from tests.unit.ops.records import make_record


class WrittenLog:
    def __init__(self, watcher: LogWatcher, log: Path) -> None:
        self.watcher, self._log = watcher, log

    def last(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._log.read_text("utf-8").splitlines()[-1])
        return found

    def where(self) -> tuple[str | None, int | None, int | None]:
        last = self.last()
        return last["run"], last["round"], last["client"]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[WrittenLog]:
    with set_up_logs("json", "debug", tmp_path / "log") as logs:
        yield WrittenLog(LogWatcher("r", find_method("fedil").display, logs.always), tmp_path / "log")


@pytest.mark.parametrize(("first", "word"), [(1, "started"), (3, "resumed")])
def test_a_resumed_run_is_distinguished_from_a_new_one(log: WrittenLog, first: int, word: str) -> None:
    log.watcher.run_started(first, 9)
    assert log.last()["message"] == f"{word}: round {first} of 9 is next"


@pytest.mark.parametrize(
    ("notice", "where", "level", "message"),
    [
        (Notice("late", 4, 7), ("r", 4, 7), "WARNING", "late"),
        (Notice("no update was accepted", 4), ("r", 4, None), "WARNING", "no update was accepted"),
        (Notice("round 4, client 7: late"), ("r", 5, None), "WARNING", "round 4, client 7: late"),
        (Notice("site north is back", is_trouble=False), ("r", 5, None), "INFO", "site north is back"),
    ],
    ids=lambda value: str(value) if isinstance(value, Notice) else "",
)
def test_a_notice_brings_its_round_client_and_severity(
    log: WrittenLog, notice: Notice, where: tuple[str, int, int | None], level: str, message: str
) -> None:
    log.watcher.phase(5, "wait")
    log.watcher.note(notice)
    assert (log.where(), log.last()["level"], log.last()["message"]) == (where, level, message)


def test_before_the_first_round_a_line_has_no_round(log: WrittenLog) -> None:
    log.watcher.phase(0, "pretrain")
    assert (log.where(), log.last()["level"]) == (("r", None, None), "INFO")
    log.watcher.phase(1, "wait")
    assert (log.where(), log.last()["level"]) == (("r", 1, None), "DEBUG")


@pytest.mark.parametrize(
    ("outcome", "level", "message"),
    [
        (ClientOutcome(7, "accepted", values={"cosine": 0.5}), "INFO", "accepted, cosine 0.500; 1 of 4"),
        (
            ClientOutcome(7, "accepted", values={"cosine": 0.5}, staleness=2),
            "INFO",
            "accepted, cosine 0.500, 2 versions old; 1 of 4",
        ),
        (
            ClientOutcome(7, "rejected_cosine", values={"cosine": -0.25}),
            "INFO",
            "rejected_cosine, cosine -0.250; 1 of 4",
        ),
        (ClientOutcome(7, "refused", detail="no data"), "WARNING", "refused (no data); 1 of 4"),
        (
            ClientOutcome(7, "invalid", "NaN", values={"cosine": float("nan")}),
            "WARNING",
            "invalid, cosine nan (NaN); 1 of 4",
        ),
        (ClientOutcome(7, "missing", detail="gone"), "INFO", "missing (gone); 1 of 4"),
    ],
    ids=lambda value: value.outcome if isinstance(value, ClientOutcome) else "",
)
def test_each_outcome_is_logged_with_its_values_and_reason(
    log: WrittenLog, outcome: ClientOutcome, level: str, message: str
) -> None:
    log.watcher.update_arrived(3, outcome, 1, 4)
    last = log.last()
    assert (log.where(), last["level"], last["message"]) == (("r", 3, 7), level, message)
    assert (last["outcome"], last["detail"]) == (outcome.outcome, outcome.detail or None)
    cosine = outcome.values.get("cosine")
    assert last.get("cosine") == (None if outcome.outcome == "invalid" else cosine)


def test_a_round_that_closes_during_the_next_has_its_own_number(log: WrittenLog) -> None:
    log.watcher.phase(5, "server_step")
    record = make_record(4)
    log.watcher.round_closed(record)
    last = log.last()
    assert log.where() == ("r", 4, None)
    assert last["message"].startswith(
        f"closed: accepted {record.accepted} of {record.selected}, update size 0.425 (steady), "
    )
    assert f"accuracy: global model {100 * record.accuracy['global']:.2f} %, server model " in last["message"]
    assert last["message"].endswith(f"rounds left: {record.rounds - 4}")
    assert last["accuracy"] == dict(record.accuracy)


def test_a_long_training_before_the_first_round_tells_how_far_it_is_now_and_then(log: WrittenLog) -> None:
    now = [0.0]
    told: list[tuple[int, float]] = []

    class Seen(Watcher):
        def epochs(self, done: int, total: int, left_seconds: float) -> None:
            assert total == 60
            told.append((done, left_seconds))

    teller = EpochTeller(Seen(), lambda: now[0])
    for epoch in range(1, 61):
        now[0] += 0.25
        teller(epoch, 60)
    assert told[:2] == [(4, 14.0), (8, 13.0)], "once a second"
    assert told[-1] == (60, 0.0)

    log.watcher.phase(0, "pretrain")
    log.watcher.epochs(12, 60, 48.0)
    assert log.last()["message"] == "server learns from the labels first", "too early for a line"
    log.watcher._epochs_due = Every(0.0)
    log.watcher.epochs(12, 60, 48.0)
    last = log.last()
    assert (last["message"], last["epoch"], last["epochs"]) == ("epoch 12 of 60, about 48 s left", 12, 60)
