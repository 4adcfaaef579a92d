"""What a run's server works with, handed in: brokers, disk, clock, watchers."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker_config.stores.interface import Store
from broker_config.transports.interface import Transport
from server_worker.round.evaluation import Evaluate
from server_worker.round.sites import Sites
from server_worker.run.checkpoint import CheckpointFolder
from server_worker.watch.events import Watcher

LabelTruth = Callable[[Mapping[int, int]], Mapping[str, float | None]]
"""Clients that have answered since the last call, with their activations → the method's series that need the truth
about labels"""


class Stopped(Exception):
    """The process was asked to stop; everything up to the last checkpoint is kept."""


@dataclass(frozen=True)
class ServerContext:
    transport: Transport
    store: Store
    checkpoints: CheckpointFolder
    evaluate: Evaluate
    watcher: Watcher
    clock: Callable[[], float]
    stop: threading.Event
    sites: Sites
    connect_for_inspection: Callable[[], Transport]
    """A new connection to look through dead letters: closing it puts all of them back at once, where RabbitMQ needs
    many seconds to take thousands back one by one"""
    label_truth: LabelTruth = lambda _: {}
    """For diagnostics where the truth is known offline, as in an experiment"""

    data_options: Mapping[str, Any] = field(default_factory=dict)
    """With which workers open the dataset, whose files they do not have"""
    shard_sizes: Sequence[int] = ()
    """Samples of each client; empty where only the sites know"""
    away: Callable[[], float] = lambda: 0.0
    """Seconds in total during which the brokers could not be reached; no client could answer then"""

    def now(self) -> float:
        """The clock for deadlines: it stands still while the brokers are away."""
        return self.clock() - self.away()

    def check_stop(self) -> None:
        if self.stop.is_set():
            raise Stopped
