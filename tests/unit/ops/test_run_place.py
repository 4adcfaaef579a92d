from pathlib import Path

import pytest

from fedil_model.errors import DataError, SettingError
from ops.run_place import refuse_if_taken, replacing


def make_run(run_dir: Path, recipe: str = "{}") -> Path:
    run_dir.mkdir()
    (run_dir / "recipe.json").write_text(recipe)
    return run_dir


def save_checkpoint(run_dir: Path) -> None:
    (run_dir / "checkpoints").mkdir()
    (run_dir / "checkpoints" / "1").write_text("weights")


def test_a_new_or_empty_folder_is_free(tmp_path: Path) -> None:
    refuse_if_taken(tmp_path, resume=False, overwrite=False)
    refuse_if_taken(tmp_path / "new", resume=False, overwrite=False)


def test_a_folder_with_a_run_is_refused_with_both_ways_out(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run")
    with pytest.raises(SettingError, match=r"--resume .* --overwrite"):
        refuse_if_taken(run_dir, resume=False, overwrite=False)
    refuse_if_taken(run_dir, resume=True, overwrite=False)
    refuse_if_taken(run_dir, resume=False, overwrite=True)


def test_a_folder_of_somebody_elses_files_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for resume, overwrite in [(False, False), (True, False), (False, True)]:
        with pytest.raises(SettingError, match="choose another"):
            refuse_if_taken(tmp_path, resume=resume, overwrite=overwrite)


def test_a_run_killed_in_its_first_moments_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "recipe.json.tmp").write_text("{")
    refuse_if_taken(tmp_path, resume=True, overwrite=False)


def test_a_replaced_run_is_gone_when_the_new_one_has_ended(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", "old")
    with replacing(run_dir):
        assert not run_dir.exists()
        make_run(run_dir, "new")
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
