"""One worker process, put together: connections, data, device, loop."""

import argparse
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch

from broker_config.brokers.topology import workers_topic
from broker_config.process.http import Reply, Route, WebServer
from broker_config.process.metrics import EXPOSITION
from broker_config.process.retry import RetryPolicy
from broker_config.process.version import software_version
from broker_config.protocol.errors import BrokerUnavailable
from broker_config.stores import connect_store
from broker_config.stores.interface import Store
from broker_config.stores.presence import Presence
from broker_config.transports import connect_transport
from broker_config.transports.reconnecting import ReconnectingTransport
from client_worker.device_cache import cache_bytes
from client_worker.limits import read_limits
from client_worker.metrics import WorkerMetrics
from client_worker.options import web_address
from client_worker.participant import Participant
from client_worker.placement import Slot, place
from client_worker.shards import ShardFolder, brief
from client_worker.stopping import Stopping
from client_worker.training import Trainer
from fedil_model.training.precision import choose_device, repeatable_on

_log = logging.getLogger(__name__)


def serve(options: argparse.Namespace, stopping: Stopping) -> None:
    """Until asked to stop."""
    if options.slot is not None:
        _end_with_the_parent()
    slot = options.slot or Slot()
    name, sharing = place(options.device, slot, torch.cuda.device_count())
    device = choose_device(name)
    repeatable_on(device)
    shards, limits = ShardFolder(options.shards), read_limits(options.limits)
    patience = RetryPolicy(stop=stopping.asked)
    board = partial(_connect_store, options, replace(patience, seconds=1.0))
    metrics, connected = _metrics(options.site, device), threading.Event()
    address = web_address(options, slot)
    try:
        with ExitStack() as stack:
            routes = _routes(metrics, lambda: connected.is_set() and not stopping.asked())
            pages = stack.enter_context(WebServer(address, routes)).place if address else None
            ledgers = _connect_store(options, patience)
            stack.callback(ledgers.close)
            presence = stack.enter_context(worker_presence(board, options.site, str(device), pages))
            transport = ReconnectingTransport(lambda: connect_transport(options.broker), patience)
            stack.callback(transport.close)
            metrics.watch_traffic(lambda: (transport.bytes_sent, transport.bytes_received))
            connected.set()
            _log.info(
                "%s has started: %s of site %s, on %s",
                presence.name,
                brief(shards.clients),
                options.site,
                device,
            )
            trainer = Trainer(
                transport,
                ledgers,
                shards,
                device,
                options.plugin,
                limits=limits,
                cache_bytes=cache_bytes(device, options.cache, sharing),
                interruptible=stopping.interruptible,
            )
            Participant(transport, trainer, options.site, stopping, presence.update, metrics).serve()
    except BrokerUnavailable:
        # A stopping worker does not wait for a broker, which delivers unsettled tasks again.
        if not stopping.asked():
            raise


def worker_presence(
    connect: Callable[[], Store], site: str, device: str, metrics: str | None = None
) -> Presence:
    """What a worker puts on the board about itself; `metrics`: where Prometheus finds this worker's, as HOST:PORT"""
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


def _metrics(site: str, device: torch.device) -> WorkerMetrics:
    metrics = WorkerMetrics(site, str(device))
    if device.type == "cuda":
        metrics.watch_memory(partial(torch.cuda.memory_reserved, device))
    return metrics


def _routes(metrics: WorkerMetrics, ready: Callable[[], bool]) -> dict[str, Route]:
    return {
        "/metrics": lambda _: Reply(metrics.render(), EXPOSITION),
        "/healthz": lambda _: Reply(b"ok\n"),
        "/readyz": lambda _: Reply(b"ready\n") if ready() else Reply(b"takes no tasks\n", status=503),
    }


def _connect_store(options: argparse.Namespace, patience: RetryPolicy) -> Store:
    return connect_store(options.store, site_of=lambda _: options.site, retry=patience)


def _end_with_the_parent() -> None:
    """The pool holds the other end of our standard input, and lets go of it only by dying."""
    threading.Thread(target=_wait_for_the_end, name="fedil-parent", daemon=True).start()


def _wait_for_the_end() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    main_thread = threading.main_thread().ident
    if main_thread is not None:
        signal.pthread_kill(main_thread, signal.SIGTERM)
