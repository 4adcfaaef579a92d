"""What a process counts, as Prometheus reads it: a registry of its own, in which nothing unknown, infinite or
unbounded appears. The names of metrics are in each worker's `metrics.py`; here is what both have."""

import math
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.samples import Sample

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
MOST_SERIES = 32
"""Of one metric. Names of series may come from others: those for which there is no room are not shown."""

Bytes = Callable[[], tuple[Mapping[str, int], Mapping[str, int]]]
"""How many a transport has sent and received until now, by kind"""
_Labels = tuple[str, ...]
_Series = TypeVar("_Series")


class Metrics:
    """The metrics of one process. All of them carry the labels that are given here, beside their own."""

    def __init__(self, **labels: str) -> None:
        self._common = labels
        self._registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self._registry)
        self._lock = threading.RLock()
        self._looks: list[Callable[[], None]] = []

    def gauge(self, name: str, text: str, *labels: str) -> "Gauge":
        return self._known(Gauge(_Head(name, text, self._common, labels, self._lock)))

    def counter(self, name: str, text: str, *labels: str, shown: bool = True) -> "Counter":
        """Without labels of its own it is shown as 0 from the start; others begin with their first `add`, and one that
        is not `shown` too."""
        counter = self._known(Counter(_Head(name, text, self._common, labels, self._lock)))
        if not labels and shown:
            counter.add(0)
        return counter

    def histogram(self, name: str, text: str, *labels: str, bounds: Sequence[float]) -> "Histogram":
        return self._known(Histogram(_Head(name, text, self._common, labels, self._lock), bounds))

    def _known(self, family: "_Collector") -> "_Collector":
        self._registry.register(family)
        return family

    def before_reading(self, look: Callable[[], None]) -> None:
        """Call it whenever somebody asks, for what is better looked up than told."""
        self._looks.append(look)

    def at_once(self) -> AbstractContextManager[object]:
        """Readers see all or nothing of what is changed inside."""
        return self._lock

    def render(self) -> bytes:
        with self._lock:
            for look in self._looks:
                look()
            families = list(self._registry.collect())
        return exposition(families)


@dataclass(frozen=True)
class _Head:
    name: str
    text: str
    common: Mapping[str, str]
    labels: Sequence[str]
    lock: AbstractContextManager[object]


class _Family(ABC, Generic[_Series]):
    """A metric, as prometheus_client's registry wants it. (Its own ones cannot be unknown, and cost more.)"""

    kind: str

    def __init__(self, head: _Head) -> None:
        self._head, self._name, self._lock = head, head.name, head.lock
        self._series: dict[_Labels, _Series] = {}

    def collect(self) -> list[Metric]:
        """To be called while nothing changes."""
        metric = Metric(self._name.removesuffix("_total"), self._head.text, self.kind)
        for labels, series in self._series.items():
            named = {**self._head.common, **dict(zip(self._head.labels, labels, strict=True))}
            metric.samples.extend(self._samples(named, series))
        return [metric]

    def _has_room(self, labels: _Labels) -> bool:
        return labels in self._series or len(self._series) < MOST_SERIES

    @abstractmethod
    def _samples(self, labels: dict[str, str], series: _Series) -> Iterable[Sample]: ...


class Gauge(_Family[float]):
    kind = "gauge"

    def set(self, value: float | None, *labels: str) -> None:
        """What is not known or not finite is not shown."""
        with self._lock:
            if value is None or not math.isfinite(value):
                self._series.pop(labels, None)
            elif self._has_room(labels):
                self._series[labels] = float(value)

    def show(self, values: Mapping[str, float]) -> None:
        """By the one label of its own: these, as far as there is room, and no others."""
        with self._lock:
            self._series.clear()
            for label, value in values.items():
                self.set(value, label)

    def _samples(self, labels: dict[str, str], series: float) -> Iterable[Sample]:
        return (Sample(self._name, labels, series),)


class Counter(_Family[float]):
    kind = "counter"

    def __init__(self, head: _Head) -> None:
        super().__init__(head)
        self._followed: dict[_Labels, float] = {}

    def add(self, amount: float, *labels: str) -> None:
        """0 makes the series appear; what cannot be added is not."""
        with self._lock:
            if math.isfinite(amount) and amount >= 0 and self._has_room(labels):
                self._series[labels] = self._series.get(labels, 0.0) + amount

    def follow(self, count: float, *labels: str) -> None:
        """Grow as somebody else's counter does, which begins again at 0 when they do."""
        with self._lock:
            if math.isfinite(count) and count >= 0 and self._has_room(labels):
                before = self._followed.get(labels, 0.0)
                self.add(count - before if count >= before else count, *labels)
                self._followed[labels] = count

    def _samples(self, labels: dict[str, str], series: float) -> Iterable[Sample]:
        return (Sample(self._name, labels, series),)


class Histogram(_Family[list[float]]):
    """A series is how many fell under each bound and not under the one before, how many under none, and their sum."""

    kind = "histogram"

    def __init__(self, head: _Head, bounds: Sequence[float]) -> None:
        super().__init__(head)
        self._bounds = tuple(bounds)
        self._written = (*(repr(float(bound)) for bound in bounds), "+Inf")

    def observe(self, value: float, *labels: str) -> None:
        with self._lock:
            if math.isfinite(value) and self._has_room(labels):
                series = self._series.setdefault(labels, [0.0] * (len(self._written) + 1))
                series[bisect_left(self._bounds, value)] += 1
                series[-1] += value

    def _samples(self, labels: dict[str, str], series: list[float]) -> Iterator[Sample]:
        *counts, total = series
        under = list(accumulate(counts))
        for bound, count in zip(self._written, under, strict=True):
            yield Sample(f"{self._name}_bucket", {**labels, "le": bound}, count)
        yield Sample(f"{self._name}_count", labels, under[-1])
        if self._bounds[0] >= 0:  # a sum that may shrink looks like a restart
            yield Sample(f"{self._name}_sum", labels, total)


_Collector = TypeVar("_Collector", Gauge, Counter, Histogram)


def exposition(families: Iterable[Metric]) -> bytes:
    """As prometheus_client writes it, which takes four times as long: it checks every name again."""
    return "".join(_lines(families)).encode()


def _lines(families: Iterable[Metric]) -> Iterator[str]:
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
        yield f"# HELP {name} {text}\n# TYPE {name} {family.type}\n"
        for sample in family.samples:
            labels = ",".join([f'{label}="{_escaped(value)}"' for label, value in sample.labels.items()])
            yield (
                f"{sample.name}{{{labels}}} {sample.value!r}\n"
                if labels
                else f"{sample.name} {sample.value!r}\n"
            )


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Traffic:
    """The bytes that a transport has moved, looked up when somebody asks. A transport that makes a new connection
    may begin to count again: what was counted stays counted."""

    def __init__(self, metrics: Metrics) -> None:
        self._total = metrics.counter(
            "fedil_transport_bytes_total",
            "Bytes of message bodies, by direction and kind.",
            "direction",
            "kind",
        )
        self._source: Bytes = lambda: ({}, {})
        metrics.before_reading(self._look)

    def watch(self, source: Bytes) -> None:
        self._source = source

    def _look(self) -> None:
        sent, received = self._source()
        for direction, kinds in (("sent", sent), ("received", received)):
            # A copy, since another thread goes on counting.
            for kind, count in dict(kinds).items():
                self._total.follow(count, direction, kind)
