from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ops.local.services import Service
from server_worker.run.recipe import Recipe
from tests.federation import Over, OverBrokers, apart


@pytest.fixture
def over(rabbitmq: Service, redis: Service, tmp_path: Path) -> Iterator[Over]:
    with ExitStack() as stack:

        def make(recipe: Recipe) -> OverBrokers:
            recipe = apart(recipe)
            place = tmp_path / recipe.name
            federation = OverBrokers(recipe, place, broker_url=rabbitmq.url, store_url=redis.url)
            return stack.enter_context(federation)

        yield make
