"""Redis is emptied in the middle of a run: that ends by name, also when clients that trained just then have put new
ledgers into it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis as Client

from broker_config.protocol.errors import LedgerMissing
from broker_config.protocol.messages import TrainTask
from server_worker.run.recipe import Recipe
from tests.federation import SOON, Hands, OverBrokers, apart, at_work, blobs_recipe
from tests.services import Service

BUFFERED = {"mode": "buffered", "in_flight": 2, "buffer_size": 2}
LOST = r"Redis at .* has lost all that it kept of run"


@pytest.fixture(params=[{"clients_per_round": 2}, BUFFERED], ids=["rounds", "buffered"])
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return apart(blobs_recipe(split={"clients": 2}, federation=request.param))


@pytest.fixture
def federation(
    recipe: Recipe, rabbitmq: Service, own_redis: Service, tmp_path: Path
) -> Iterator[OverBrokers]:
    with OverBrokers(recipe, tmp_path, broker_url=rabbitmq.url, store_url=own_redis.url) as federation:
        yield federation


def answer_over_an_emptied_store(federation: OverBrokers, hands: Hands, tasks: list[TrainTask]) -> None:
    """They had read their ledgers before, and commit afterwards."""
    updates = [hands.train(task) for task in tasks]
    asked = {task.client: task.activation for task in tasks}
    ledgers = federation.ledgers.ledgers(federation.recipe.name, asked)
    with Client.from_url(federation.store_url) as client:
        client.flushall()
    for client, ledger in ledgers.items():
        assert federation.ledgers.commit(federation.recipe.name, client, asked[client], ledger)
    for task, update in zip(tasks, updates, strict=True):
        hands.send(update)
        hands.settle(task)


@pytest.mark.parametrize("training", [1, 2])
def test_clients_that_train_meanwhile_do_not_vouch_for_an_emptied_store(
    federation: OverBrokers, training: int
) -> None:
    hands, server = Hands(federation), federation.serve()
    for task in hands.take(2):
        hands.answer(task)
    tasks = hands.take(2)
    answer_over_an_emptied_store(federation, hands, tasks[:training])
    for task in tasks[training:]:
        hands.give_back(task)
    with at_work(federation.participant()), pytest.raises(LedgerMissing, match=LOST):
        server.result(SOON)


@pytest.mark.parametrize("rounds_before", [0, 1])
def test_a_server_that_comes_back_to_an_emptied_store_says_so(
    federation: OverBrokers, rounds_before: int
) -> None:
    hands, server = Hands(federation), federation.serve()
    for _ in range(rounds_before):
        for task in hands.take(2):
            hands.answer(task)
    tasks = hands.take(2)
    federation.stop.set()
    assert server.result(SOON).rounds_done == rounds_before
    answer_over_an_emptied_store(federation, hands, tasks)
    with federation.resumed() as again, pytest.raises(LedgerMissing, match=LOST):
        again.serve().result(SOON)
