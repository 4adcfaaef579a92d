"""Random `kill -9` of everything that a run consists of, from a seed."""

import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.deployment import Deployed
from tests.services import Service

TARGETS = ("worker", "worker", "server", "rabbitmq", "redis")
"""Workers twice: there are more of them."""
LONGEST_SECONDS = 180.0


@dataclass
class Storm:
    """What was killed, and how long until something got done again."""

    kills: list[str] = field(default_factory=list)
    seconds: list[tuple[str, float]] = field(default_factory=list)

    def by_target(self) -> dict[str, float]:
        targets = sorted({target for target, _ in self.seconds})
        return {
            target: round(statistics.median(s for name, s in self.seconds if name == target), 2)
            for target in targets
        }


def play(
    seed: int, folder: Path, recipe: Path, rabbitmq: Service, redis: Service, kills: int, workers: int = 2
) -> tuple[tuple[str, str], Storm]:
    """The digests that a run ends with after `kills` kills."""
    chance, storm = random.Random(seed), Storm()
    with Deployed(folder, recipe, rabbitmq.url, redis.url, workers) as run:
        run.wait_for_progress(0, LONGEST_SECONDS)
        for _ in range(kills):
            time.sleep(chance.uniform(0.0, 2.0))
            if run.server.finished.is_set():
                break
            target, before = chance.choice(TARGETS), run.progress()
            storm.kills.append(target)
            killed = time.monotonic()
            _kill(target, run, rabbitmq, redis, chance)
            run.wait_for_progress(before, LONGEST_SECONDS)
            storm.seconds.append((target, time.monotonic() - killed))
        return run.wait(LONGEST_SECONDS), storm


def _kill(target: str, run: Deployed, rabbitmq: Service, redis: Service, chance: random.Random) -> None:
    if target == "server":
        run.server.kill()
    elif target == "worker":
        chance.choice(run.workers).kill()
    else:
        service = rabbitmq if target == "rabbitmq" else redis
        service.kill()
        time.sleep(chance.uniform(0.0, 1.0))
        service.start()
