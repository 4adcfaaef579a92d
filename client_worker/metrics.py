"""What a worker counts: every metric of it has its name here, and none has a label for a client or a run."""

from collections.abc import Callable

from broker_config.process.metrics import Bytes, Metrics, Traffic
from broker_config.process.version import software_version
from broker_config.protocol.messages import Update

ANSWERED, REPEATED, REFUSED = "answered", "repeated", "refused"
RETURNED, DROPPED, REJECTED, OUT_OF_MEMORY = "returned", "dropped", "rejected", "out_of_memory"
OUTCOMES = (ANSWERED, REPEATED, REFUSED, RETURNED, DROPPED, REJECTED, OUT_OF_MEMORY)
FETCH, TRAIN, PUBLISH = "fetch", "train", "publish"
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)
_LOSS = "loss_"


class WorkerMetrics:
    def __init__(self, site: str, device: str) -> None:
        metrics = self._metrics = Metrics()
        about = metrics.gauge("fedil_worker_info", "Who trains where.", "site", "device", "version")
        about.set(1, site, device, software_version())
        self._tasks = metrics.counter("fedil_worker_tasks_total", "What became of tasks.", "outcome")
        for outcome in OUTCOMES:
            self._tasks.add(0, outcome)
        self._busy = metrics.gauge("fedil_worker_busy", "1 while there is a task at hand.")
        self._busy.set(0)
        self._seconds = metrics.histogram(
            "fedil_worker_task_duration_seconds", "How long tasks take, by phase.", "phase", bounds=_SECONDS
        )
        self._images = metrics.counter("fedil_worker_images_total", "Images trained on, times epochs.")
        self._speed = metrics.gauge("fedil_worker_images_per_second", "Speed of the last training.")
        self._loss = metrics.gauge("fedil_worker_loss", "Mean loss of the last training, by term.", "term")
        self._micro_batch = metrics.gauge(
            "fedil_worker_micro_batch", "Samples at a time, where a whole batch does not fit on the device."
        )
        self._memory = metrics.gauge(
            "fedil_worker_device_memory_bytes", "Memory of the GPU that this process holds."
        )
        self._traffic = Traffic(metrics)

    def render(self) -> bytes:
        return self._metrics.render()

    def watch_traffic(self, traffic: Bytes) -> None:
        self._traffic.watch(traffic)

    def watch_memory(self, num_bytes: Callable[[], int]) -> None:
        self._metrics.before_reading(lambda: self._memory.set(num_bytes()))

    def began(self) -> None:
        self._busy.set(1)

    def ended(self, outcome: str | None) -> None:
        """A task: None if nobody can tell what became of it."""
        with self._metrics.at_once():
            self._busy.set(0)
            if outcome is not None:
                self._tasks.add(1, outcome)

    def trained(self, update: Update) -> None:
        told = update.metrics
        with self._metrics.at_once():
            self._seconds.observe(told["seconds_fetch"], FETCH)
            self._seconds.observe(told["seconds_train"], TRAIN)
            self._images.add(round(told["images_per_second"] * told["seconds_train"]))
            self._speed.set(told["images_per_second"])
            self._micro_batch.set(told.get("micro_batch"))
            losses = {name: value for name, value in told.items() if name.startswith(_LOSS)}
            self._loss.show({name.removeprefix(_LOSS): loss for name, loss in losses.items()})

    def published(self, seconds: float) -> None:
        self._seconds.observe(seconds, PUBLISH)
