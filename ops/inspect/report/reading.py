"""Reads a run's folder into a value. An optional file that cannot be read becomes a note instead of an error."""

import copy
import fcntl
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from broker_config.protocol.errors import FedILError
from fedil_model.data.split import Split
from fedil_model.errors import DataError
from fedil_model.methods import method_named, settings_class, validate
from fedil_model.methods.interface import Display
from fedil_model.settings import explain
from ops.inspect.run_reading import recipe_values, refuse_other_plugins
from server_worker.run.checkpoint import CheckpointFolder
from server_worker.run.environment import read_environment
from server_worker.run.folder import RunDir, read_baseline
from server_worker.run.history import read_records
from server_worker.run.lock import lock_file
from server_worker.run.name import known_run
from server_worker.run.recipe import Recipe, flatten
from server_worker.watch.events import RoundRecord

_T = TypeVar("_T")


@dataclass(frozen=True)
class Run:
    where: RunDir
    recipe: Recipe
    settings: Mapping[str, Any]
    """By dotted key, as in recipe.json"""
    records: tuple[RoundRecord, ...]
    running: bool
    """A server holds the lock of the folder."""
    run_id: str | None = None
    """The name of the run at the brokers; None in runs of earlier versions"""
    baseline: float | None = None
    split: Split | None = None
    environment: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    rounds_lost: int = 0
    """Rounds closed according to the checkpoint, if the history is missing"""

    @property
    def display(self) -> Display:
        return self.recipe.spec.display

    @property
    def label(self) -> str:
        return self.where.root.resolve().name or self.recipe.name

    @property
    def rounds_done(self) -> int:
        return self.records[-1].round if self.records else 0

    @property
    def state(self) -> str:
        done, planned = self.rounds_done, self.recipe.rounds
        if self.running:
            return f"round {done} of {planned}, still running"
        if not self.records:
            return self.no_rounds
        if done >= planned:
            return f"finished, {num_rounds(done)}"
        return f"stopped after {done} of {planned} rounds"

    @property
    def no_rounds(self) -> str:
        """Why the run has no records"""
        return "the history is missing" if self.rounds_lost else "no round has closed yet"

    def by_round(self, value: Callable[[RoundRecord], float | None]) -> dict[int, float]:
        """Without rounds in which it is unknown or not finite"""
        found = ((record.round, value(record)) for record in self.records)
        return {number: value for number, value in found if value is not None and math.isfinite(value)}

    def accuracy(self, model: str) -> dict[int, float]:
        return self.by_round(lambda record: record.accuracy.get(model))


def num_rounds(number: int) -> str:
    return f"{number:,} rounds" if number != 1 else "1 round"


def read_run(folder: Path, plugins: Collection[str] = ()) -> Run:
    """`plugins`: code that its recipe may name"""
    where = RunDir(folder)
    notes: list[str] = []
    values = recipe_values(folder)
    refuse_other_plugins(folder, values, plugins)
    recipe, unknown = _known_part(values, str(where.recipe))
    if unknown:
        notes.append(
            f"recipe.json has settings that this version does not know: {', '.join(unknown)}. "
            "They are shown, and not understood"
        )
    running = in_use(folder)
    records = _records(where.history, running, notes)
    latest = None if where.history.exists() else _noted(notes, CheckpointFolder(where.checkpoints).latest)
    return Run(
        where=where,
        recipe=recipe,
        settings=flatten(values),
        records=records,
        running=running,
        run_id=_noted(notes, lambda: known_run(where)),
        baseline=_noted(notes, lambda: read_baseline(where).get("accuracy")),
        split=_noted(notes, lambda: Split.load(where.split) if where.split.exists() else None),
        environment=_noted(notes, lambda: read_environment(where)) or (),
        notes=tuple(notes),
        rounds_lost=latest.round if latest else 0,
    )


def _noted(notes: list[str], read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except (FedILError, DataError, OSError) as error:
        notes.append(str(error))
        return None


def _known_part(values: dict[str, Any], source: str) -> tuple[Recipe, list[str]]:
    """The recipe without the settings that this version does not know, and their names."""
    try:
        return validate(Recipe, values), []
    except ValidationError as error:
        extra = [detail["loc"] for detail in error.errors() if detail["type"] == "extra_forbidden"]
        if not extra:
            model = settings_class(Recipe, method_named(values))
            raise FedILError(explain(error, lambda _: source, model)) from error
    known = copy.deepcopy(values)
    for *path, key in extra:
        table: Any = known
        for part in path:
            table = table[part]
        del table[key]
    recipe, more = _known_part(known, source)
    return recipe, [".".join(map(str, place)) for place in extra] + more


def _records(history: Path, running: bool, notes: list[str]) -> tuple[RoundRecord, ...]:
    if not history.exists():
        if not running:
            notes.append("There is no history.jsonl in the folder, so nothing is known of any round")
        return ()
    if not running and history.read_bytes()[-1:] not in (b"", b"\n"):
        notes.append(
            "The last line of history.jsonl is half written, as a crash leaves it, and was passed over"
        )
    by_round = {record.round: record for record in read_records(history)}
    return tuple(by_round[number] for number in sorted(by_round))


def in_use(folder: Path) -> bool:
    """Whether a server holds the folder's lock; never waits."""
    try:
        with lock_file(folder.resolve()).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # there is none, or the file system has no locks
    return False
