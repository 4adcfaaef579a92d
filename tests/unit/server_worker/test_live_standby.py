"""The live page of a standby server: it shows what the leader writes to the history that they share."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from ops.cli.view import QuietView
from server_worker.run.history import HistoryWriter
from server_worker.watch.events import RoundRecord
from server_worker.watch.live import LiveRun
from tests.federation import blobs_recipe
from tests.unit.ops.records import make_record


def numbers(answer: dict[str, Any]) -> list[int]:
    return [row["round"] for row in answer["rounds"]]


def standby(tmp_path: Path) -> LiveRun:
    live = LiveRun("blobs-1a2b3c", blobs_recipe(), tmp_path / "history.jsonl")
    live.enter("standby")
    return live


def append(tmp_path: Path, text: str) -> None:
    with (tmp_path / "history.jsonl").open("a", encoding="utf-8") as file:
        file.write(text)


def line(number: int, **changes: Any) -> str:
    return json.dumps(dataclasses.asdict(make_record(number, **changes))) + "\n"


def test_a_standby_shows_a_round_when_its_line_is_complete(tmp_path: Path) -> None:
    append(tmp_path, line(1))
    live = standby(tmp_path)
    before = live.state({})
    assert numbers(before) == [1]
    append(tmp_path, line(2) + line(3)[:50])
    known = {"life": before["life"], "after": "1"}
    assert numbers(live.state(known)) == [2]
    append(tmp_path, line(3)[50:])
    assert numbers(live.state({**known, "after": "2"})) == [3]
    assert numbers(live.state({})) == [1, 2, 3]
    assert live.round({"number": "3"})["round"] == 3


def test_a_standby_that_starts_before_the_first_round_shows_it(tmp_path: Path) -> None:
    live = standby(tmp_path)
    assert numbers(live.state({})) == []
    append(tmp_path, line(1))
    assert numbers(live.state({})) == [1]


def test_a_standby_reads_only_new_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path, "".join(map(line, range(1, 21))))
    live, decoded, read = standby(tmp_path), list[int](), RoundRecord.from_fields
    live.state({})

    def noted(fields: dict[str, Any]) -> RoundRecord:
        decoded.append(fields["round"])
        return read(fields)

    monkeypatch.setattr(RoundRecord, "from_fields", staticmethod(noted))
    offsets = [live._tail.offset]
    for number in (21, 22):
        append(tmp_path, line(number))
        live.state({})
        live.state({})
        offsets.append(live._tail.offset)
    assert decoded == [21, 22]
    assert offsets[1:] == [offsets[0] + len(line(21)), offsets[0] + len(line(21) + line(22))]


def test_a_standby_notices_that_the_leader_repeats_rounds(tmp_path: Path) -> None:
    append(tmp_path, line(1) + line(2) + line(3))
    live = standby(tmp_path)
    before = live.state({})
    writer = HistoryWriter(tmp_path / "history.jsonl", QuietView())
    writer.run_started(3, 30)
    after = live.state({"life": before["life"], "after": "3"})
    assert after["life"] != before["life"]
    assert numbers(after) == [1, 2]
    writer.round_closed(make_record(3, series={"credible": 777}))
    (row,) = live.state({"life": after["life"], "after": "2"})["rounds"]
    assert row["series"]["credible"] == 777


def test_a_standby_skips_damaged_lines(tmp_path: Path) -> None:
    live = standby(tmp_path)
    append(tmp_path, line(1) + 'nonsense\n{"round": 2}\n{"outcomes": [1]}\n[]\n' + line(3))
    assert numbers(live.state({})) == [1, 3]


def test_a_standby_that_begins_to_lead_shows_every_round_once_and_stops_reading(tmp_path: Path) -> None:
    append(tmp_path, line(1) + line(2))
    live = standby(tmp_path)
    writer = HistoryWriter(tmp_path / "history.jsonl", live)
    append(tmp_path, line(3) + '{"round": 4, "rou')
    assert numbers(live.state({})) == [1, 2, 3]
    live.enter("running")
    writer.run_started(4, 30)
    for number in (4, 5):
        writer.round_closed(make_record(number))
    assert numbers(live.state({})) == [1, 2, 3, 4, 5]
    append(tmp_path, line(6))
    assert numbers(live.state({})) == [1, 2, 3, 4, 5]
