"""How often what happens very often is told."""

import time
from collections.abc import Callable

from server_worker.watch.events import Watcher

Clock = Callable[[], float]
_EPOCHS_EVERY_SECONDS = 1.0
LINES_EVERY_SECONDS = 10.0
"""Between two lines of a log on the same training"""


class Every:
    """True once in so many seconds, and not before so many have passed."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self._seconds, self._clock, self._last = seconds, clock, clock()

    def __call__(self) -> bool:
        now = self._clock()
        is_due = now - self._last >= self._seconds
        if is_due:
            self._last = now
        return is_due


class EpochTeller:
    """Called after each epoch of a training that begins now: tells a watcher how far it is, and the time left."""

    def __init__(self, watcher: Watcher, clock: Clock = time.monotonic) -> None:
        self._watcher, self._clock, self._began = watcher, clock, clock()
        self._is_due = Every(_EPOCHS_EVERY_SECONDS, clock)

    def __call__(self, done: int, total: int) -> None:
        if self._is_due() or done == total:
            self._watcher.epochs(done, total, (self._clock() - self._began) / done * (total - done))
