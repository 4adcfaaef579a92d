"""Event files as TensorBoard itself reads them."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from server_worker.run.folder import RunDir
from server_worker.run.history import HistoryWriter
from server_worker.watch.events import ClientOutcome, RoundRecord
from server_worker.watch.tensorboard import EventFile, TensorBoardMissing, TensorBoardWatcher, scalars

ROOT = Path(__file__).parents[3]


def make_record(number: int, rounds: int = 9) -> RoundRecord:
    outcomes = (ClientOutcome(0, "accepted", 0.5), ClientOutcome(1, "rejected_cosine", -0.25))
    return RoundRecord(
        round=number,
        rounds=rounds,
        selected=2,
        accepted=1,
        outcomes=outcomes,
        delta_norm=1.0 / number,
        reference_norm=0.5,
        verdict="plateau",
        convergence={"ratio": None, "moving_average": 0.75},
        accuracy={"global": number / 10, "server": number / 20},
        losses={"loss_pseudo": 0.25},
        pseudo_labels=40,
        credible=20,
        purity={"pseudo_labels": 0.75, "credible": None},
        seconds={"total": 1.5, "wait": 1.0},
        promoted=5,
        finished_at=1000.0 + number,
    )


def read_back(folder: Path, tag: str = "accuracy/global") -> dict[int, float]:
    """Fails if a step is there twice."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    events = accumulator.Scalars(tag)
    assert len({event.step for event in events}) == len(events)
    return {event.step: event.value for event in events}


def play(run_dir: Path, first: int, last: int, watcher: TensorBoardWatcher) -> None:
    """Rounds first to last, as a server tells them through the history."""
    writer = HistoryWriter(RunDir(run_dir).history, watcher)
    writer.run_started(first, 9)
    for number in range(first, last + 1):
        writer.round_closed(make_record(number))


def test_rounds_are_read_back_with_their_values_and_times(tmp_path: Path) -> None:
    with TensorBoardWatcher(tmp_path / "tensorboard") as watcher:
        play(tmp_path, 1, 4, watcher)
        # While the run goes on, not only at its end.
        assert read_back(tmp_path / "tensorboard") == pytest.approx({1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4})
    accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    assert [event.wall_time for event in accumulator.Scalars("delta_theta/norm")] == [1001, 1002, 1003, 1004]


def test_a_round_is_told_in_all_its_parts() -> None:
    told = dict(scalars(make_record(2)))
    assert told["delta_theta/norm"] == 0.5
    assert told["delta_theta/moving_average"] == 0.75
    assert (told["updates/accepted"], told["updates/rejected_cosine"], told["updates/missing"]) == (1, 1, 0)
    assert (told["cosine/lowest"], told["cosine/highest"]) == (-0.25, 0.5)
    assert (told["pseudo_labels/held"], told["pseudo_labels/promoted"]) == (40, 5)
    assert (told["purity/pseudo_labels"], told["loss/pseudo"], told["seconds/wait"]) == (0.75, 0.25, 1.0)
    assert "purity/credible" not in told
    assert "delta_theta/ratio" not in told


def test_what_is_not_finite_or_invented_by_clients_is_left_out() -> None:
    losses = {f"loss_{n}": 1.0 for n in range(10_000)}
    record = dataclasses.replace(make_record(1), delta_norm=math.inf, losses=losses)
    told = dict(scalars(record))
    assert "delta_theta/norm" not in told
    assert len(told) < 70


@pytest.mark.parametrize("killed_after", [3, 5])
def test_a_resumed_run_shows_every_round_once(tmp_path: Path, killed_after: int) -> None:
    """Killed after some rounds, of which the checkpoint has 3: the others are played again."""
    with TensorBoardWatcher(tmp_path / "tensorboard") as watcher:
        play(tmp_path, 1, killed_after, watcher)
    with TensorBoardWatcher(tmp_path / "tensorboard") as watcher:
        play(tmp_path, 4, 6, watcher)
    assert list(read_back(tmp_path / "tensorboard")) == [1, 2, 3, 4, 5, 6]


