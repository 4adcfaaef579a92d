"""Seconds of a round by phase."""

from collections.abc import Callable


class Stopwatch:
    """A phase may come back; its laps add up."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = self._last = clock()
        self._laps: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        now = self._clock()
        self._laps[phase] = self._laps.get(phase, 0.0) + now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        return self._laps | {"total": self._clock() - self._began}
