import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

import ops.cli.view.live
from fedil_model.training.convergence import VERDICTS
from ops.cli.view import JsonView, PlainView, QuietView
from ops.cli.view.live import LiveView
from server_worker.run.recipe import make_recipe
from server_worker.watch.events import ClientOutcome
from server_worker.watch.notices import Notice
from server_worker.watch.words import TRENDS, Trouble
from tests.unit.ops.records import make_record, make_summary, write_history

RECIPE = make_recipe({})
NO_HISTORY = Path("there-is-none")
RESUME = "fedil simulate digits --resume"


def terminal(width: int, height: int = 24) -> Console:
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)


def drawn(view: LiveView, console: Console) -> list[str]:
    with console.capture() as capture:
        console.print(view.frame())
    return [line.rstrip() for line in capture.get().splitlines()]


def view_in_round(number: int, console: Console) -> LiveView:
    view = LiveView(RECIPE, "digits", NO_HISTORY, console)
    view.run_started(1, 30)
    for closed in range(1, number):
        view.round_closed(make_record(closed))
    view.phase(number, "wait")
    return view


@pytest.mark.parametrize("width", [24, 40, 60, 80, 120])
def test_a_live_frame_stays_within_the_terminal(width: int) -> None:
    console = terminal(width)
    lines = drawn(view_in_round(25, console), console)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 24


def test_a_live_frame_shows_the_last_rounds_and_how_many_have_answered() -> None:
    console = terminal(80)
    view = view_in_round(6, console)
    view.update_arrived(6, ClientOutcome(3, "accepted"), answered=3, selected=5)
    lines = drawn(view, console)
    assert any(line.split()[:5] == ["5", "75.44", "76.54", "0.340", "5/5"] for line in lines)
    assert any("round 6: clients learn" in line and line.endswith("3/5 answered") for line in lines)
    assert any(line.startswith("rounds") and "5/30" in line for line in lines)


def test_a_phase_without_parts_shows_no_count() -> None:
    console = terminal(80)
    view = view_in_round(6, console)
    view.phase(7, "server_step")
    (line,) = [
        line for line in drawn(view, console) if line.startswith("round 7: server learns from the labels")
    ]
    assert "answered" not in line


def test_before_the_first_round_epochs_and_the_time_left_are_shown() -> None:
    console = terminal(80)
    view = LiveView(RECIPE, "digits", NO_HISTORY, console)
    view.phase(0, "pretrain")
    view.epochs(12, 60, 75.0)
    (line,) = [
        line for line in drawn(view, console) if line.startswith("server learns from the labels first")
    ]
    assert line.endswith("12/60 epochs, 1 min 15 s left")
    view.phase(1, "wait")
    assert not any("left" in line for line in drawn(view, console))


def test_a_live_frame_tells_exclusions_and_that_it_is_stopping() -> None:
    console = terminal(80)
    view = view_in_round(6, console)
    view.stopping()
    text = "\n".join(drawn(view, console))
    assert "round 4: client 17: rejected cosine (cosine -0.021)" in text
    assert "Ctrl-C again" in text


def test_a_live_frame_can_be_drawn_while_notes_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    console = terminal(80)
    view = LiveView(RECIPE, "digits", NO_HISTORY, console)
    view.note(Notice("site one is back"))

    def meanwhile(text: str = "", **style: Any) -> Text:
        view.note(Notice("site another is back"))
        return Text(text, **style)

    meanwhile.assemble = Text.assemble  # type: ignore[attr-defined]
    monkeypatch.setattr(ops.cli.view.live, "Text", meanwhile)
    assert "site one is back" in drawn(view, console)


def test_a_resumed_view_remembers_earlier_rounds(tmp_path: Path) -> None:
    write_history(tmp_path, [make_record(number) for number in range(1, 8)])
    console = terminal(80, 40)
    view = LiveView(RECIPE, "digits", tmp_path / "history.jsonl", console)
    view.run_started(6, 30)  # rounds after the checkpoint are played again
    view.round_closed(make_record(6))
    lines = drawn(view, console)
    assert [line.split()[0] for line in lines if "5/5" in line or "4/5" in line] == [
        "1",
        "2",
        "3",
        "4",
        "5",
        "6",
    ]
    assert any(line.startswith("global model θ′") and "→" in line for line in lines)


def test_rounds_that_were_not_evaluated_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    recipe, console = make_recipe({"evaluate_every": 5}), terminal(80)
    view = LiveView(recipe, "digits", NO_HISTORY, console)
    view.round_closed(make_record(1, accuracy={}))
    assert "accuracy is measured every 5 rounds" in drawn(view, console)
    PlainView(recipe).run_started(1, 30)
    assert "rounds 1 to 30; accuracy is measured every 5 rounds\n" in capsys.readouterr().out


def test_trouble_stands_at_the_top_and_no_time_left_is_told_meanwhile() -> None:
    console = terminal(100)
    view = view_in_round(6, console)
    view.troubles((Trouble("site south has no worker", time.time() - 56, stops=True),))
    lines = drawn(view, console)
    assert lines[1].startswith("site south has no worker, waiting for 5")
    assert not any(" left" in line for line in lines)
    view.troubles(())
    assert not any("site south" in line for line in drawn(view, console))


