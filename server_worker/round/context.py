"""What a coordinator works with, handed in: brokers, disk, clock, people who watch."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from broker_config.stores.interface import Store
from broker_config.transports.interface import Transport
from server_worker.round.evaluation import Evaluator
from server_worker.round.sites import Sites
from server_worker.run.checkpoint import CheckpointFolder
from server_worker.watch.events import Watcher

Purity = Callable[[Mapping[int, int]], Mapping[str, float | None]]
"""Is told which clients have answered since it was last asked, and with which activation."""


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
    purity: Purity = lambda _: {}
    """Share of right pseudo-labels, where somebody offline knows the truth."""

    held: Sequence[int] = ()
    """How many samples each client has; empty where only their sites know"""
    away: Callable[[], float] = lambda: 0.0
    """For how many seconds the broker could not be reached, in all; nobody could answer then"""
    look: Callable[[], Transport] | None = None
    """A new connection to look through dead letters; closing it puts them back at once. A RabbitMQ that gets some
    thousands back one by one is busy for many seconds. None: there are never so many."""

    def now(self) -> float:
        """The clock for deadlines: it stands still while the broker is away."""
        return self.clock() - self.away()

    def check_stop(self) -> None:
        if self.stop.is_set():
            raise Stopped
