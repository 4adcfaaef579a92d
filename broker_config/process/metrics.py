"""A Prometheus registry for one part of a process. The names of metrics are in each worker's `metrics.py`."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeGuard

from prometheus_client import (
    CollectorRegistry,
    Metric,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)
"""Histogram buckets of durations"""

disable_created_metrics()  # type: ignore[no-untyped-call]

Bytes = Callable[[], tuple[Mapping[str, int], Mapping[str, int]]]
"""Reads how many bytes a transport has sent and received, by kind"""


class Registry(CollectorRegistry):
    """Its metrics carry the common labels besides their own; the process collector's do not."""

    def __init__(self, **labels: str) -> None:
        super().__init__()
        self._labels = labels
        self._process = ProcessCollector(registry=None)
        self.at_once = threading.RLock()
        """Held during a scrape: changes made inside it are seen together."""

    def collect(self) -> Iterator[Metric]:
        with self.at_once:
            families = list(super().collect())
        for family in families:
            family.samples = [
                Sample(sample.name, {**self._labels, **sample.labels}, sample.value)
                for sample in family.samples
            ]
            yield family
        yield from self._process.collect()

    def render(self) -> bytes:
        return generate_latest(self)


def gauges(entries: Iterable[tuple[str, str, tuple[str, str] | None, float | None]]) -> list[Metric]:
    """From name, help text, (label, its value) or None, and number, for collectors. Those of one name belong to one
    metric, without a sample where the number is not known."""
    families: dict[str, GaugeMetricFamily] = {}
    for name, text, label, number in entries:
        names, held = ((label[0],), (label[1],)) if label else ((), ())
        family = families.setdefault(name, GaugeMetricFamily(name, text, labels=names))
        if is_known(number):
            family.add_metric(held, number)
    return list(families.values())


def is_known(value: float | None) -> TypeGuard[float]:
    """Neither None nor NaN nor infinite"""
    return value is not None and math.isfinite(value)


class Traffic(Collector):
    """Bytes that a transport has moved, read at each scrape."""

    def __init__(self) -> None:
        self.source: Bytes = lambda: ({}, {})

    def collect(self) -> Iterator[Metric]:
        text = "Bytes of message bodies, by direction and kind."
        family = CounterMetricFamily("fedil_transport_bytes", text, labels=("direction", "kind"))
        for direction, kinds in zip(("sent", "received"), self.source(), strict=True):
            for kind, count in dict(kinds).items():  # a copy: another thread goes on counting
                family.add_metric((direction, kind), count)
        yield family
