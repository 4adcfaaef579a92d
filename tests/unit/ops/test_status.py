"""What `fedil status` shows, whatever is on the board."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from broker_config.brokers.topology import FINISHED_TOPIC, RUNS_TOPIC, workers_topic
from broker_config.protocol.schema import check_run
from broker_config.stores.memory.store import MemoryStore
from ops.cli.commands.status import gather
from ops.cli.view.board import render

NOW = 1_000_000.0
ROUND = {"round": 3, "accuracy": {"global": 0.9833, "server": 0.9805}, "delta_norm": 1.2914}
RUN: dict[str, Any] = {
    "state": "running",
    "recipe": "digits",
    "mode": "rounds",
    "host": "tower",
    "started": NOW - 3725,
    "round": 4,
    "rounds": 30,
    "phase": "wait",
    "answered": 2,
    "selected": 5,
    "sites": {"north": 12, "south": 8},
    "models": {"global": "global model θ′", "server": "server model θ₀", "ema": "EMA"},
    "recent": [ROUND | {"accepted": 4, "selected": 5, "seconds": 1.24}],
}
WORKER: dict[str, Any] = {
    "state": "training",
    "device": "cuda:0",
    "client": 7,
    "round": 4,
    "since": NOW - 61,
    "tasks_done": 9,
    "images_per_second": 1234.4,
}


def shown(runs: Mapping[str, Any], workers: Mapping[str, Any]) -> str:
    file = io.StringIO()
    Console(file=file, width=400, highlight=False).print(
        render({"runs": dict(runs), "workers": dict(workers)}, NOW)
    )
    return file.getvalue()


def row(text: str, beginning: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(beginning)]
    return [cell for cell in line.split("  ") if cell]


def test_a_run_its_rounds_and_its_workers() -> None:
    text = shown({"run-1": RUN | {"verdict": "plateau"}}, {"north": {"w1": WORKER}, "south": {}})
    assert "run-1  digits, rounds mode, round 4 of 30, 2 of 5 clients have answered; on tower" in text
    assert "on tower for 1 h 02 min; update size: steady" in text
    headings, cells = (line.split("  ") for line in text.splitlines()[1:3])
    assert [heading.strip() for heading in headings if heading.strip()] == [
        *("round", "global model θ′", "server model θ₀", "update size ‖Δθ‖", "accepted", "seconds")
    ]
    assert [cell.strip() for cell in cells if cell.strip()] == [
        "3",
        "98.33 %",
        "98.05 %",
        "1.291",
        "4/5",
        "1.2",
    ]
    assert "site north  12 clients, 1 worker\n" in text
    assert [cell.strip() for cell in row(text, "w1")] == [
        *("w1", "cuda:0", "training client 7, round 4", "1 min 01 s", "9", "1234")
    ]
    assert "site south  8 clients, no worker\n" in text


def test_a_run_before_its_first_round_shows_epochs_and_the_time_left() -> None:
    before = {"round": 0, "phase": "pretrain", "epochs": {"done": 12, "total": 60, "ends": NOW + 75.0}}
    text = shown({"run-1": RUN | before}, {})
    assert "server learns from the labels first, epoch 12 of 60, about 1 min 15 s left; on tower" in text


def test_what_is_the_matter_is_told_below_the_run_which_is_not_called_running() -> None:
    troubles = [{"words": "site south has no worker", "since": NOW - 56, "stops": True}, "nonsense"]
    text = shown({"run-1": RUN | {"troubles": troubles}}, {})
    assert "round 4 of 30, waiting; on tower" in text
    assert "\n  site south has no worker, waiting for 56 s\n" in text


def test_finished_runs_and_all_workers_are_shown(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path)
    over = RUN | {"state": "done", "round": 30, "ended": NOW - 125, "sites": {"east": 6}}
    store.announce(FINISHED_TOPIC, "run-0", over, 60.0)
    store.announce(FINISHED_TOPIC, "run-1", over, 60.0)
    store.announce(RUNS_TOPIC, "run-1", RUN, 60.0)
    for site in ("east", "default"):
        store.announce(workers_topic(site), f"{site}-1", WORKER, 60.0)
    board = gather(store, [])
    assert set(board["finished"]) == {"run-0"}, "run-1 was resumed"
    assert set(board["workers"]) == {"north", "south", "east", "default"}
    file = io.StringIO()
    Console(file=file, width=400, highlight=False).print(render(board, NOW))
    assert (
        "run-0  digits, done 2 min 05 s ago after 30 of 30 rounds, global model θ′ 98.33 %, server model θ₀ 98.05 %"
        in file.getvalue()
    )


def test_a_worker_that_waits_and_a_note() -> None:
    idle = {"state": "idle", "device": "cpu", "client": None, "since": NOW, "images_per_second": None}
    text = shown({"run-1": RUN | {"note": "Redis is away"}}, {"north": {"a": idle, "b": idle}})
    assert "\n  Redis is away\n" in text
    assert "2 workers" in text
    assert [cell.strip() for cell in row(text, "a ")] == ["a", "cpu", "idle", "0 s", "0"]


def test_a_model_without_a_title_is_called_by_its_name() -> None:
    text = shown({"run-1": RUN | {"models": {"global": 7}}}, {})
    assert text.splitlines()[1].split()[:3] == ["round", "7", "server"]


def test_an_empty_board_says_what_to_do() -> None:
    assert "start one with fedil server" in shown({}, {})
    assert "site north  0 clients, no worker" in shown({}, {"north": {}})


def test_what_looks_like_markup_or_commands_to_a_terminal_is_shown_as_it_is() -> None:
    worker = WORKER | {"device": "[/red]", "state": "[link=x]:boom:", "client": "[bold]"}
    run = RUN | {"recipe": "[/]", "note": "[/yellow]\x1b[2J"}
    text = shown({"[red]run": run}, {"[/]": {"[bold red]w": worker}})
    for literal in (
        "[red]run  [/], ",
        "[/yellow]�[2J",
        "site [/]  ",
        "[link=x]:boom: client [bold], round 4",
    ):
        assert literal in text
    assert row(text, "[bold red]w")[1].strip() == "[/red]"
    assert "\x1b" not in text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def facts_like(known: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the keys that are looked at, each with anything or with what belongs there."""
    return st.fixed_dictionaries({}, optional={key: JSON | st.just(value) for key, value in known.items()})


