"""What a worker counts: every metric of it has its name here, and none has a label for a client or a run.

A method's own numbers are those that it declares as means over clients: fedil_<name> is here fedil_worker_<name>."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Counter, Gauge, Histogram, Info, Metric
from prometheus_client.registry import Collector

from broker_config.process.metrics import SECONDS, Bytes, Registry, Traffic, gauges
from broker_config.process.version import software_version
from broker_config.protocol.messages import Update
from fedil_model.methods import find_method
from fedil_model.methods.interface import Display

ANSWERED, REPEATED, REFUSED = "answered", "repeated", "refused"
RETURNED, DROPPED, REJECTED, OUT_OF_MEMORY = "returned", "dropped", "rejected", "out_of_memory"
OUTCOMES = (ANSWERED, REPEATED, REFUSED, RETURNED, DROPPED, REJECTED, OUT_OF_MEMORY)


class WorkerMetrics:
    def __init__(self, site: str, device: str) -> None:
        registry = self._registry = Registry()
        info = Info("fedil_worker", "Site, device and version of the worker.", registry=registry)
        info.info({"site": site, "device": device, "version": software_version()})
        tasks = Counter("fedil_worker_tasks", "Tasks by outcome.", ["outcome"], registry=registry)
        self._tasks = {outcome: tasks.labels(outcome) for outcome in OUTCOMES}
        self._busy = Gauge("fedil_worker_busy", "1 while the worker has a task.", registry=registry)
        seconds = Histogram(
            "fedil_worker_task_duration_seconds",
            "Duration of tasks, by phase.",
            ["phase"],
            buckets=SECONDS,
            registry=registry,
        )
        self._fetch, self._train, self._publish = map(seconds.labels, ("fetch", "train", "publish"))
        self._images = Counter("fedil_worker_images", "Images trained on, times epochs.", registry=registry)
        self._now, self._traffic = _Now(), Traffic()
        registry.register(self._now)
        registry.register(self._traffic)

    def render(self) -> bytes:
        return self._registry.render()

    def watch_traffic(self, traffic: Bytes) -> None:
        self._traffic.source = traffic

    def watch_memory(self, num_bytes: Callable[[], int]) -> None:
        self._now.memory = num_bytes

    def began(self) -> None:
        self._busy.set(1)

    def ended(self, outcome: str | None) -> None:
        """None: the outcome of the task is not known."""
        with self._registry.at_once:
            self._busy.set(0)
            if outcome is not None:
                self._tasks[outcome].inc()

    def trained(self, update: Update, method: str) -> None:
        numbers = update.metrics
        with self._registry.at_once:
            self._fetch.observe(numbers["seconds_fetch"])
            self._train.observe(numbers["seconds_train"])
            self._images.inc(round(numbers["images_per_second"] * numbers["seconds_train"]))
            self._now.numbers, self._now.display = numbers, find_method(method).display

    def published(self, seconds: float) -> None:
        self._publish.observe(seconds)


class _Now(Collector):
    """The last training and the device's memory, read at each scrape."""

    def __init__(self) -> None:
        self.numbers: Mapping[str, float] = {}
        self.display: Display | None = None
        self.memory: Callable[[], int | None] = lambda: None

    def collect(self) -> Iterator[Metric]:
        part = "Samples at a time, where a whole batch does not fit on the device."
        entries: list[tuple[str, str, tuple[str, str] | None, float | None]] = [
            (
                "fedil_worker_images_per_second",
                "Speed of the last training.",
                None,
                self.numbers.get("images_per_second"),
            ),
            ("fedil_worker_micro_batch", part, None, self.numbers.get("micro_batch")),
            (
                "fedil_worker_device_memory_bytes",
                "Memory of the GPU that this process holds.",
                None,
                self.memory(),
            ),
        ]
        for series, text in self.display.metrics() if self.display else ():
            if series.source == "client_mean":
                name = f"fedil_worker_{series.metric_name.removeprefix('fedil_')}"
                value = self.numbers.get(series.name)
                entries.append((name, f"Last training: {text}", series.metric_label, value))
        yield from gauges(entries)
