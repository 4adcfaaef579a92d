"""`python -m tests.benchmarks._metered_server RECIPE RUN_DIR REPORT`: `python -m server_worker`, which writes down what
it cost."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from broker_config.process.addresses import BROKER_URL, STORE_URL
from broker_config.transports import TRANSPORTS
from broker_config.transports.interface import Transport
from broker_config.transports.rabbitmq.transport import RabbitTransport
from server_worker.deployment import Deployment, serve
from server_worker.run.recipe import make_recipe
from server_worker.watch.events import ClientOutcome, RoundRecord, Watcher
from server_worker.watch.notices import Notice
from tests.benchmarks._processes import memory_bytes, sent_bytes


class Meter(Watcher):
    """What it measures at the start of a round is everything up to there."""

    def __init__(self) -> None:
        self.transports: list[RabbitTransport] = []
        self.empty_bytes = self.idle_bytes = self.peak_bytes = 0
        self.began: dict[int, float] = {}
        self.sent: dict[int, dict[str, int]] = {}
        self.seconds: dict[int, dict[str, float]] = {}
        self.outcomes: list[str] = []
        self.notes: list[str] = []

    def connecting(self, connect: Callable[[str], Transport]) -> Callable[[str], Transport]:
        def connect_and_remember(url: str) -> Transport:
            transport = connect(url)
            assert isinstance(transport, RabbitTransport)
            self.transports.append(transport)
            return transport

        return connect_and_remember

    def run_started(self, first_round: int, rounds: int) -> None:
        """It holds the model, and nothing else is there yet."""
        self.idle_bytes = memory_bytes("VmRSS")

    def phase(self, round_number: int, name: str) -> None:
        if name == "load_data":
            # Imported and connected; nothing of the model's size exists yet, nor what comes with the data.
            self.empty_bytes = memory_bytes("VmRSS")
        if name == "server_step":
            kinds = [dict(transport.bytes_sent) for transport in self.transports]
            by_kind = {kind: sum(k.get(kind, 0) for k in kinds) for kind in ("model", "task")}
            self.sent[round_number] = by_kind | {"all": sent_bytes()}
            self.began[round_number] = time.monotonic()

    def update_arrived(self, round_number: int, outcome: ClientOutcome, answered: int, selected: int) -> None:
        self.outcomes.append(outcome.outcome)

    def round_closed(self, record: RoundRecord) -> None:
        self.seconds[record.round] = dict(record.seconds)
        self.peak_bytes = memory_bytes("VmHWM")

    def note(self, notice: Notice) -> None:
        self.notes.append(str(notice))


def main(recipe_file: str, run_dir: str, report: str) -> None:
    torch.set_num_threads(1)
    recipe = make_recipe(json.loads(Path(recipe_file).read_text(encoding="utf-8")))
    meter = Meter()
    TRANSPORTS["amqp"] = meter.connecting(TRANSPORTS["amqp"])
    deployment = Deployment(
        recipe=recipe,
        run_dir=Path(run_dir),
        broker=os.environ[BROKER_URL],
        store=os.environ[STORE_URL],
        device="cpu",
    )
    outcome = serve(deployment, meter, threading.Event())
    fields = {
        "rounds": outcome.rounds_done,
        "digest": outcome.model_digest,
        "empty_bytes": meter.empty_bytes,
        "idle_bytes": meter.idle_bytes,
        "peak_bytes_in_rounds": meter.peak_bytes,
        "peak_bytes": memory_bytes("VmHWM"),
        "began": meter.began,
        "sent": meter.sent,
        "seconds": meter.seconds,
        "outcomes": meter.outcomes,
        "notes": meter.notes,
    }
    Path(report).write_text(json.dumps(fields), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
