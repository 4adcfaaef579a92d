"""The workers of a run on this machine: their output goes to the run's folder."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from client_worker.pool import WorkerPool


def start_workers(
    arguments: Sequence[str],
    plugins: Sequence[str],
    count: int,
    logs: Path,
    note: Callable[[str], None],
    gave_up: Callable[[], None],
    name: str = "worker",
) -> WorkerPool:
    """`plugins`: code that tasks may name; `note` is told of deaths; `name` begins the names of their logs."""
    logs.mkdir(parents=True, exist_ok=True)
    # They find modules where this process does, such as beside the script that runs.
    path = os.pathsep.join(place or os.getcwd() for place in sys.path)
    return WorkerPool(
        [*arguments, *(word for plugin in plugins for word in ("--plugin", plugin))],
        count,
        open_log=lambda number: (logs / f"{name}-{number}.log").open("ab", buffering=0),
        note=note,
        gave_up=gave_up,
        see=f" (see {logs})",
        environment={**os.environ, "PYTHONPATH": path},
    )
