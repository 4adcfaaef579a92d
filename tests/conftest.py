"""One torch thread a process, as the workers have: several would fight over the cores, and the bits are fixed.

Real services: one RabbitMQ and one Redis for all tests of a process, which nobody may harm, and own ones to kill.
"""

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from server_worker.run.recipe import Recipe
from tests.federation import Over, OverBrokers, apart
from tests.redis_cluster import Cluster, redis_cluster
from tests.sentinels import Pair, redis_pair
from tests.services import Service, needed, rabbitmq_service, redis_service

torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What hostile tests log may hold half characters, which cannot be sent from one process to another."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with needed(lambda: rabbitmq_service(tmp_path_factory.mktemp("rabbitmq"))) as service:
        yield service


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with needed(lambda: redis_service(tmp_path_factory.mktemp("redis"))) as service:
        yield service


@pytest.fixture(scope="session")
def sentinel_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield needed(lambda: stack.enter_context(redis_pair(tmp_path_factory.mktemp("pair"))))


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield needed(lambda: stack.enter_context(redis_cluster(tmp_path_factory.mktemp("cluster"))))


@pytest.fixture
def own_rabbitmq(tmp_path: Path) -> Iterator[Service]:
    with needed(lambda: rabbitmq_service(tmp_path / "rabbitmq")) as service:
        yield service


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Service]:
    with needed(lambda: redis_service(tmp_path / "redis")) as service:
        yield service


@pytest.fixture
def over(rabbitmq: Service, redis: Service, tmp_path: Path) -> Iterator[Over]:
    with ExitStack() as stack:

        def make(recipe: Recipe) -> OverBrokers:
            recipe = apart(recipe)
            place = tmp_path / recipe.name
            federation = OverBrokers(recipe, place, broker_url=rabbitmq.url, store_url=redis.url)
            return stack.enter_context(federation)

        yield make
