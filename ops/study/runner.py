"""Runs the cells of a study, several at a time. What is done stays done: the same study goes on where it was."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedil_model.errors import SettingError
from ops.inspect.run_place import is_run
from ops.inspect.run_reading import recipe_values
from ops.local.services.process import GuardedProcess
from ops.study.cell import CellFile
from ops.study.cells import Cell
from server_worker.run.folder import RunDir
from server_worker.run.history import read_history
from server_worker.run.recipe import make_recipe
from server_worker.run.resuming import refuse_differences

State = Literal["waiting", "running", "done", "failed"]
_POLL_SECONDS = 0.5


@dataclass
class Progress:
    cell: Cell
    state: State = "waiting"
    round: int = 0
    rounds: int = 0
    accuracy: float | None = None
    cpu_seconds: float = 0.0
    reason: str = ""
    """Why it failed"""


@dataclass
class Study:
    folder: Path
    cells: Sequence[Cell]
    device: str = "auto"
    cpu_seconds: float | None = None
    """Budget of each cell; None: as many rounds as its recipe says"""

    def file_of(self, cell: Cell) -> CellFile:
        return CellFile(self.folder / "cells" / f"{cell.name}.json")

    def prepare(self) -> None:
        """Writes what each cell runs. Raises SettingError where the folder holds a run with other settings."""
        (self.folder / "cells").mkdir(parents=True, exist_ok=True)
        for cell in self.cells:
            file = self.file_of(cell)
            fields: dict[str, Any] = {"recipe": cell.recipe.model_dump(mode="json"), "device": self.device}
            if self.cpu_seconds is not None:
                fields["cpu_seconds"] = self.cpu_seconds
            if is_run(file.run_dir):
                self._refuse_other_settings(cell, file)
            elif not file.path.exists() or file.read() != fields:
                file.write(fields)

    def _refuse_other_settings(self, cell: Cell, file: CellFile) -> None:
        saved, kept = make_recipe(recipe_values(file.run_dir)), file.read()
        remedy = "Use those, or another --out"
        if kept.get("cpu_seconds") != self.cpu_seconds:
            change = f"--cpu-seconds was {kept.get('cpu_seconds')}, is {self.cpu_seconds}"
            raise SettingError(f"{file.run_dir} was started with other settings: {change}. {remedy}")
        asked = cell.recipe.model_copy(update={"rounds": kept.get("rounds", cell.recipe.rounds)})
        refuse_differences(file.run_dir, saved, asked, remedy)

    def run(
        self, jobs: int, stop: threading.Event, show: Callable[[Sequence[Progress]], None]
    ) -> list[Progress]:
        """Until every cell is done or failed, or `stop` is set: then the running cells stop where they can go on."""
        known = {cell.name: Progress(cell) for cell in self.cells}
        for cell in self.cells:
            self._look(known[cell.name])
        waiting = [cell for cell in self.cells if known[cell.name].state != "done"]
        running: dict[str, GuardedProcess] = {}
        asked_to_stop: set[str] = set()
        try:
            while (waiting and not stop.is_set()) or running:
                while waiting and len(running) < jobs and not stop.is_set():
                    cell = waiting.pop(0)
                    running[cell.name] = _started(self.file_of(cell))
                    known[cell.name].state = "running"
                # Once: a second signal would end them at once.
                for name in running.keys() - asked_to_stop if stop.is_set() else ():
                    asked_to_stop.add(name)
                    running[name].terminate()
                for name, process in list(running.items()):
                    code, progress = process.poll(), known[name]
                    self._look(progress)
                    if code is None:
                        continue
                    running.pop(name).end()
                    if code == 1 or code < 0 or progress.state != "done":
                        stopped = code == 3 or stop.is_set()
                        progress.state = "waiting" if stopped else "failed"
                        progress.reason = "" if stopped else _last_words(self.file_of(progress.cell), code)
                show(list(known.values()))
                time.sleep(_POLL_SECONDS)
        finally:
            for process in running.values():
                process.end()
        return list(known.values())

    def _look(self, progress: Progress) -> None:
        file = self.file_of(progress.cell)
        kept = file.read() if file.path.exists() else {}
        progress.rounds = kept.get("rounds", progress.cell.recipe.rounds)
        records = list(read_history(RunDir(file.run_dir).history))
        if records:
            progress.round = records[-1]["round"]
            progress.cpu_seconds = sum(record.get("cpu_seconds", 0.0) for record in records)
            known = [record["accuracy"]["global"] for record in records if record["accuracy"]]
            progress.accuracy = known[-1] if known else None
        if progress.round >= progress.rounds:
            progress.state = "done"


def _started(file: CellFile) -> GuardedProcess:
    words = [sys.executable, "-m", "ops.study.cell", str(file.path)]
    with _log(file).open("wb") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return GuardedProcess(words, stdout=log, stderr=subprocess.STDOUT, env=environment)


def _log(file: CellFile) -> Path:
    return file.path.with_suffix(".log")


def _last_words(file: CellFile, code: int) -> str:
    lines = _log(file).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else f"its process ended with code {code}"
