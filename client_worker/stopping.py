"""How a worker is asked to stop, and what that interrupts."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
LAST_SECONDS = 10.0
"""After the grace period: for giving back, publishing and closing. What is stuck by then the broker redelivers."""
_INSIST_SECONDS = 0.5


class Interrupted(BaseException):
    """Raised inside training when there is no more time: the task goes back."""


class Stopping:
    """The first signal asks to stop: training that is not done within the grace period is interrupted, in the
    main thread, wherever its Python code is. The second signal ends the process at once."""

    def __init__(self, grace_seconds: float = 0.0, end: Callable[[int], object] = os._exit) -> None:
        self._grace, self._end = grace_seconds, end
        self._asked = threading.Event()
        self._signalled = False
        self._overdue = False
        self._training = False

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        signal.signal(signal.SIGALRM, self._on_alarm)
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        try:
            yield
        finally:
            # Python takes its handlers away before it ends; then an alarm would kill.
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        """Stop after the task at hand."""
        self._asked.set()

    def wait(self, seconds: float) -> None:
        """Returns early when asked to stop."""
        self._asked.wait(seconds)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._signalled:
            self._end(128 + number)
        self._signalled = True
        self._asked.set()
        last = threading.Timer(self._grace + LAST_SECONDS, self._end, (128 + number,))
        last.daemon = True
        last.start()
        # Again and again, since an exception that is raised while an object is being deleted is lost.
        signal.setitimer(signal.ITIMER_REAL, self._grace or _INSIST_SECONDS, _INSIST_SECONDS)
        if not self._grace:
            self._on_alarm()

    def _on_alarm(self, *_: object) -> None:
        self._overdue = True
        if self._training:
            raise Interrupted

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Only what may be thrown away goes in here."""
        self._training = True
        try:
            if self._overdue:
                raise Interrupted
            yield
        finally:
            self._training = False
