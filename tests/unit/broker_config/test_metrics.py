"""What every process counts with: nothing unknown, infinite or unbounded is shown, and nothing runs backwards."""

import math
import subprocess
import sys
import threading
from collections import Counter

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from broker_config.process.metrics import EXPOSITION, MOST_SERIES, Metrics, Traffic

Series = dict[tuple[str, ...], float]


def shown(metrics: Metrics, name: str) -> Series:
    """Values by the labels' values, in the order of the labels' names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if sample.name == name
    }


def test_every_metric_carries_the_common_labels() -> None:
    metrics = Metrics(run="r")
    metrics.gauge("a", "A.", "zone").set(1, "north")
    metrics.counter("b_total", "B.").add(2)
    metrics.histogram("c", "C.", bounds=(1.0,)).observe(0.5)
    assert shown(metrics, "a") == {("r", "north"): 1}
    assert shown(metrics, "b_total") == {("r",): 2}
    assert shown(metrics, "c_bucket") == {("1.0", "r"): 1, ("+Inf", "r"): 1}


@pytest.mark.parametrize("labels", [{}, {"run": "r"}])
def test_a_gauge_is_not_shown_before_it_is_known_nor_when_it_is_no_number(labels: dict[str, str]) -> None:
    metrics = Metrics(**labels)
    gauge = metrics.gauge("a", "A.")
    values = tuple(labels.values())
    assert shown(metrics, "a") == {}
    gauge.set(3)
    assert shown(metrics, "a") == {values: 3}
    for unknown in (None, math.nan, math.inf, -math.inf):
        gauge.set(5)
        gauge.set(unknown)
        assert shown(metrics, "a") == {}
    text = metrics.render().decode()
    assert "# HELP a A.\n# TYPE a gauge\n" in text
    assert "nan" not in text.lower()


def test_what_cannot_be_counted_is_not() -> None:
    metrics = Metrics()
    counter, histogram = metrics.counter("a_total", "A."), metrics.histogram("b", "B.", bounds=(1.0,))
    for wrong in (math.nan, math.inf, -1.0):
        counter.add(wrong)
        counter.follow(wrong)
    for wrong in (math.nan, math.inf, -math.inf):
        histogram.observe(wrong)
    assert shown(metrics, "a_total") == {(): 0}
    assert shown(metrics, "b_count") == {}


def test_a_metric_has_only_so_many_series_whatever_they_are_called() -> None:
    metrics = Metrics()
    gauge, counter = metrics.gauge("a", "A.", "who"), metrics.counter("b_total", "B.", "who")
    histogram = metrics.histogram("c", "C.", "who", bounds=(1.0,))
    for number in range(10 * MOST_SERIES):
        gauge.set(number, str(number))
        counter.add(1, str(number))
        counter.follow(2, str(number))
        histogram.observe(0.0, str(number))
    for name in ("a", "b_total", "c_count"):
        assert set(shown(metrics, name)) == {(str(number),) for number in range(MOST_SERIES)}
    gauge.set(7, "0")
    assert shown(metrics, "a")[("0",)] == 7, "those that are there go on"


def test_a_gauge_that_shows_others_makes_room_for_them() -> None:
    metrics = Metrics(run="r")
    gauge = metrics.gauge("a", "A.", "term")
    gauge.show({f"hostile {number}": 1.0 for number in range(10 * MOST_SERIES)})
    assert len(shown(metrics, "a")) == MOST_SERIES
    gauge.show({"x": 1.0, "y": math.nan})
    assert shown(metrics, "a") == {("r", "x"): 1.0}


def test_values_fall_under_the_bounds_that_they_reach() -> None:
    metrics = Metrics()
    histogram = metrics.histogram("a", "A.", bounds=(0.0, 0.5, 1.0))
    for value in (-1.0, 0.0, 0.2, 0.5, 0.7, 1.0, 7.0):
        histogram.observe(value)
    assert shown(metrics, "a_bucket") == {("0.0",): 2, ("0.5",): 4, ("1.0",): 6, ("+Inf",): 7}
    assert shown(metrics, "a_count") == {(): 7}
    assert shown(metrics, "a_sum")[()] == pytest.approx(8.4)


def test_a_sum_that_may_shrink_is_not_shown() -> None:
    metrics = Metrics()
    metrics.histogram("a", "A.", bounds=(-1.0, 0.0)).observe(-0.5)
    assert shown(metrics, "a_sum") == {}
    assert shown(metrics, "a_bucket") == {("-1.0",): 0, ("0.0",): 1, ("+Inf",): 1}


def test_it_is_written_as_the_library_would() -> None:
    metrics = Metrics(run="r")
    metrics.gauge("a", "A, with a \\ and\na break.", "who").set(1e-300, 'x"\\\n')
    metrics.gauge("b", "B.").set(12345678901234567890.0)
    metrics.gauge("c", "C.")
    metrics.counter("d_total", "D.", "who").add(3, "ü")
    metrics.histogram("e", "E.", bounds=(0.1, 30.0, 10000.0)).observe(5)
    theirs = generate_latest(metrics._registry).decode()
    ours = metrics.render().decode()

    def read(text: str) -> list[Metric]:
        families = text_string_to_metric_families(text)
        return [family for family in families if not family.name.startswith("process_")]

    assert read(ours) == read(theirs)
    assert len(read(ours)) == 5


def test_labels_are_escaped() -> None:
    metrics = Metrics(run='a"b\\c\nd')
    metrics.gauge("a", "A.", "term").set(1, '"} 1\nevil 2\n')
    assert shown(metrics, "a") == {('a"b\\c\nd', '"} 1\nevil 2\n'): 1}
    assert shown(metrics, "evil") == {}


def test_traffic_is_looked_up_when_somebody_asks() -> None:
    metrics = Metrics(run="r")
    traffic = Traffic(metrics)
    sent, received = Counter[str](), Counter[str]()
    traffic.watch(lambda: (sent, received))
    assert shown(metrics, "fedil_transport_bytes_total") == {}
    sent["model"] += 10
    received["update"] += 3
    both = {("sent", "model", "r"): 10.0, ("received", "update", "r"): 3.0}
    assert shown(metrics, "fedil_transport_bytes_total") == both
    sent["model"] += 5
    assert shown(metrics, "fedil_transport_bytes_total") == both | {("sent", "model", "r"): 15.0}


def test_traffic_never_goes_back_when_a_new_connection_counts_from_nothing() -> None:
    metrics = Metrics()
    traffic = Traffic(metrics)
    told = [{"model": 100}, {}, {"model": 0}, {"model": 40}, {"model": 41}, {"task": 1}, {"model": 5}]
    traffic.watch(lambda: (told.pop(0), {}))
    counts = [shown(metrics, "fedil_transport_bytes_total")[("sent", "model")] for _ in range(7)]
    assert counts == [100, 100, 100, 140, 141, 141, 146]


def test_who_asks_while_something_changes_sees_all_or_nothing_of_it() -> None:
    metrics = Metrics()
    gauges = [metrics.gauge(f"g{number}", "G.") for number in range(20)]
    done = threading.Event()

    def change() -> None:
        value = 0
        while not done.is_set():
            value += 1
            with metrics.at_once():
                for gauge in gauges:
                    gauge.set(value)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(100):
            text = metrics.render().decode()
            values = {line.split()[1] for line in text.splitlines() if line.startswith("g")}
            assert len(values) <= 1
    finally:
        done.set()
        thread.join()


def test_a_process_tells_of_itself() -> None:
    metrics = Metrics(run="r")
    assert shown(metrics, "process_resident_memory_bytes")[()] > 1e6
    assert shown(metrics, "process_cpu_seconds_total")[()] > 0
    assert EXPOSITION.startswith("text/plain; version=0.0.4")


def test_nothing_is_registered_where_others_register_theirs() -> None:
    code = (
        "import prometheus_client as p\n"
        "before = p.generate_latest()\n"
        "from broker_config.process.metrics import Metrics\n"
        "Metrics().gauge('fedil_a', 'A.').set(1)\n"
        "assert b'fedil' not in p.generate_latest()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_command_line_does_not_wait_for_what_only_a_run_needs() -> None:
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
