"""Keeps idle connections alive while their owner trains for hours."""

import logging
import threading
from collections.abc import Sequence

from broker_config.transports.rabbitmq.connection import Connection

_log = logging.getLogger(__name__)
_MAX_INTERVAL_SECONDS = 2.0


class HeartbeatThread:
    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = connections
        self._stop = threading.Event()
        heartbeat_seconds = min(connection.address.heartbeat_seconds for connection in connections)
        self._interval_seconds = min(_MAX_INTERVAL_SECONDS, heartbeat_seconds / 4)
        threading.Thread(target=self._run, name="rabbitmq-heartbeats", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_seconds):
            for connection in self._connections:
                try:
                    connection.service_heartbeats()
                except Exception:  # of any kind: the other connections need their heartbeats
                    _log.exception("heartbeats to RabbitMQ at %s failed", connection.address.endpoint)
