"""The workers of a run on this machine: their output in the run's folder, their deaths told to who watches."""

import threading
from collections.abc import Sequence
from pathlib import Path

from client_worker import pool
from server_worker.watch.events import Watcher


class WorkerPool(pool.WorkerPool):
    def __init__(
        self, arguments: Sequence[str], count: int, logs: Path, watcher: Watcher, stop: threading.Event
    ) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        super().__init__(
            arguments,
            count,
            open_log=lambda number: (logs / f"worker-{number}.log").open("ab", buffering=0),
            note=watcher.note,
            gave_up=stop.set,
            see=f" (see {logs})",
        )
