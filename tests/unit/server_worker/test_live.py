"""What the live page receives: complete, in parts, valid after restarts, and only what JSON and a page can hold."""

import dataclasses
import json
import threading
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from broker_config.protocol.errors import FedILError
from fedil_model.methods import find_method
from server_worker.run.history import HistoryWriter
from server_worker.watch.events import ClientOutcome, RoundRecord
from server_worker.watch.live import MOST_ROUNDS, LiveRun
from server_worker.watch.notices import Notice
from server_worker.watch.page_rows import LONGEST_NAME, MOST_CLIENTS, MOST_WORKERS
from server_worker.watch.survey import Survey
from tests.federation import blobs_recipe
from tests.unit.ops.records import make_record, write_history

FEDIL = find_method("fedil").display


def live_run(tmp_path: Path, **recipe: Any) -> LiveRun:
    return LiveRun("blobs-1a2b3c", blobs_recipe(**recipe), tmp_path / "history.jsonl")


def numbers(answer: dict[str, Any]) -> list[int]:
    return [row["round"] for row in answer["rounds"]]


def fetch_all(live: LiveRun) -> list[dict[str, Any]]:
    """As the page does"""
    found: list[dict[str, Any]] = []
    answer = live.state({})
    while True:
        found += answer["rounds"]
        if not answer["more"]:
            return found
        answer = live.state({"life": answer["life"], "after": str(found[-1]["round"])})


def outcomes_of(answer: dict[str, Any], row: dict[str, Any]) -> list[str]:
    """The letters of a row, looked up in the table that the page receives"""
    table = [outcome["name"] for outcome in answer["about"]["display"]["outcomes"]]
    return [table[ord(letter) - ord("a")] for letter in row["outcomes"]]


def crowd(count: int) -> tuple[ClientOutcome, ...]:
    return tuple(ClientOutcome(client, "accepted", values={"cosine": -0.1234}) for client in range(count))


