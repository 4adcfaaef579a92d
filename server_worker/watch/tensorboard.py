"""A run's rounds for TensorBoard, where it is installed: `tensorboard --logdir DIR` then shows them, live too.

The history stays the truth. A start writes all of it anew into a file of its own, which makes TensorBoard forget the
earlier one: a round is there once and none is missing, whatever killed the server and whenever --tensorboard was first
given.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from broker_config.protocol.errors import FedILError
from server_worker.run.folder import RunDir
from server_worker.run.history import read_records
from server_worker.watch.events import ClientOutcome, RoundRecord

_log = logging.getLogger(__name__)
_OURS = ".fedil"
_MOST_LOSSES, _LONGEST_NAME = 30, 60
"""Clients name them: a scalar each must not make ten thousand."""
_FIRST_ROUND = 1


class TensorBoardMissing(FedILError):
    pass


class TensorBoardWatcher:
    """`folder`: DIR/tensorboard of a run; `tell` is told of a disk that fails, once, and the run goes on."""

    def __init__(self, folder: Path, tell: Callable[[str], None] = _log.warning) -> None:
        check_installed()
        self._folder, self._tell = folder, tell
        self._history = RunDir(folder.parent).history
        self._file: EventFile | None = None

    def __enter__(self) -> "TensorBoardWatcher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._or_give_up(self._file.close)

    def run_started(self, first_round: int, _rounds: int) -> None:
        def begin() -> None:
            earlier = [record for record in read_records(self._history) if record.round < first_round]
            self._file = EventFile(self._folder, earlier)

        self._or_give_up(begin)

    def phase(self, round_number: int, name: str) -> None:
        pass

    def update_arrived(self, round_number: int, outcome: ClientOutcome, answered: int, selected: int) -> None:
        pass

    def round_closed(self, record: RoundRecord) -> None:
        file = self._file
        if file is not None:
            self._or_give_up(lambda: file.add(record))

    def note(self, text: str) -> None:
        pass

    def _or_give_up(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (OSError, FedILError) as error:
            file, self._file = self._file, None
            if file is not None:
                with suppress(OSError):
                    file.close()
            self._tell(
                f"TensorBoard is told nothing more: {error}. The run goes on; its next start writes what is missing"
            )


class EventFile:
    """All rounds known, in a new file, to which more can be added."""

    def __init__(self, folder: Path, records: Iterable[RoundRecord]) -> None:
        from torch.utils.tensorboard import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        superseded = sorted(path for path in folder.iterdir() if path.name.endswith(_OURS))
        self._file: IO[bytes] = (folder / _name_after(superseded)).open("xb")
        self._writer: Any = RecordWriter(self._file)
        self._write_beginning()
        for record in records:
            self._write_round(record)
        self._file.flush()
        # A TensorBoard that is looking on is stuck if the file that it reads vanishes: the last one stays.
        for path in superseded[:-1]:
            path.unlink(missing_ok=True)

    def add(self, record: RoundRecord) -> None:
        self._write_round(record)
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write_beginning(self) -> None:
        """Whoever reads this forgets the rounds of earlier files: SummaryWriter's purge_step."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        now = time.time()
        self._write(Event(wall_time=now, file_version="brain.Event:2"))
        start = SessionLog(status=SessionLog.START)
        self._write(Event(wall_time=now, step=_FIRST_ROUND, session_log=start))

    def _write_round(self, record: RoundRecord) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record)]
        at = record.finished_at or time.time()
        self._write(Event(wall_time=at, step=record.round, summary=Summary(value=values)))

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())


def check_installed() -> None:
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise TensorBoardMissing(
            f"TensorBoard is not installed ({error}): pip install 'fedil[tensorboard]', "
            "or leave out --tensorboard"
        ) from error


def _name_after(superseded: list[Path]) -> str:
    """TensorBoard reads the files of a folder in the order of their names, and clocks go back."""
    parts = [part for path in superseded for part in path.name.split(".")[3:4] if part.isdecimal()]
    last = max(map(int, parts), default=0)
    return f"events.out.tfevents.{max(int(time.time()), last + 1):010d}{_OURS}"


def scalars(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """Names and values of one round; what is not known or not finite is left out."""
    for tag, value in _all_scalars(record):
        if value is not None and math.isfinite(value):
            yield tag, float(value)


def _all_scalars(record: RoundRecord) -> Iterator[tuple[str, float | None]]:
    for model, share in record.accuracy.items():
        yield f"accuracy/{model}", share
    yield "delta_theta/norm", record.delta_norm
    yield "delta_theta/reference_norm", record.reference_norm
    for name in ("ratio", "moving_average", "relative", "lr_normalised", "exponent"):
        yield f"delta_theta/{name}", record.convergence.get(name)
    outcomes = Counter(outcome.outcome for outcome in record.outcomes)
    for outcome in ("accepted", "projected", "rejected_cosine", "invalid", "refused", "missing", "stale"):
        yield f"updates/{outcome}", outcomes[outcome]
    yield from _cosines(record)
    yield "pseudo_labels/held", record.pseudo_labels
    yield "pseudo_labels/credible", record.credible
    yield "pseudo_labels/promoted", record.promoted
    for name, purity in record.purity.items():
        yield f"purity/{name}", purity
    for name in sorted(record.losses)[:_MOST_LOSSES]:
        yield f"loss/{name.removeprefix('loss_')[:_LONGEST_NAME]}", record.losses[name]
    for phase, seconds in record.seconds.items():
        yield f"seconds/{phase}", seconds


def _cosines(record: RoundRecord) -> Iterator[tuple[str, float]]:
    known = sorted(outcome.cosine for outcome in record.outcomes if outcome.cosine is not None)
    if known:
        yield "cosine/lowest", known[0]
        yield "cosine/middle", known[len(known) // 2]
        yield "cosine/highest", known[-1]
