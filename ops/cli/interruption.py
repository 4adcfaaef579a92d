"""Ctrl-C, and what a process manager sends: the first asks to stop, the second stops."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    def __init__(self, on_first: Callable[[], None]) -> None:
        self.stop = threading.Event()
        self.exit_code = 0
        self._on_first = on_first

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self.stop.is_set():
            raise KeyboardInterrupt
        self.exit_code = 128 + number
        self.stop.set()
        self._on_first()


@contextmanager
def interruptible(
    on_first: Callable[[], None], signals: Sequence[signal.Signals] = SIGNALS
) -> Iterator[Interruption]:
    interruption = Interruption(on_first)
    if threading.current_thread() is not threading.main_thread():
        signals = ()  # only the main thread is told of them
    before = {number: signal.signal(number, interruption) for number in signals}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
