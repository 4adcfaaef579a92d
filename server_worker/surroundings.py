"""What a coordinator works with, handed in: brokers, disk, clock, people who watch."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker_config.stores.interface import Store
from broker_config.transports.interface import Transport
from server_worker.checkpoint import CheckpointFolder
from server_worker.evaluation import Evaluator
from server_worker.events import Watcher
from server_worker.sites import Sites


class Stopped(Exception):
    """Asked to stop; everything up to the last checkpoint is kept."""


@dataclass(frozen=True)
class Surroundings:
    transport: Transport
    store: Store
    checkpoints: CheckpointFolder
    evaluator: Evaluator
    watcher: Watcher
    clock: Callable[[], float]
    stop: threading.Event
    sites: Sites
    purity: Callable[[], Mapping[str, float | None]] = dict
    """Share of right pseudo-labels, where somebody offline knows the truth."""

    away: Callable[[], float] = lambda: 0.0
    """For how many seconds the broker could not be reached, in all; nobody could answer then"""

    def check_stop(self) -> None:
        if self.stop.is_set():
            raise Stopped