def test_a_live_frame_before_the_first_evaluation_does_not_fail() -> None:
    console = terminal(80)
    view = LiveView(RECIPE, "digits", NO_HISTORY, console)
    view.round_closed(make_record(1, accuracy={}))
    assert any("–" in line for line in drawn(view, console))


def test_the_plain_view_writes_one_line_per_round_with_elapsed_time_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = PlainView(RECIPE)
    view.round_closed(make_record(1))
    view.round_closed(make_record(2))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:4] for line in lines] == [["s", "round", "1/30"], ["s", "round", "2/30"]]
    assert all(float(line.split()[0]) >= 0 for line in lines)


def test_the_json_view_writes_nothing_but_json_to_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    view = JsonView()
    with view:
        view.run_started(1, 30)
        view.phase(1, "wait")
        view.note(Notice("no update was accepted", 1))
        view.round_closed(make_record(1, delta_norm=float("nan")))
    view.finish(make_summary(tmp_path), RECIPE, RESUME)
    captured = capsys.readouterr()
    first, last = (json.loads(line) for line in captured.out.splitlines())
    assert (first["event"], first["round"], first["delta_norm"]) == ("round", 1, None)
    assert first["outcomes"][4] == {
        "client": 17,
        "outcome": "accepted",
        "detail": "",
        "counts": True,
        "values": {"cosine": 0.2},
        "metrics": {},
        "num_samples": 0,
        "staleness": None,
    }
    assert (last["event"], last["run_dir"], last["stopped"]) == ("summary", str(tmp_path), False)
    assert captured.err == "fedil: round 1: no update was accepted\n"


def test_the_json_summary_of_a_stopped_run_says_how_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    JsonView().finish(make_summary(tmp_path, stopped=True), RECIPE, RESUME)
    assert json.loads(capsys.readouterr().out)["resume"] == RESUME


def test_the_summary_puts_the_baseline_beside_the_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "digits"
    write_history(run_dir, [make_record(number) for number in range(1, 31)])
    summary = make_summary(run_dir)
    QuietView().finish(summary, RECIPE, RESUME)
    text = capsys.readouterr().out
    assert "global model θ′ 94.70 %   server model θ₀ 95.81 %" in text
    assert (
        "server-only on the same labels, chosen on held-out ones: 86.11 %   global model +8.59 points" in text
    )
    assert "┄ server-only" in text
    for digest in (summary.model_digest, summary.ledger_digest, summary.split_digest):
        assert digest in text
    assert f"evaluate {run_dir}" in text
    assert RESUME not in text


def test_paths_and_commands_are_never_cut_by_the_width_of_the_terminal(tmp_path: Path) -> None:
    run_dir = tmp_path / ("long" * 30)
    console = terminal(40)
    LiveView(RECIPE, "digits", NO_HISTORY, console).finish(make_summary(run_dir), RECIPE, RESUME)
    assert isinstance(console.file, io.StringIO)
    assert f"export {run_dir} --format onnx" in console.file.getvalue()


def test_the_summary_of_a_stopped_run_gives_the_exact_command_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    QuietView().finish(
        make_summary(tmp_path, stopped=True, rounds_done=7, baseline_accuracy=None), RECIPE, RESUME
    )
    text = capsys.readouterr().out
    assert "stopped after 7 of 30 rounds" in text
    assert f"  {RESUME}\n" in text
    assert "server-only" not in text


@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_update_size_is_told_below_the_accuracy_in_plain_words(
    verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    QuietView().finish(make_summary(tmp_path, verdict=verdict), RECIPE, RESUME)
    text = capsys.readouterr().out
    assert f"\nupdate size {TRENDS[verdict].words}\n" in text
    assert text.index("accuracy") < text.index("update size")
    assert "converge" not in text


def test_the_curve_of_a_resumed_run_shows_each_round_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = [1, 2, 3, 3, 4]  # killed between the history's line and the checkpoint of round 3
    write_history(tmp_path, [make_record(number) for number in rounds])
    QuietView().finish(make_summary(tmp_path), RECIPE, RESUME)
    (foot,) = [line for line in capsys.readouterr().out.splitlines() if "round 1" in line]
    assert foot.split()[-1] == "4"


@pytest.mark.parametrize(("data", "takes_pictures"), [("tests.federation:blobs", False), ("digits", True)])
def test_what_to_do_next_allows_the_code_that_the_run_needs_and_labels_pictures_only_where_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: str, takes_pictures: bool
) -> None:
    recipe = make_recipe({"data": {"name": data}, "network": {"name": "mine:network"}})
    QuietView().finish(make_summary(tmp_path), recipe, RESUME)
    steps = capsys.readouterr().out.partition("\nNext\n")[2].splitlines()
    allowed = f"{tmp_path} {'' if takes_pictures else f'--plugin {data} '}--plugin mine:network"
    expected = [f"report {allowed}", f"evaluate {allowed}", f"export {allowed} --format onnx"]
    expected += [f"predict {allowed} FOLDER"] * takes_pictures
    assert [step.partition(" ops.cli ")[2] for step in steps] == expected
