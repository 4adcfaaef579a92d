"""The registry of a process: common labels, consistent scrapes, nothing unknown."""

import math
import subprocess
import sys
import threading
from collections import Counter as Bag
from collections.abc import Iterator

import pytest
from prometheus_client import Counter, Gauge, Histogram, Metric
from prometheus_client.registry import Collector

from broker_config.process.metrics import EXPOSITION, Registry, Traffic, gauges
from tests.exposition import promtool_complaints, value, values


class Showing(Collector):
    def __init__(self, *families: Metric) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        yield from self.families


def rendered(*families: Metric) -> bytes:
    registry = Registry()
    registry.register(Showing(*families))
    return registry.render()


def test_every_metric_carries_the_common_labels() -> None:
    registry = Registry(run="r")
    Gauge("a", "A.", ["zone"], registry=registry).labels("north").set(1)
    Counter("b", "B.", registry=registry).inc(2)
    Histogram("c", "C.", buckets=(1.0,), registry=registry).observe(0.5)
    registry.register(Showing(*gauges([("d", "D.", None, 4)])))
    text = registry.render()
    assert values(text, "a") == {frozenset({("run", "r"), ("zone", "north")}): 1}
    assert values(text, "b_total") == {frozenset({("run", "r")}): 2}
    assert value(text, "c_bucket", run="r", le="1.0") == 1
    assert value(text, "d", run="r") == 4


def test_creation_times_are_not_shown() -> None:
    registry = Registry()
    Counter("b", "B.", registry=registry).inc(2)
    Histogram("c", "C.", registry=registry).observe(0.5)
    assert b"_created" not in registry.render()


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf, -math.inf])
def test_an_unknown_value_is_not_shown(unknown: float | None) -> None:
    text = rendered(
        *gauges([("a", "A.", None, unknown), ("b", "B.", ("k", "x"), unknown), ("b", "B.", ("k", "y"), 2)])
    )
    assert values(text, "a") == {}
    assert b"# HELP a A.\n# TYPE a gauge\n" in text
    assert values(text, "b") == {frozenset({("k", "y")}): 2}
    assert b"nan" not in text.lower()


def test_gauges_of_one_name_are_one_metric() -> None:
    text = rendered(*gauges([("a", "A.", ("k", "x"), 1), ("b", "B.", None, 2), ("a", "A.", ("k", "y"), 3)]))
    assert text.count(b"# TYPE a gauge") == 1
    assert (value(text, "a", k="x"), value(text, "b"), value(text, "a", k="y")) == (1, 2, 3)


def test_label_values_are_escaped() -> None:
    registry = Registry(run='a"b\\c\nd')
    registry.register(Showing(*gauges([("a", "A.", ("term", '"} 1\nevil 2\n'), 1)])))
    text = registry.render()
    assert value(text, "a", run='a"b\\c\nd', term='"} 1\nevil 2\n') == 1
    assert values(text, "evil") == {}
    assert promtool_complaints(text) == ""


def test_traffic_is_read_at_each_scrape() -> None:
    registry, traffic = Registry(run="r"), Traffic()
    registry.register(traffic)
    sent, received = Bag[str](), Bag[str]()
    traffic.source = lambda: (sent, received)
    name = "fedil_transport_bytes_total"
    assert values(registry.render(), name) == {}
    sent["model"] += 10
    received["update"] += 3
    assert value(registry.render(), name, direction="sent", kind="model") == 10
    sent["model"] += 5
    text = registry.render()
    assert value(text, name, direction="sent", kind="model") == 15
    assert value(text, name, direction="received", kind="update") == 3


def test_a_scrape_sees_all_or_nothing_of_a_change() -> None:
    registry = Registry()
    shown = [Gauge(f"g{number}", "G.", registry=registry) for number in range(20)]
    done = threading.Event()

    def change() -> None:
        number = 0
        while not done.is_set():
            number += 1
            with registry.at_once:
                for one in shown:
                    one.set(number)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(50):
            text = registry.render().decode()
            assert len({line.split()[1] for line in text.splitlines() if line.startswith("g")}) == 1
    finally:
        done.set()
        thread.join()


def test_a_process_shows_its_memory_and_cpu_time() -> None:
    text = Registry(run="r").render()
    assert values(text, "process_resident_memory_bytes").keys() == {frozenset()}
    assert (value(text, "process_resident_memory_bytes") or 0) > 1e6
    assert (value(text, "process_cpu_seconds_total") or 0) > 0
    assert EXPOSITION.startswith("text/plain; version=0.0.4")


def test_the_global_registry_is_not_used() -> None:
    code = (
        "import prometheus_client as p\n"
        "from broker_config.process.metrics import Registry\n"
        "p.Gauge('fedil_a', 'A.', registry=Registry()).set(1)\n"
        "assert b'fedil' not in p.generate_latest()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_command_line_does_not_import_what_only_a_run_needs() -> None:
    code = (
        "import sys\n"
        "from ops.cli.main import make_parser\n"
        "make_parser()\n"
        "print([name for name in ('torch', 'prometheus_client', 'http.server') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[]\n"
