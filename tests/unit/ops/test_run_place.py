import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker_config.protocol.errors import FedILError
from fedil_model.errors import DataError, SettingError
from ops.inspect.run_place import has_checkpoint, refuse_if_taken, replacing
from server_worker.run.folder import RunDir
from server_worker.run.lock import sole_use


def make_run(run_dir: Path, recipe: str = "{}") -> Path:
    run_dir.mkdir()
    (run_dir / "recipe.json").write_text(recipe)
    return run_dir


def save_checkpoint(run_dir: Path) -> None:
    (run_dir / "checkpoints").mkdir()
    (run_dir / "checkpoints" / "round-00000001.ckpt").write_text("weights")


def test_a_new_or_empty_folder_is_free(tmp_path: Path) -> None:
    refuse_if_taken(tmp_path, resume=False, overwrite=False)
    refuse_if_taken(tmp_path / "new", resume=False, overwrite=False)


def test_a_folder_with_a_run_is_refused_with_both_ways_out(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run")
    with pytest.raises(SettingError, match=r"--resume .* --overwrite"):
        refuse_if_taken(run_dir, resume=False, overwrite=False)
    refuse_if_taken(run_dir, resume=True, overwrite=False)
    refuse_if_taken(run_dir, resume=False, overwrite=True)


def test_a_folder_of_other_files_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for resume, overwrite in [(False, False), (True, False), (False, True)]:
        with pytest.raises(SettingError, match="choose another"):
            refuse_if_taken(tmp_path, resume=resume, overwrite=overwrite)


def test_a_run_killed_in_its_first_moments_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "recipe.json.tmp").write_text("{")
    refuse_if_taken(tmp_path, resume=True, overwrite=False)


@pytest.mark.parametrize(
    "file",
    [RunDir(Path()).recipe, RunDir(Path()).baseline, RunDir(Path()).history, RunDir(Path()).logs / "x"],
)
def test_every_file_that_a_run_may_begin_with_is_known_as_its_own(file: Path, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("half")
    refuse_if_taken(tmp_path, resume=True, overwrite=False)


def test_a_half_written_checkpoint_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    assert has_checkpoint(tmp_path)
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    checkpoint.rename(f"{checkpoint}.tmp")
    assert not has_checkpoint(tmp_path)


# ---- --overwrite


def test_a_replaced_run_is_gone_when_the_new_one_has_ended(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", "old")
    with replacing(run_dir):
        assert not run_dir.exists()
        make_run(run_dir, "new")
        save_checkpoint(run_dir)
    assert (run_dir / "recipe.json").read_text() == "new"
    assert list(tmp_path.iterdir()) == [run_dir]


def fail_after(run_dir: Path, with_checkpoint: bool) -> None:
    with replacing(run_dir):
        make_run(run_dir, "new")
        if with_checkpoint:
            save_checkpoint(run_dir)
        raise DataError("mnist is not in /data")


def test_the_old_run_comes_back_when_the_new_one_fails_before_it_saved_anything(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", "old")
    with pytest.raises(DataError):
        fail_after(run_dir, with_checkpoint=False)
    assert (run_dir / "recipe.json").read_text() == "old"
    assert list(tmp_path.iterdir()) == [run_dir]


def test_the_new_run_stays_when_it_fails_after_it_saved_something(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", "old")
    with pytest.raises(DataError):
        fail_after(run_dir, with_checkpoint=True)
    assert (run_dir / "recipe.json").read_text() == "new"
    assert list(tmp_path.iterdir()) == [run_dir]


def test_the_old_run_comes_back_when_the_new_one_is_stopped_before_it_saved_anything(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", "old")
    with replacing(run_dir):
        make_run(run_dir, "new")
    assert (run_dir / "recipe.json").read_text() == "old"
    assert list(tmp_path.iterdir()) == [run_dir]


@pytest.mark.parametrize("began", [False, True])
def test_a_run_that_a_killed_overwrite_left_aside_is_not_lost_to_the_next_one(
    tmp_path: Path, began: bool
) -> None:
    run_dir, aside = tmp_path / "run", make_run(tmp_path / "run.replaced", "old")
    save_checkpoint(aside)
    if began:
        make_run(run_dir, "killed")
    with pytest.raises(DataError):
        fail_after(run_dir, with_checkpoint=False)
    assert (run_dir / "recipe.json").read_text() == "old"
    assert list(tmp_path.iterdir()) == [run_dir]


def test_what_a_killed_overwrite_left_aside_goes_if_its_new_run_had_saved_something(tmp_path: Path) -> None:
    make_run(tmp_path / "run.replaced", "older")
    run_dir = make_run(tmp_path / "run", "old")
    save_checkpoint(run_dir)
    with pytest.raises(DataError):
        fail_after(run_dir, with_checkpoint=False)
    assert (run_dir / "recipe.json").read_text() == "old"


# ---- one process at a time

HOLD = """
import sys, time
from pathlib import Path
from server_worker.run.lock import sole_use
with sole_use(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_in_use_is_refused_until_the_process_that_uses_it_has_died(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", HOLD, run_dir], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        words = rf"run is in use by another fedil \(pid {holder.pid}\): stop it or use another --run-dir"
        with pytest.raises(FedILError, match=words), sole_use(run_dir):
            pass
        with sole_use(tmp_path / "another"):
            pass
        holder.kill()
    with sole_use(run_dir):
        pass


def test_a_folder_stays_in_use_while_its_old_run_is_moved_aside(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run")
    (tmp_path / "link").symlink_to(run_dir)
    with sole_use(run_dir), replacing(run_dir):
        with pytest.raises(FedILError, match=f"pid {os.getpid()}"), sole_use(run_dir):
            pass
        make_run(run_dir)
        with pytest.raises(FedILError, match="in use"), sole_use(tmp_path / "link"):
            pass


def test_using_a_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    with sole_use(tmp_path / "runs" / "run"):
        pass
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_lock_that_was_deleted_by_its_last_holder_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def flock_after_the_other_left(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        (tmp_path / ".run.lock").unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_after_the_other_left)
    with sole_use(tmp_path / "run"):
        assert (tmp_path / ".run.lock").read_text() == str(os.getpid())


def test_a_folder_whose_parent_is_read_only_is_locked_from_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)  # for root, nothing is read-only
    with sole_use(run_dir):
        assert list(tmp_path.iterdir()) == [run_dir]
        refuse_if_taken(run_dir, resume=False, overwrite=False)
        with pytest.raises(FedILError, match="in use"), sole_use(run_dir):
            pass
    assert list(run_dir.iterdir()) == []
