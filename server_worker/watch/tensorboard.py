"""Writes the rounds of a run for TensorBoard, where it is installed; `tensorboard --logdir DIR` shows them live.

Each start writes the whole history into a new event file whose purge step hides the earlier files. Every round is then
shown once and none is missing, whenever the server was killed and whenever --tensorboard was first given.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from broker_config.protocol.errors import FedILError
from server_worker.run.folder import RunDir
from server_worker.run.history import read_records
from server_worker.watch.events import ClientOutcome, RoundRecord

_log = logging.getLogger(__name__)
_SUFFIX = ".fedil"
_FIRST_ROUND = 1
_MOST_LOSSES, _LONGEST_NAME = 30, 60
"""Clients choose the names: a limit on the number of scalars"""


class TensorBoardMissing(FedILError):
    pass


class TensorBoardWatcher:
    """`folder`: DIR/tensorboard of a run. The first write error is reported through `tell`; the run continues."""

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
            self._or_stop(self._file.close)

    def run_started(self, first_round: int, _rounds: int) -> None:
        def begin() -> None:
            earlier = [record for record in read_records(self._history) if record.round < first_round]
            self._file = EventFile(self._folder, earlier)

        self._or_stop(begin)

    def phase(self, round_number: int, name: str) -> None:
        pass

    def update_arrived(self, round_number: int, outcome: ClientOutcome, answered: int, selected: int) -> None:
        pass

    def round_closed(self, record: RoundRecord) -> None:
        file = self._file
        if file is not None:
            self._or_stop(lambda: file.add(record))

    def note(self, text: str) -> None:
        pass

    def _or_stop(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # where TensorFlow is installed, its file system raises errors of its own
            file, self._file = self._file, None
            if file is not None:
                with suppress(Exception):
                    file.close()
            self._tell(
                f"TensorBoard is told nothing more: {error}. The run goes on; its next start writes what is missing"
            )


class EventFile:
    """A new event file with the given rounds, to which more can be added."""

    def __init__(self, folder: Path, records: Iterable[RoundRecord]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        earlier = set(folder.glob(f"*{_SUFFIX}"))
        self._writer = SummaryWriter(folder, purge_step=_FIRST_ROUND, filename_suffix=_SUFFIX)
        for record in records:
            self._write(record)
        self._writer.flush()
        (new,) = set(folder.glob(f"*{_SUFFIX}")) - earlier
        # TensorBoard reads files in the order of their names. The last one before the new one stays, because a running
        # TensorBoard stops updating if the file that it reads disappears.
        before = sorted(path for path in earlier if path < new)
        for path in earlier - set(before[-1:]):
            path.unlink(missing_ok=True)

    def add(self, record: RoundRecord) -> None:
        self._write(record)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write(self, record: RoundRecord) -> None:
        for tag, value in scalars(record):
            self._writer.add_scalar(tag, value, record.round, record.finished_at or None)


def check_installed() -> None:
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise TensorBoardMissing(
            f"TensorBoard is not installed ({error}): pip install 'fedil[tensorboard]', "
            "or leave out --tensorboard"
        ) from error


def scalars(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """Tags and values of one round, without unknown and non-finite values."""
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
