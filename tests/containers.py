"""RabbitMQ and Redis in containers of a Docker engine.

Uses plain containers, because testcontainers' own RabbitMQ module emits a deprecation warning at import.
"""

import gc
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from ops.local.services.process import ANSWER_SECONDS, ServiceFailed, free_ports, wait_until
from ops.local.services.rabbitmq import rabbitmq_answers
from ops.local.services.redis import redis_answers

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

RABBITMQ_IMAGE = "rabbitmq:4.1"
REDIS_IMAGE = "redis:7"


class ContainedService:
    """A container with a fixed port on the engine's machine, so that clients find it again after a `kill`."""

    def __init__(
        self, container: "DockerContainer", port: int, url: str, answers: Callable[[int, str], bool]
    ) -> None:
        self._container, self._answers = container, answers
        (host_port,) = free_ports(["host"]).values()
        try:
            container.with_bind_ports(port, host_port).start()
            # Both depend on whether this process runs beside the engine, in one of its containers, or elsewhere.
            self._host, self._port = container.get_container_host_ip(), container.get_exposed_port(port)
            self._wait_until_ready()
        except BaseException:
            container.stop()
            raise
        self.url = url.format(endpoint=f"{self._host}:{self._port}")

    def start(self) -> None:
        self._container.get_wrapped_container().start()
        self._wait_until_ready()

    def kill(self) -> None:
        self._container.get_wrapped_container().kill()

    def stop(self) -> None:
        self._container.get_wrapped_container().stop()

    def _wait_until_ready(self) -> None:
        if not wait_until(lambda: self._answers(self._port, self._host), ANSWER_SECONDS):
            logs = b"".join(self._container.get_logs()).decode(errors="replace")
            raise ServiceFailed(f"{self._container.image} did not answer. Its last output:\n{logs[-2000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._container.stop()


def contained_rabbitmq(config: str) -> ContainedService:
    from testcontainers.core.container import DockerContainer

    container = DockerContainer(RABBITMQ_IMAGE)
    container.with_copy_into_container(config.encode(), "/etc/rabbitmq/conf.d/90-fedil.conf")
    return ContainedService(container, 5672, "amqp://guest:guest@{endpoint}/%2F", rabbitmq_answers)


def contained_redis(options: Sequence[str]) -> ContainedService:
    from testcontainers.core.container import DockerContainer

    container = DockerContainer(REDIS_IMAGE).with_command(["redis-server", *options])
    return ContainedService(container, 6379, "redis://{endpoint}/0", redis_answers)


def engine_answers() -> bool:
    """Whether testcontainers is installed and finds an engine."""
    try:
        from testcontainers.core.docker_client import DockerClient
    except ImportError:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ResourceWarning
        )  # DockerClient leaves its socket open if it finds no engine
        try:
            engine = DockerClient().client
            found = bool(engine.ping())
            engine.close()
        except Exception:  # no socket, no permission, no engine
            found = False
        gc.collect()
        return found
