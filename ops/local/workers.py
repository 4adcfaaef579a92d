"""The workers of a run on this machine: output goes to the run's folder, deaths to its watchers."""

import threading
from collections.abc import Sequence
from pathlib import Path

from client_worker import pool
from server_worker.watch.events import Watcher
from server_worker.watch.notices import Notice


class WorkerPool(pool.WorkerPool):
    def __init__(
        self, arguments: Sequence[str], count: int, logs: Path, watcher: Watcher, stop: threading.Event
    ) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        super().__init__(
            arguments,
            count,
            open_log=lambda number: (logs / f"worker-{number}.log").open("ab", buffering=0),
            note=lambda text: watcher.note(Notice(text)),
            gave_up=stop.set,
            see=f" (see {logs})",
        )