def test_a_tensorboard_that_is_looking_on_follows_a_resumed_run(tmp_path: Path) -> None:
    folder = tmp_path / "tensorboard"
    with TensorBoardWatcher(folder) as watcher:
        play(tmp_path, 1, 5, watcher)
    looking_on = EventAccumulator(str(folder))
    looking_on.Reload()
    with TensorBoardWatcher(folder) as watcher:
        play(tmp_path, 3, 4, watcher)
        looking_on.Reload()
        assert [event.step for event in looking_on.Scalars("accuracy/global")] == [1, 2, 3, 4]
        HistoryWriter(RunDir(tmp_path).history, watcher)
        watcher.round_closed(make_record(5))
        looking_on.Reload()
        assert [event.step for event in looking_on.Scalars("accuracy/global")] == [1, 2, 3, 4, 5]


def test_rounds_before_the_flag_was_given_are_written_too(tmp_path: Path) -> None:
    lines = [json.dumps(dataclasses.asdict(make_record(number))) for number in (1, 2)]
    (tmp_path / "history.jsonl").write_text("\n".join(lines) + "\n")
    with TensorBoardWatcher(tmp_path / "tensorboard") as watcher:
        play(tmp_path, 3, 3, watcher)
    assert list(read_back(tmp_path / "tensorboard")) == [1, 2, 3]


def test_rounds_that_will_be_played_again_are_not_written_before(tmp_path: Path) -> None:
    lines = [json.dumps(dataclasses.asdict(make_record(number))) for number in (1, 2, 3)]
    (tmp_path / "history.jsonl").write_text("\n".join(lines) + "\n")
    with TensorBoardWatcher(tmp_path / "tensorboard") as watcher:
        watcher.run_started(3, 9)
        assert list(read_back(tmp_path / "tensorboard")) == [1, 2]


def test_many_restarts_leave_two_files_and_nothing_of_others_is_touched(tmp_path: Path) -> None:
    folder = tmp_path / "tensorboard"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    for _ in range(5):
        EventFile(folder, [make_record(1)]).close()
    assert len(list(folder.glob("*tfevents*"))) == 2
    assert (folder / "notes.txt").read_text() == "mine"
    assert read_back(folder) == pytest.approx({1: 0.1})


def test_files_sort_after_each_other_even_if_the_clock_goes_back(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.9999999998.fedil").touch()
    EventFile(tmp_path, []).close()
    assert (tmp_path / "events.out.tfevents.9999999999.fedil").exists()


def test_a_folder_that_cannot_be_made_is_said_once_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    said: list[str] = []
    with TensorBoardWatcher(tmp_path / "tensorboard", said.append) as watcher:
        play(tmp_path, 1, 3, watcher)
    (line,) = said
    assert "TensorBoard is told nothing more" in line
    assert "tensorboard" in line
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 3


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from tests.unit.server_worker.test_tensorboard import make_record
from server_worker.watch.tensorboard import TensorBoardWatcher

folder, said = Path(sys.argv[1]), []
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with TensorBoardWatcher(folder / "tensorboard", said.append) as watcher:
    watcher.run_started(1, 9)
    watcher.round_closed(make_record(1))
    size = next((folder / "tensorboard").iterdir()).stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    for number in range(2, 6):
        watcher.round_closed(make_record(number))
print(len(said), said[0])
"""


def test_a_disk_that_fills_up_is_said_once_and_the_run_goes_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 TensorBoard is told nothing more: [Errno 27] File too large")
    assert "Traceback" not in done.stderr


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("torch.utils.tensorboard", "tensorboard"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(TensorBoardMissing, match=r"pip install 'fedil\[tensorboard\]'"):
        TensorBoardWatcher(tmp_path / "tensorboard")
    assert not (tmp_path / "tensorboard").exists()
