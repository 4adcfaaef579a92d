import dataclasses
import json
import os
from pathlib import Path

import pytest

from broker_config.protocol.errors import FedILError
from ops.cli.view import QuietView
from server_worker.run.history import HistoryWriter, read_history, read_records
from server_worker.watch.events import ClientOutcome
from tests.unit.ops.records import make_record, write_history


def test_rounds_that_will_be_played_again_are_forgotten_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_history(tmp_path, [make_record(number) for number in (1, 2, 3)])
    path, fsync, forced = tmp_path / "history.jsonl", os.fsync, list[int]()

    def remembered(descriptor: int) -> None:
        forced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", remembered)
    HistoryWriter(path, QuietView()).run_started(3, 30)
    assert [fields["round"] for fields in read_history(path)] == [1, 2]
    assert forced == [path.stat().st_ino, tmp_path.stat().st_ino]
    assert list(tmp_path.iterdir()) == [path]


def test_every_round_is_kept_once(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "history.jsonl", QuietView())
    writer.run_started(1, 30)
    for number in (1, 2, 2, 3):
        writer.round_closed(make_record(number))
    kept = list(read_history(tmp_path / "history.jsonl"))
    assert [fields["round"] for fields in kept] == [1, 2, 3]
    assert kept[0]["outcomes"][0] == dataclasses.asdict(make_record(1).outcomes[0])


def test_every_answer_of_a_client_is_told(tmp_path: Path) -> None:
    answers = list[str]()
    writer = HistoryWriter(tmp_path / "history.jsonl", QuietView(), on_answer=lambda: answers.append("one"))
    for client in range(3):
        writer.update_arrived(1, ClientOutcome(client, "accepted"), client + 1, 3)
    assert len(answers) == 3


def test_a_half_written_last_line_is_passed_over_and_a_damaged_one_before_it_is_named(tmp_path: Path) -> None:
    write_history(tmp_path, [make_record(number) for number in (1, 2, 3)])
    path = tmp_path / "history.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + lines[2][:50])
    assert [record.round for record in read_records(path)] == [1, 2]
    path.write_text(lines[0] + lines[1][:50] + "\n" + lines[2])
    with pytest.raises(FedILError, match=r"history\.jsonl, line 2 is damaged .*: take it out"):
        list(read_records(path))


def test_what_a_later_version_has_added_is_passed_over(tmp_path: Path) -> None:
    fields = dataclasses.asdict(make_record(1)) | {"of_tomorrow": 1}
    fields["outcomes"][0]["of_tomorrow"] = 2
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps(fields) + "\n")
    assert list(read_records(path)) == [make_record(1)]
    path.write_text('{"round": 1}\n')
    with pytest.raises(FedILError, match="line 1 is no round"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"delta_norm": "abc"}, "delta_norm is 'abc'"),
        ({"accuracy": {"global": "0.5"}}, "accuracy.global is '0.5'"),
        ({"accepted": None}, "accepted is None"),
        ({"round": "2"}, "round is '2'"),
    ],
)
def test_a_text_where_a_number_belongs_is_named_by_its_line(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    write_history(tmp_path, [make_record(number) for number in (1, 2, 3)])
    path = tmp_path / "history.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | change)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(FedILError, match=rf"history\.jsonl, line 2 is no round \({said}\): take it out"):
        list(read_records(path))


def test_a_record_is_written_as_all_its_fields() -> None:
    outcomes = (
        ClientOutcome(3, "accepted", "ü", False, {"cosine": 0.5}, {"loss_total": 1.5}, 70, 2),
        ClientOutcome(9, "missing"),
    )
    full = dataclasses.replace(make_record(1), outcomes=outcomes)
    assert json.loads(full.to_json()) == json.loads(json.dumps(dataclasses.asdict(full)))
