"""A model of 2 GiB makes the round trip, twice, where a message may have 16 MiB (RabbitMQ 4's default): into the model
log, to a worker, back as an update, and acknowledged once a checkpoint is written.

Server and worker run their own loops, with the echo for a method. The server compares the update with what it sent
instead of summing: the fold of a real method is its own, and needs as much memory as it needs.
"""

import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks._echo_cluster import echo_cluster
from tests.benchmarks._echo_method import echo_recipe

BAR = 3.0
"""Most memory that the server or the worker ever had, all included, in models"""
MESSAGE_LIMIT = "max_message_size = 16777216"
ROUNDS = 2


def run(model_bytes: int = 2 << 30) -> dict[str, Any]:
    recipe = echo_recipe("large", rounds=ROUNDS, clients=1, parameters=model_bytes // 4, fold="check")
    with (
        tempfile.TemporaryDirectory(prefix="fedil-large-") as folder,
        echo_cluster(Path(folder), workers=1, rabbitmq_config=MESSAGE_LIMIT) as cluster,
    ):
        report = cluster.play(recipe)  # raises where a single number came back wrong
        worker = cluster.worker_peak_bytes()
    server = report["peak_bytes"]
    ratio = max(server, worker) / model_bytes
    seconds = report["seconds"].values()
    return {
        "name": "two_gib",
        "ratio": round(ratio, 3),
        "bar": BAR,
        "ok": ratio <= BAR and report["outcomes"] == ["accepted"] * ROUNDS,
        "model_bytes": model_bytes,
        "server_peak_models": round(server / model_bytes, 3),
        "server_peak_models_in_rounds": round(report["peak_bytes_in_rounds"] / model_bytes, 3),
        "worker_peak_models": round(worker / model_bytes, 3),
        "round_trips_right": report["outcomes"].count("accepted"),
        "seconds": [round(lap["total"], 1) for lap in seconds],
        "seconds_broadcast": [round(lap["broadcast"], 1) for lap in seconds],
        "digest": report["digest"],
    }
