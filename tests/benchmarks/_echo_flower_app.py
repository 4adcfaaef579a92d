# mypy: ignore-errors
# (flwr is not installed here; the benchmark copies this file into an app of an environment where it is.)
"""The echo as a Flower app: FedAvg over clients that add a constant."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

CONSTANT = 0.25

client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    arrays = [array + np.float32(CONSTANT) for array in message.content["arrays"].to_numpy_ndarrays()]
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)


class Timed(FedAvg):
    def __init__(self, num_clients: int) -> None:
        super().__init__(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=num_clients,
            min_available_nodes=num_clients,
        )
        self.began: list[float] = []
        self.num_replies: list[int] = []

    def configure_train(self, *arguments, **named):
        self.began.append(time.monotonic())
        return super().configure_train(*arguments, **named)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        self.num_replies.append(sum(not reply.has_error() for reply in replies))
        return super().aggregate_train(server_round, replies)


@server.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = Timed(config["clients"])
    start = np.random.default_rng(0).random(config["parameters"], np.float32)
    result = strategy.start(grid, ArrayRecord([start]), num_rounds=config["rounds"])
    moved = result.arrays.to_numpy_ndarrays()[0] - start
    status = Path("/proc/self/status").read_text().splitlines()
    fields = {
        "began": strategy.began,
        "num_replies": strategy.num_replies,
        "right": bool(np.allclose(moved, CONSTANT * config["rounds"], atol=1e-4)),
        "peak_bytes": next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM:")),
    }
    report = Path(config["report"])
    aside = report.with_suffix(".part")
    aside.write_text(json.dumps(fields), encoding="utf-8")
    aside.rename(report)
