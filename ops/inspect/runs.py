"""The runs below a folder, by what their files say: nothing that a recipe names is imported."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_config.protocol.errors import FedILError
from ops.inspect.report.reading import in_use
from ops.inspect.run_place import is_run
from ops.inspect.run_reading import recipe_values
from server_worker.run.folder import RunDir
from server_worker.run.history import read_history
from server_worker.run.resuming import rounds_done


@dataclass(frozen=True)
class RunFacts:
    path: Path
    state: str
    """running, finished, stopped, or damaged with the reason"""
    recipe: str = ""
    method: str = ""
    rounds_done: int = 0
    rounds: int = 0
    accuracy: float | None = None
    """Of the model that ships, as last measured"""
    changed: float = 0.0
    """When its files last did, in seconds since 1970"""
    bytes: int = 0


def runs_below(folder: Path) -> list[RunFacts]:
    """The one that changed last comes first."""
    return sorted(map(facts_of, folders_of_runs(folder)), key=lambda run: -run.changed)


def folders_of_runs(folder: Path) -> Iterator[Path]:
    """`folder` may be a run itself. Nothing in a run is searched."""
    for place, below, _ in os.walk(folder):
        if is_run(Path(place)):
            below.clear()
            yield Path(place)
        below[:] = sorted(name for name in below if not name.startswith("."))


def facts_of(run_dir: Path) -> RunFacts:
    changed, size = _files(run_dir)
    try:
        values = recipe_values(run_dir)
        done, rounds = rounds_done(run_dir), int(values["rounds"])
        known = [record["accuracy"].get("global") for record in read_history(RunDir(run_dir).history)]
        measured = [share for share in known if share is not None]
        return RunFacts(
            run_dir,
            _state(run_dir, done, rounds),
            recipe=str(values["name"]),
            method=str(values["method"]["name"]),
            rounds_done=done,
            rounds=rounds,
            accuracy=measured[-1] if measured else None,
            changed=changed,
            bytes=size,
        )
    except (FedILError, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        return RunFacts(run_dir, f"damaged ({type(error).__name__}: {error})", changed=changed, bytes=size)


def _state(run_dir: Path, done: int, rounds: int) -> str:
    if in_use(run_dir):
        return "running"
    return "finished" if done >= rounds else "stopped"


def _files(run_dir: Path) -> tuple[float, int]:
    """When the last of them changed, and their bytes. A running one deletes files meanwhile."""
    changed, size = 0.0, 0
    for place, _, names in os.walk(run_dir):
        for name in names:
            try:
                found = os.stat(os.path.join(place, name), follow_symlinks=False)
            except FileNotFoundError:
                continue
            changed, size = max(changed, found.st_mtime), size + found.st_size
    return changed, size


def as_json(run: RunFacts) -> dict[str, Any]:
    return {**vars(run), "path": str(run.path)}
