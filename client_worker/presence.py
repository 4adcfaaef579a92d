"""What a worker puts on the board about itself."""

import os
import secrets
import socket
from collections.abc import Callable

from broker_config.brokers.topology import workers_topic
from broker_config.process.version import software_version
from broker_config.stores.interface import Store
from broker_config.stores.presence import Presence


def worker_presence(
    connect: Callable[[], Store], site: str, device: str, metrics: str | None = None
) -> Presence:
    """`metrics`: where Prometheus finds this worker's, as HOST:PORT"""
    host, pid = socket.gethostname(), os.getpid()
    facts = {
        "host": host,
        "pid": pid,
        "device": device,
        "state": "starting",
        "run": None,
        "round": None,
        "client": None,
        "tasks_done": 0,
        "images_per_second": None,
        "version": software_version(),
        "metrics": metrics,
    }
    # Processes in containers may share a host's name and a number.
    return Presence(connect, workers_topic(site), f"{host}-{pid}-{secrets.token_hex(3)}", facts)
