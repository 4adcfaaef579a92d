"""Checks of a run's folder, and its replacement without losing the old run too early."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedil_model.errors import SettingError
from server_worker.run.folder import RunDir
from server_worker.run.lock import lock_file

OURS = tuple(path.name for path in vars(RunDir(Path())).values() if path.name)
"""What a run writes into its folder"""


def is_run(run_dir: Path) -> bool:
    return RunDir(run_dir).recipe.is_file()


def has_checkpoint(run_dir: Path) -> bool:
    return any(RunDir(run_dir).checkpoints.glob("*.ckpt"))


def refuse_if_taken(run_dir: Path, *, resume: bool, overwrite: bool) -> None:
    if run_dir.exists() and not run_dir.is_dir():
        raise SettingError(f"{run_dir} is a file: choose another --run-dir")
    if not run_dir.exists() or not entries(run_dir):
        return
    # A run that was killed in its first moments leaves half-written files with our names.
    if not is_run(run_dir) and not all(name.lstrip(".").startswith(OURS) for name in entries(run_dir)):
        raise SettingError(f"{run_dir} holds files that are not of a run: choose another --run-dir")
    if not resume and not overwrite:
        raise SettingError(
            f"{run_dir} already holds a run: add --resume to go on with it, or --overwrite to replace it"
        )


def entries(run_dir: Path) -> set[str]:
    return {entry.name for entry in run_dir.iterdir()} - {lock_file(run_dir.resolve()).name}


@contextmanager
def replacing(run_dir: Path) -> Iterator[None]:
    """Moves the old run aside. It is deleted once the new run has a checkpoint, and moved back if the new run ends
    before that, as after an early Ctrl-C."""
    place = run_dir.resolve()
    aside = place.with_name(place.name + ".replaced")
    keep_one(place, aside)  # a kill -9 may have left both
    if place.exists():
        place.rename(aside)
    try:
        yield
    finally:
        keep_one(place, aside)


def keep_one(place: Path, aside: Path) -> None:
    if not aside.exists():
        return
    if has_checkpoint(place):
        shutil.rmtree(aside, ignore_errors=True)
    else:
        shutil.rmtree(place, ignore_errors=True)
        aside.rename(place)