RUNS = facts_like(
    RUN | {"verdict": "", "note": ""} | {"recent": [{}], "sites": {"north": 1}, "models": {}}
) | st.builds(
    lambda told, accuracy: RUN | {"recent": [told | {"accuracy": accuracy}, told]},
    facts_like(RUN["recent"][0]),
    facts_like(ROUND["accuracy"]),  # type: ignore[arg-type]
)


@settings(deadline=None)
@given(
    st.dictionaries(st.text(), RUNS | JSON, max_size=2),
    st.dictionaries(
        st.text() | st.just("north"), st.dictionaries(st.text(), facts_like(WORKER) | JSON, max_size=2)
    ),
)
@example(
    {"r": {"started": 10**5000, "round": 10**5000}}, {"s": {"w": {"since": "text", "images_per_second": [1]}}}
)
@example(
    {"r": {"sites": ["s"], "recent": 7}}, {"s": {"w": {"since": float("nan"), "tasks_done": float("inf")}}}
)
@example({"r": {"recent": [{"delta_norm": "x", "seconds": True}]}}, {"\ud800": {"\ud800": 1}})
def test_nothing_on_the_board_can_break_the_picture(runs: dict[str, Any], workers: dict[str, Any]) -> None:
    text = shown(runs, workers)
    assert text.count("\nsite ") == len(workers)
    assert text.encode(), "no half of a character"


class Strict(MemoryStore):
    """As particular about names as Redis's is"""

    def notices(self, topic: str) -> dict[str, dict[str, Any]]:
        return super().notices(check_run("topic", topic))


@pytest.mark.parametrize("sites", [["north"], 7, None, "north", {"no such: name": 1}, {"": 1}], ids=str)
def test_sites_that_are_none_are_passed_over(sites: object, tmp_path: Path) -> None:
    store = Strict(tmp_path)
    store.announce(RUNS_TOPIC, "run-1", {"sites": sites}, 60.0)
    store.announce(workers_topic("south"), "w1", WORKER, 60.0)
    board = gather(store, ["south"])
    assert board["workers"]["south"]["w1"] == WORKER
    assert "run-1" in shown(board["runs"], board["workers"])
