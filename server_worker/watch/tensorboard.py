"""Writes the rounds of a run for TensorBoard, where it is installed; `tensorboard --logdir DIR` shows them live.

Each start writes the whole history into a new event file whose purge step hides the earlier files. Every round is then
shown once and none is missing, whenever the server was killed and whenever --tensorboard was first given.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from broker_config.protocol.errors import FedILError
from fedil_model.methods.interface import Display
from server_worker.run.folder import RunDir
from server_worker.run.history import read_records
from server_worker.watch.events import RoundRecord, Watcher
from server_worker.watch.notices import Notice
from server_worker.watch.outcomes import all_outcomes

_SUFFIX = ".fedil"
_FIRST_ROUND = 1


class TensorBoardWatcher(Watcher):
    """`folder`: DIR/tensorboard of a run. The first write error is reported to `tell`; the run continues."""

    def __init__(self, folder: Path, display: Display, tell: Callable[[Notice], None]) -> None:
        check_installed()
        self._folder, self._display, self._tell = folder, display, tell
        self._history = RunDir(folder.parent).history
        self._file: EventFile | None = None

    def __enter__(self) -> "TensorBoardWatcher":
        return self

    def __exit__(self, *_: object) -> None:
        with self._or_stop():
            if self._file is not None:
                self._file.close()

    def run_started(self, first_round: int, _rounds: int) -> None:
        with self._or_stop():
            earlier = [record for record in read_records(self._history) if record.round < first_round]
            self._file = EventFile(self._folder, self._display, earlier)

    def round_closed(self, record: RoundRecord) -> None:
        with self._or_stop():
            if self._file is not None:
                self._file.add(record)

    @contextmanager
    def _or_stop(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # where TensorFlow is installed, its file system raises errors of its own
            file, self._file = self._file, None
            if file is not None:
                with suppress(Exception):
                    file.close()
            what = f"TensorBoard files are not written any more: {error}"
            self._tell(Notice(f"{what}. The next start writes what is missing"))


class EventFile:
    """A new event file with the given rounds, to which more can be added."""

    def __init__(self, folder: Path, display: Display, records: Iterable[RoundRecord]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._display = display
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
        for tag, value in scalars(record, self._display):
            self._writer.add_scalar(tag, value, record.round, record.finished_at or None)


def check_installed() -> None:
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise FedILError(
            f"TensorBoard is not installed ({error}): pip install 'fedil[tensorboard]', "
            "or leave out --tensorboard"
        ) from error


def scalars(record: RoundRecord, display: Display) -> Iterator[tuple[str, float]]:
    """Tags and values of one round, without unknown and non-finite values."""
    for tag, value in _all_scalars(record, display):
        if value is not None and math.isfinite(value):
            yield tag, float(value)


def _all_scalars(record: RoundRecord, display: Display) -> Iterator[tuple[str, float | None]]:
    for model in display.models:
        yield f"accuracy/{model.name}", record.accuracy.get(model.name)
    yield "delta_theta/norm", record.delta_norm
    for name in ("ratio", "moving_average", "relative", "lr_normalised", "exponent"):
        yield f"delta_theta/{name}", record.convergence.get(name)
    outcomes = Counter(outcome.outcome for outcome in record.outcomes)
    for declared in all_outcomes(display):
        yield f"updates/{declared.name}", outcomes[declared.name]
    for value in display.client_values:
        yield from _spread(value.name, record)
    for chart in display.charts:
        group = re.sub(r"[^a-z0-9]+", "_", chart.title.lower())
        for series in chart.series:
            yield f"{group}/{series.name}", record.series.get(series.name)
    for phase, seconds in record.seconds.items():
        yield f"seconds/{phase}", seconds


def _spread(value: str, record: RoundRecord) -> Iterator[tuple[str, float]]:
    known = sorted(outcome.values[value] for outcome in record.outcomes if value in outcome.values)
    if known:
        yield f"{value}/lowest", known[0]
        yield f"{value}/middle", known[len(known) // 2]
        yield f"{value}/highest", known[-1]
