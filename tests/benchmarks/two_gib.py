"""A model version of 2 GiB makes the round trip, twice, where a message may have 16 MiB (RabbitMQ 4's default): into
the model log, to a worker, back as updates, and acknowledged once a checkpoint is written.

Once with FedIL as it is: digits, and a multilayer perceptron so wide that θ′ and θ₀ take 1 GiB each. The server trains,
judges, folds and evaluates, the worker trains, with momentum on either side. And once with the echo, where 2 GiB go
both ways and every number of them is compared.
"""

import tempfile
from pathlib import Path
from typing import Any

from server_worker.run.recipe import Recipe, make_recipe
from tests.benchmarks._cluster import Cluster, echo_cluster, fedil_cluster
from tests.benchmarks._echo_method import echo_recipe

BAR = 3.0
"""Most memory that the server or the worker ever had, all included, in model versions"""
MESSAGE_LIMIT = "max_message_size = 16777216"
ROUNDS = 2
CLIENTS = 2
_WIDTH = 4096
_LAYER_BYTES = 4 * _WIDTH * _WIDTH


def run(model_bytes: int = 2 << 30) -> dict[str, Any]:
    fedil, echo = _fedil(model_bytes), _echo(model_bytes)
    ratio = max(side[name] for side in (fedil, echo) for name in ("server_peak_models", "worker_peak_models"))
    return {
        "name": "two_gib",
        "ratio": ratio,
        "bar": BAR,
        "ok": ratio <= BAR,
        "model_bytes": model_bytes,
        "fedil": fedil,
        "echo": echo,
    }


def _fedil(model_bytes: int) -> dict[str, Any]:
    recipe = _recipe(model_bytes)
    with (
        tempfile.TemporaryDirectory(prefix="fedil-large-") as folder,
        fedil_cluster(Path(folder), recipe, workers=1, rabbitmq_config=MESSAGE_LIMIT) as cluster,
    ):
        return _figures(cluster, recipe, model_bytes)


def _echo(model_bytes: int) -> dict[str, Any]:
    recipe = echo_recipe("echo", rounds=ROUNDS, clients=1, parameters=model_bytes // 4, fold="check")
    with (
        tempfile.TemporaryDirectory(prefix="fedil-large-") as folder,
        echo_cluster(Path(folder), workers=1, rabbitmq_config=MESSAGE_LIMIT) as cluster,
    ):
        return _figures(cluster, recipe, model_bytes)


def _recipe(model_bytes: int) -> Recipe:
    """Half of the model version is θ′. Batches and layers are small beside it, as they are in a large network."""
    hidden = -(-model_bytes // 2 // _LAYER_BYTES)
    return make_recipe(
        {
            "name": "fedil",
            "rounds": ROUNDS,
            "baseline_epochs": 0,
            "data": {"name": "digits"},
            "split": {"labelled": 50, "clients": 20},
            "network": {"name": "mlp", "width": _WIDTH, "options": {"depth": hidden + 1}},
            "server": {"pretrain_epochs": 1, "epochs": 1},
            "client": {"epochs": 1},
            "federation": {"clients_per_round": CLIENTS, "deadline_seconds": 1200.0},
        }
    )


def _figures(cluster: Cluster, recipe: Recipe, model_bytes: int) -> dict[str, Any]:
    # Raises where an update is not accepted; the echo's are where every single number is right.
    report = cluster.play(recipe)
    server, worker = report["peak_bytes"], cluster.worker_peak_bytes()
    seconds = report["seconds"].values()
    figures = {
        "server_peak_models": round(server / model_bytes, 3),
        "server_peak_models_in_rounds": round(report["peak_bytes_in_rounds"] / model_bytes, 3),
        "server_idle_models": round(report["idle_bytes"] / model_bytes, 3),
        "worker_peak_models": round(worker / model_bytes, 3),
        "sent_model_bytes": report["sent"][str(ROUNDS)]["model"] - report["sent"]["1"]["model"],
        "updates": len(report["outcomes"]),
        "seconds": [round(lap["total"], 1) for lap in seconds],
        "seconds_broadcast": [round(lap["broadcast"], 1) for lap in seconds],
        "digest": report["digest"],
    }
    print(f"{recipe.name}: {figures}", flush=True)
    return figures