def test_a_round_is_sent_once_to_a_page_that_says_what_it_has(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    live.round_closed(make_record(1))
    first = live.state({})
    assert numbers(first) == [1]
    live.round_closed(make_record(2))
    known = {"life": first["life"], "after": "1", "about": str(first["abouts"])}
    second = live.state(known)
    assert numbers(second) == [2]
    assert "about" not in second
    assert numbers(live.state({**known, "after": "2"})) == []


def test_a_row_holds_what_the_charts_draw(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    outcomes = (
        ClientOutcome(3, "accepted", values={"cosine": 0.123456789, "undeclared": 1.0}, staleness=2),
        ClientOutcome(5, "missing", detail="its site has no worker"),
    )
    series = {"credible": 7.0, "loss_server": 1 / 3, "purity_credible": None, "undeclared": 5.0}
    record = make_record(
        7,
        outcomes=outcomes,
        series=series,
        per_class=(0.5, None),
        refused={"late": 2},
        finished_at=1.75e9,
    )
    live.round_closed(record)
    answer = live.state({})
    (row,) = answer["rounds"]
    assert row["clients"] == [3, 5]
    assert outcomes_of(answer, row) == ["accepted", "missing"]
    assert row["values"]["cosine"] == [0.1235, None]
    assert row["values"].keys() == {value.name for value in FEDIL.client_values}
    assert row["series"].keys() == {series.name for series in FEDIL.series()}
    known = {name: number for name, number in row["series"].items() if number is not None}
    assert known == {"credible": 7, "loss_server": 0.333333}
    assert row["staleness"] == [2, None]
    assert row["classes"] == [0.5, None]
    assert row["refused"] == {"late": 2}
    assert row["at"] == 1.75e9
    assert row["accuracy"]["global"] == pytest.approx(record.accuracy["global"], abs=1e-6)
    assert row["delta"] == pytest.approx(record.delta_norm, rel=1e-5)


def test_many_rounds_come_in_parts(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    for number in range(1, 2 * MOST_ROUNDS + 8):
        live.round_closed(make_record(number))
    assert len(live.state({})["rounds"]) == MOST_ROUNDS
    assert [row["round"] for row in fetch_all(live)] == list(range(1, 2 * MOST_ROUNDS + 8))


def test_an_answer_has_a_bound_whatever_the_number_of_clients(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    for number in range(1, 181):
        live.round_closed(make_record(number, outcomes=crowd(600)))
    answer = live.state({})
    assert answer["more"]
    assert len(json.dumps(answer)) < 2_000_000
    assert len(fetch_all(live)) == 180


def test_of_very_many_clients_some_are_sent_and_the_rest_is_counted(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    live.round_closed(make_record(1, outcomes=crowd(10_000)))
    (row,) = live.state({})["rounds"]
    assert len(row["clients"]) == len(row["outcomes"]) == len(row["values"]["cosine"]) == MOST_CLIENTS
    assert row["not_shown"] == 10_000 - MOST_CLIENTS
    assert row["clients"][0] == 0
    assert row["clients"][-1] > 9_900


def test_earlier_rounds_are_read_from_the_history(tmp_path: Path) -> None:
    write_history(tmp_path, [make_record(number) for number in (1, 2, 3)])
    with (tmp_path / "history.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"round": 4, "rou')  # the server died while it wrote
    assert numbers(live_run(tmp_path).state({})) == [1, 2, 3]


def test_a_damaged_line_of_the_history_is_named(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text("nonsense\n{}\n", encoding="utf-8")
    with pytest.raises(FedILError, match="line 1"):
        live_run(tmp_path)


def test_repeated_rounds_replace_the_earlier_ones(tmp_path: Path) -> None:
    write_history(tmp_path, [make_record(number) for number in (1, 2, 3)])
    live = live_run(tmp_path)
    before = live.state({})
    live.run_started(3, 30)
    known = {"life": before["life"], "after": "3", "about": "9", "fleet": "9", "note": "9"}
    after = live.state(known)
    assert after["life"] != before["life"]
    assert numbers(after) == [1, 2]
    live.round_closed(make_record(3, series={"credible": 777}))
    (row,) = live.state({"life": after["life"], "after": "2"})["rounds"]
    assert row["series"]["credible"] == 777


def test_a_standby_that_takes_over_has_the_rounds_of_the_leader(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    live.enter("standby")
    write_history(tmp_path, [make_record(number) for number in (1, 2)])
    live.run_started(3, 30)
    assert numbers(live.state({})) == [1, 2]


def test_a_round_that_is_closed_again_replaces_itself(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    for number in (1, 2):
        live.round_closed(make_record(number))
    life = live.state({})["life"]
    live.round_closed(make_record(2, series={"credible": 5}))
    answer = live.state({"life": life, "after": "2"})
    assert numbers(answer) == [1, 2]
    assert answer["rounds"][1]["series"]["credible"] == 5


def test_an_open_round_shows_the_answers_so_far(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    live.phase(1, "server_step")
    live.phase(1, "wait")
    live.update_arrived(1, ClientOutcome(4, "rejected_cosine", values={"cosine": -0.5}), 1, 3)
    answer = live.state({})
    assert answer["phase"]["name"] == "wait"
    (opened,) = answer["open"]
    assert (opened["round"], opened["answered"], opened["selected"]) == (1, 1, 3)
    assert (opened["clients"], opened["values"]["cosine"]) == ([4], [-0.5])
    assert outcomes_of(answer, opened) == ["rejected_cosine"]


def test_an_open_round_is_shown_until_its_record_comes(tmp_path: Path) -> None:
    """Its accuracy is measured while the next round is open."""
    live = live_run(tmp_path)
    for number in (1, 2, 3):
        live.phase(number, "server_step")
        live.update_arrived(number, ClientOutcome(number, "accepted"), 1, 1)
    assert [opened["round"] for opened in live.state({})["open"]] == [2, 3]
    live.round_closed(make_record(2))
    assert [opened["round"] for opened in live.state({})["open"]] == [3]


def test_a_round_that_begins_again_has_no_answers(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    for _ in range(2):
        live.phase(1, "server_step")
        live.update_arrived(1, ClientOutcome(0, "accepted"), 1, 3)
    (opened,) = live.state({})["open"]
    assert opened["clients"] == [0]


def test_new_facts_reach_an_open_page(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    first = live.state({})
    assert first["about"]["class_names"] == []
    live.enter("running")
    live.learn(class_names=["cat", "dog"])
    known = {"life": first["life"], "about": str(first["abouts"])}
    second = live.state(known)
    assert second["state"] == "running"
    assert second["about"]["class_names"] == ["cat", "dog"]


def test_the_baseline_is_read_from_the_run_folder(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    assert live.state({})["about"]["baseline"] is None
    (tmp_path / "baseline.json").write_text('{"accuracy": 0.8125, "epochs": 3}', encoding="utf-8")
    live.run_started(1, 30)
    assert live.state({})["about"]["baseline"] == 0.8125


@pytest.mark.parametrize("text", ["", "[]", '{"accuracy": null}', "{}"])
def test_a_broken_baseline_is_no_baseline(tmp_path: Path, text: str) -> None:
    (tmp_path / "baseline.json").write_text(text, encoding="utf-8")
    assert live_run(tmp_path).state({})["about"]["baseline"] is None


def test_notes_and_fleet_are_sent_once(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    live.note(Notice("one"))
    live.survey(Survey(at=5.0, depths={"tasks": 2}))
    first = live.state({})
    assert [text for _, _, text in first["notes"]] == ["one"]
    assert first["fleet"]["depths"] == {"tasks": 2}
    live.note(Notice("late", 3, 7))
    known = {"life": first["life"], "fleet": str(first["surveys"]), "note": str(first["notes"][-1][0])}
    second = live.state(known)
    assert [text for _, _, text in second["notes"]] == ["round 3, client 7: late"]
    assert "fleet" not in second


def test_workers_are_listed_up_to_a_limit_with_known_facts_only(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    worker = {
        "name": "w" * 10_000,
        "site": "north",
        "tasks_done": 3,
        "images_per_second": float("nan"),
        "evil": "x",
    }
    live.survey(Survey(workers=(worker,) * (MOST_WORKERS + 5)))
    fleet = live.state({})["fleet"]
    assert len(fleet["workers"]) == MOST_WORKERS
    assert fleet["workers_not_shown"] == 5
    shown = fleet["workers"][0]
    assert len(shown["name"]) == LONGEST_NAME
    assert (shown["tasks_done"], shown["images_per_second"]) == (3, None)
    assert "evil" not in shown


def test_sites_without_a_worker_are_named(tmp_path: Path) -> None:
    live = live_run(tmp_path, federation={"sites": {"north": 4, "south": 2}})
    live.survey(Survey(workers=({"name": "w", "site": "south"},), absent=("north",)))
    assert live.state({})["fleet"]["sites_without_worker"] == ["north"]


def test_every_answer_is_strict_json(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    bad = float("inf")
    record = make_record(
        1,
        delta_norm=bad,
        accuracy={"global": float("nan")},
        outcomes=(
            ClientOutcome(0, "invalid", "x" * 5000, values={"cosine": float("nan")}, metrics={"loss": bad}),
        ),
        series={"credible": bad} | {f"loss_{index}": 1.0 for index in range(1000)},
    )
    write_history(tmp_path, [record])
    live.round_closed(record)
    live.survey(Survey(workers=({"round": 10**400, "since": -bad},), store={"x": bad}))
    state = json.dumps(live.state({}), allow_nan=False)
    whole = json.dumps(live.round({"number": "1"}), allow_nan=False)
    assert len(state) < 12_000
    assert len(whole) < 60_000


def test_a_whole_round_is_read_from_the_history(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    writer = HistoryWriter(tmp_path / "history.jsonl", live)
    writer.run_started(1, 30)
    records = [make_record(number, outcomes=crowd(700)) for number in (1, 2, 3)]
    for record in records:
        writer.round_closed(record)
    for record in records:
        assert live.round({"number": str(record.round)}) == json.loads(json.dumps(dataclasses.asdict(record)))


def test_a_whole_round_from_before_a_restart_is_read_from_the_history(tmp_path: Path) -> None:
    records = [make_record(number) for number in (1, 2, 12)]
    write_history(tmp_path, records)
    live = live_run(tmp_path)
    assert live.round({"number": "2"})["delta_norm"] == records[1].delta_norm
    assert live.round({"number": "12"})["round"] == 12


def test_a_whole_round_is_found_after_the_history_was_edited(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    writer = HistoryWriter(tmp_path / "history.jsonl", live)
    writer.run_started(1, 30)
    for number in (1, 2, 3):
        writer.round_closed(make_record(number))
    write_history(tmp_path, [make_record(number) for number in (2, 3)])
    assert live.round({"number": "3"})["round"] == 3
    with pytest.raises(ValueError, match="round 1 is not in the history"):
        live.round({"number": "1"})


@pytest.mark.parametrize("query", [{"after": "x"}, {"after": "-1"}, {"note": "1e3"}, {"fleet": "9" * 5000}])
def test_a_bad_parameter_is_named(tmp_path: Path, query: dict[str, str]) -> None:
    name = next(iter(query))
    with pytest.raises(ValueError, match=f"{name} wants a number, got .{{1,60}}$"):
        live_run(tmp_path).state(query)


def test_a_bad_round_number_is_named(tmp_path: Path) -> None:
    live = live_run(tmp_path)
    with pytest.raises(ValueError, match="which round"):
        live.round({})
    with pytest.raises(ValueError, match="number wants a number"):
        live.round({"number": "../../etc/passwd"})
    with pytest.raises(ValueError, match="round 7 is not in the history; rounds there: none yet"):
        live.round({"number": "7"})
    live.round_closed(make_record(1))
    with pytest.raises(ValueError, match="rounds there: 1 to 1"):
        live.round({"number": "7"})


def test_reading_and_writing_at_the_same_time_is_safe(tmp_path: Path) -> None:
    live, done, seen = live_run(tmp_path), threading.Event(), list[Exception]()

    def ask() -> None:
        try:
            while not done.is_set():
                rows = fetch_all(live)
                assert [row["round"] for row in rows] == list(range(1, len(rows) + 1))
        except Exception as error:
            seen.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 101):
        live.phase(number, "server_step")
        live.update_arrived(number, ClientOutcome(0, "accepted", values={"cosine": 0.1}), 1, 1)
        live.learn(class_names=["a"] * number)
        live.note(Notice("x"))
        live.round_closed(make_record(number))
    done.set()
    for thread in threads:
        thread.join()
    assert seen == []
    assert len(fetch_all(live)) == 100


def test_a_round_is_kept_in_little_memory(tmp_path: Path) -> None:
    record: RoundRecord = make_record(1, outcomes=crowd(100))
    live = live_run(tmp_path)
    live.round_closed(record)
    assert sum(map(len, live._rows.values())) < 3000


def test_what_the_method_declares_is_sent_once(tmp_path: Path) -> None:
    display = live_run(tmp_path).state({})["about"]["display"]
    assert [model["title"] for model in display["models"]] == [model.title for model in FEDIL.models]
    declared = [series["name"] for chart in display["charts"] for series in chart["series"]]
    assert declared == [series.name for series in FEDIL.series()]
    cosine = display["client_values"][0]
    assert (cosine["low"], cosine["high"], cosine["threshold"]) == (-1.0, 1.0, 0.0)
    names = {outcome["name"] for outcome in display["outcomes"]}
    engine = {"accepted", "invalid", "refused", "missing", "stale"}
    assert names == engine | {outcome.name for outcome in FEDIL.outcomes}
    assert all(outcome["title"] and outcome["help"] for outcome in display["outcomes"])


def test_no_file_of_the_page_contains_a_word_of_a_method() -> None:
    words = ("cosine", "pseudo", "credible", "purity", "loss", "θ₀", "θ′", "ξ")
    files = list((resources.files("server_worker.watch") / "page").iterdir())
    assert len(files) > 20
    found = [(file.name, word) for file in files for word in words if word in file.read_text("utf-8")]
    assert found == []
