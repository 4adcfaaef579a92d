"""The folder of a run: is it free, is it ours, and how to replace it without losing the old one too early."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedil_model.errors import SettingError

OURS = ("recipe", "split", "history", "baseline", "checkpoints", "ledgers", "shards", "logs")


def is_run(run_dir: Path) -> bool:
    return (run_dir / "recipe.json").is_file()


def has_checkpoint(run_dir: Path) -> bool:
    folder = run_dir / "checkpoints"
    return folder.is_dir() and any(folder.iterdir())


def refuse_if_taken(run_dir: Path, *, resume: bool, overwrite: bool) -> None:
    if run_dir.exists() and not run_dir.is_dir():
        raise SettingError(f"{run_dir} is a file: choose another --run-dir")
    if not run_dir.exists() or not any(run_dir.iterdir()):
        return
    if not is_run(run_dir) and not only_beginnings_of_a_run(run_dir):
        raise SettingError(f"{run_dir} holds files that are not of a run: choose another --run-dir")
    if not resume and not overwrite:
        raise SettingError(
            f"{run_dir} already holds a run: add --resume to go on with it, or --overwrite to replace it"
        )


def only_beginnings_of_a_run(run_dir: Path) -> bool:
    """A run that was killed in its first moments leaves files that are half written, under such names."""
    return all(entry.name.lstrip(".").startswith(OURS) for entry in run_dir.iterdir())


@contextmanager
def replacing(run_dir: Path) -> Iterator[None]:
    """Moves the old run aside; it is deleted when the new one has ended or has something to go on from, and
    comes back when the new one fails before that (a missing dataset, say)."""
    place = run_dir.resolve()
    aside = place.with_name(place.name + ".replaced")
    if not place.exists():
        yield
        return
    shutil.rmtree(aside, ignore_errors=True)
    place.rename(aside)
    try:
        yield
    except BaseException:
        if not has_checkpoint(place):
            shutil.rmtree(place, ignore_errors=True)
            aside.rename(place)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
