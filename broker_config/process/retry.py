"""Repeats calls to a broker or store that is unavailable, with exponential backoff and jitter."""

import itertools
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from broker_config.protocol.errors import BrokerUnavailable

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

FIRST_DELAY_SECONDS = 0.2
MAX_DELAY_SECONDS = 5.0


class RetriesExhausted(BrokerUnavailable):
    """The service did not come back within `RetryPolicy.seconds`, or `RetryPolicy.stop` returned True."""


@dataclass(frozen=True)
class RetryPolicy:
    seconds: float = float("inf")
    """How long one call is repeated"""
    stop: Callable[[], bool] = lambda: False
    """Checked between attempts: a process that shuts down does not wait for a broker."""
    on_wait: Callable[[str], None] = lambda _: None
    """Called between attempts with the text of the error, which contains no password"""


class Retrier:
    """Repeats calls to one service. Each error of an outage is logged once, and so is its end, even if several threads
    notice it."""

    def __init__(self, service: str, policy: RetryPolicy) -> None:
        """`service` is its name in log lines and errors."""
        self._service, self._policy = service, policy
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._errors: set[str] = set()
        """Those of the present outage"""
        self.outage_seconds = 0.0
        """Total time that calls took because the service was unavailable"""

    def call(self, attempt: Callable[[], _T]) -> _T:
        """Repeats `attempt` while it raises BrokerUnavailable. It must be idempotent: its reply may have been lost."""
        began = time.monotonic()
        for number in itertools.count(1):
            if self._closed.is_set():
                break
            try:
                result = attempt()
            except BrokerUnavailable as error:
                self._wait(error, number, began + self._policy.seconds)
            else:
                if number > 1 or self._errors:
                    self._end_outage(time.monotonic() - began if number > 1 else 0.0)
                return result
        raise BrokerUnavailable(f"this connection to {self._service} is closed: open another")

    def close(self) -> None:
        """Ends waiting calls with BrokerUnavailable."""
        self._closed.set()

    def _wait(self, error: BrokerUnavailable, number: int, deadline: float) -> None:
        if self._policy.stop() or time.monotonic() >= deadline:
            raise RetriesExhausted(str(error)) from error
        with self._lock:
            is_new = str(error) not in self._errors
            self._errors.add(str(error))
        if is_new:
            _log.warning("%s; trying again", error)
        self._policy.on_wait(str(error))
        # Jitter keeps a thousand workers from reconnecting in the same instant.
        delay = min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** min(number - 1, 10)) * random.uniform(
            0.5, 1.0
        )
        self._closed.wait(min(delay, max(0.0, deadline - time.monotonic())))

    def _end_outage(self, seconds: float) -> None:
        with self._lock:
            self.outage_seconds += seconds
            is_first, self._errors = bool(self._errors), set()
        if is_first:
            _log.info("%s is back", self._service)
