"""Event files, read back with TensorBoard's own reader."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from broker_config.protocol.errors import FedILError
from fedil_model.methods import find_method
from server_worker.run.folder import RunDir
from server_worker.run.history import HistoryWriter
from server_worker.watch.events import ClientOutcome, RoundRecord
from server_worker.watch.notices import Notice
from server_worker.watch.tensorboard import EventFile, TensorBoardWatcher, scalars

ROOT = Path(__file__).parents[3]
DISPLAY = find_method("fedil").display


def make_record(number: int, rounds: int = 9) -> RoundRecord:
    outcomes = (
        ClientOutcome(0, "accepted", counts=True, values={"cosine": 0.5}),
        ClientOutcome(1, "rejected_cosine", values={"cosine": -0.25}),
    )
    return RoundRecord(
        round=number,
        rounds=rounds,
        selected=2,
        accepted=1,
        outcomes=outcomes,
        delta_norm=1.0 / number,
        verdict="plateau",
        convergence={"ratio": None, "moving_average": 0.75},
        accuracy={"global": number / 10, "server": number / 20},
        series={
            "loss_pseudo": 0.25,
            "pseudo_labels": 40,
            "credible": 20,
            "promoted": 5,
            "purity_pseudo_labels": 0.75,
            "purity_credible": None,
        },
        seconds={"total": 1.5, "wait": 1.0},
        finished_at=1000.0 + number,
    )


def read_back(folder: Path, tag: str = "accuracy/global") -> dict[int, float]:
    """Values by step; fails if a step occurs twice."""
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    events = accumulator.Scalars(tag)
    assert len({event.step for event in events}) == len(events)
    return {event.step: event.value for event in events}


def play(run_dir: Path, first: int, last: int, watcher: TensorBoardWatcher) -> None:
    """Write rounds first to last to the history and the watcher, as a server does."""
    writer = HistoryWriter(RunDir(run_dir).history, watcher)
    writer.run_started(first, 9)
    for number in range(first, last + 1):
        writer.round_closed(make_record(number))


def test_rounds_are_read_back_with_their_values_and_times(tmp_path: Path) -> None:
    with TensorBoardWatcher(tmp_path / "tensorboard", DISPLAY, lambda _: None) as watcher:
        play(tmp_path, 1, 4, watcher)
        # During the run, not only at its end.
        assert read_back(tmp_path / "tensorboard") == pytest.approx({1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4})
    accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
    accumulator.Reload()
    assert [event.wall_time for event in accumulator.Scalars("delta_theta/norm")] == [1001, 1002, 1003, 1004]


def test_a_round_is_written_with_all_its_values() -> None:
    values = dict(scalars(make_record(2), DISPLAY))
    assert values["delta_theta/norm"] == 0.5
    assert values["delta_theta/moving_average"] == 0.75
    assert (values["updates/accepted"], values["updates/rejected_cosine"], values["updates/missing"]) == (
        1,
        1,
        0,
    )
    assert (values["cosine/lowest"], values["cosine/highest"]) == (-0.25, 0.5)
    assert (values["pseudo_labels/pseudo_labels"], values["pseudo_labels/promoted"]) == (40, 5)
    assert (
        values["purity_of_pseudo_labels/purity_pseudo_labels"],
        values["losses/loss_pseudo"],
        values["seconds/wait"],
    ) == (
        0.75,
        0.25,
        1.0,
    )
    assert "purity_of_pseudo_labels/purity_credible" not in values
    assert "delta_theta/ratio" not in values


def test_non_finite_values_and_undeclared_series_are_left_out() -> None:
    invented = {f"loss_{n}": 1.0 for n in range(10_000)}
    record = dataclasses.replace(make_record(1), delta_norm=math.inf, series=invented)
    values = dict(scalars(record, DISPLAY))
    assert "delta_theta/norm" not in values
    assert len(values) < 70


@pytest.mark.parametrize("killed_after", [3, 5])
def test_a_resumed_run_shows_every_round_once(tmp_path: Path, killed_after: int) -> None:
    """The checkpoint has 3 rounds; the rounds after it are repeated."""
    with TensorBoardWatcher(tmp_path / "tensorboard", DISPLAY, lambda _: None) as watcher:
        play(tmp_path, 1, killed_after, watcher)
    with TensorBoardWatcher(tmp_path / "tensorboard", DISPLAY, lambda _: None) as watcher:
        play(tmp_path, 4, 6, watcher)
    assert list(read_back(tmp_path / "tensorboard")) == [1, 2, 3, 4, 5, 6]


def test_a_running_tensorboard_follows_a_resumed_run(tmp_path: Path) -> None:
    folder = tmp_path / "tensorboard"
    with TensorBoardWatcher(folder, DISPLAY, lambda _: None) as watcher:
        play(tmp_path, 1, 5, watcher)
    running = EventAccumulator(str(folder))
    running.Reload()
    with TensorBoardWatcher(folder, DISPLAY, lambda _: None) as watcher:
        play(tmp_path, 3, 4, watcher)
        running.Reload()
        assert [event.step for event in running.Scalars("accuracy/global")] == [1, 2, 3, 4]
        HistoryWriter(RunDir(tmp_path).history, watcher)
        watcher.round_closed(make_record(5))
        running.Reload()
        assert [event.step for event in running.Scalars("accuracy/global")] == [1, 2, 3, 4, 5]


def test_rounds_before_the_flag_was_given_are_written_too(tmp_path: Path) -> None:
    lines = [json.dumps(dataclasses.asdict(make_record(number))) for number in (1, 2)]
    (tmp_path / "history.jsonl").write_text("\n".join(lines) + "\n")
    with TensorBoardWatcher(tmp_path / "tensorboard", DISPLAY, lambda _: None) as watcher:
        play(tmp_path, 3, 3, watcher)
    assert list(read_back(tmp_path / "tensorboard")) == [1, 2, 3]


def test_rounds_that_will_be_repeated_are_not_written_at_the_start(tmp_path: Path) -> None:
    lines = [json.dumps(dataclasses.asdict(make_record(number))) for number in (1, 2, 3)]
    (tmp_path / "history.jsonl").write_text("\n".join(lines) + "\n")
    with TensorBoardWatcher(tmp_path / "tensorboard", DISPLAY, lambda _: None) as watcher:
        watcher.run_started(3, 9)
        assert list(read_back(tmp_path / "tensorboard")) == [1, 2]


def test_many_restarts_leave_two_files_and_other_files_untouched(tmp_path: Path) -> None:
    folder = tmp_path / "tensorboard"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    for _ in range(5):
        EventFile(folder, DISPLAY, [make_record(1)]).close()
    assert len(list(folder.glob("*tfevents*"))) == 2
    assert (folder / "notes.txt").read_text() == "mine"
    assert read_back(folder) == pytest.approx({1: 0.1})


def test_a_file_from_a_clock_that_was_ahead_leaves_no_stale_rounds(tmp_path: Path) -> None:
    EventFile(tmp_path, DISPLAY, [make_record(1), make_record(2)]).close()
    (ahead,) = tmp_path.iterdir()
    ahead.rename(tmp_path / "events.out.tfevents.9999999998.fedil")
    EventFile(tmp_path, DISPLAY, [make_record(1)]).close()
    assert read_back(tmp_path) == pytest.approx({1: 0.1})


def test_a_folder_that_cannot_be_made_is_reported_once_and_the_run_continues(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    notes: list[Notice] = []
    with TensorBoardWatcher(tmp_path / "tensorboard", DISPLAY, notes.append) as watcher:
        play(tmp_path, 1, 3, watcher)
    (notice,) = notes
    assert "TensorBoard files are not written any more" in str(notice)
    assert "tensorboard" in str(notice)
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 3


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from tests.unit.server_worker.test_tensorboard import DISPLAY, make_record
from broker_config.protocol.errors import FedILError
from server_worker.watch.tensorboard import TensorBoardWatcher

folder, notes = Path(sys.argv[1]), []
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with TensorBoardWatcher(folder / "tensorboard", DISPLAY, notes.append) as watcher:
    watcher.run_started(1, 9)
    watcher.round_closed(make_record(1))
    size = next((folder / "tensorboard").iterdir()).stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    for number in range(2, 6):
        watcher.round_closed(make_record(number))
print(len(notes), notes[0])
"""


def test_a_full_disk_is_reported_once_and_the_run_continues(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 TensorBoard files are not written any more: [Errno 27] File too large")


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("torch.utils.tensorboard", "tensorboard"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(FedILError, match=r"pip install 'fedil\[tensorboard\]'"):
        TensorBoardWatcher(tmp_path / "tensorboard", DISPLAY, lambda _: None)
    assert not (tmp_path / "tensorboard").exists()
