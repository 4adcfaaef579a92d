"""A little of what `python -m tests.benchmarks chaos` does at length: whatever is killed, the bits stay the same."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from server_worker.run.recipe import load_recipe
from tests.chaos.storm import play
from tests.deployment import write_recipe
from tests.federation import Federation
from tests.services import Services, needed, rabbitmq_service, redis_service

ROUNDS, KILLS = 20, 3


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"), ROUNDS)


@pytest.fixture(scope="module")
def undisturbed(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    federation = Federation(load_recipe(recipe), tmp_path_factory.mktemp("undisturbed"))
    federation.play()
    return federation.digests()


@pytest.fixture(scope="module")
def to_kill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    folder = tmp_path_factory.mktemp("services")
    with (
        needed(lambda: rabbitmq_service(folder / "rabbitmq")) as rabbitmq,
        needed(lambda: redis_service(folder / "redis")) as redis,
    ):
        yield Services(rabbitmq, redis)


@pytest.mark.parametrize(
    ("seed", "killed"), [(9, ["server", "worker", "rabbitmq"]), (14, ["redis", "server", "worker"])]
)
def test_a_storm_changes_no_bit(
    seed: int,
    killed: list[str],
    recipe: Path,
    undisturbed: tuple[str, str],
    to_kill: Services,
    tmp_path: Path,
) -> None:
    digests, storm = play(seed, tmp_path, recipe, to_kill.rabbitmq, to_kill.redis, KILLS)
    assert digests == undisturbed
    assert storm.kills == killed
