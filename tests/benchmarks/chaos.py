"""Runs under random `kill -9` of workers, server, RabbitMQ and Redis: each must end as an undisturbed one does."""

import os
import tempfile
from pathlib import Path
from typing import Any

from tests.chaos.storm import LONGEST_SECONDS, Storm, play
from tests.deployment import Deployed, write_recipe
from tests.services import temporary_services

FIRST_SEED = int(os.environ.get("FEDIL_CHAOS_SEED", "0"))
ROUNDS, KILLS = 18, 5


def run(runs: str = "20") -> dict[str, Any]:
    num_runs = int(runs)
    same, everything = 0, Storm()
    with tempfile.TemporaryDirectory(prefix="fedil-chaos-") as name, temporary_services() as services:
        folder = Path(name)
        recipe = write_recipe(folder, ROUNDS)
        broker, store = services.rabbitmq.url, services.redis.url
        with Deployed(folder / "undisturbed", recipe, broker, store, workers=2) as quiet:
            undisturbed = quiet.wait(LONGEST_SECONDS)
        for seed in range(FIRST_SEED, FIRST_SEED + num_runs):
            digests, storm = play(seed, folder / str(seed), recipe, services.rabbitmq, services.redis, KILLS)
            same += digests == undisturbed
            everything.kills += storm.kills
            everything.seconds += storm.seconds
            told = ", ".join(f"{target} {seconds:.1f} s" for target, seconds in storm.seconds)
            print(
                f"seed {seed}: {'same digests' if digests == undisturbed else 'OTHER DIGESTS'}; {told}",
                flush=True,
            )
    return {
        "name": "chaos",
        "ratio": same / num_runs,
        "bar": 1.0,
        "ok": same == num_runs,
        "runs": num_runs,
        "kills": len(everything.kills),
        "median_seconds_from_kill_to_progress": everything.by_target(),
        "longest_seconds_from_kill_to_progress": round(max(s for _, s in everything.seconds), 2),
    }
