"""Bad tasks and bad ledgers, over real RabbitMQ and Redis: the worker names them and lives on, and so does the run."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
import redis as redis_py

from broker_config.protocol.errors import LedgerMissing
from broker_config.protocol.messages import ModelEntry, Refusal, TrainTask
from broker_config.protocol.wire import encode_message
from broker_config.stores.redis.keys import ledger_key
from tests.federation import SOON, Hands, Over, OverBrokers, at_work, blobs_recipe
from tests.services import Service

EVERYBODY = {"clients_per_round": 6}


def with_plugin(task: TrainTask) -> TrainTask:
    learning = json.loads(task.learning)
    learning["network"]["name"] = "os:abort"
    return dataclasses.replace(task, learning=json.dumps(learning))


BAD_TASKS: dict[str, tuple[str, Callable[[TrainTask], TrainTask]]] = {
    "code that is not allowed": ("this worker does not run os:abort", with_plugin),
    "settings that are none": (
        "schema: settings: ",
        lambda task: dataclasses.replace(task, learning='{"client": 7}'),
    ),
}


def test_bad_tasks_are_refused_by_name_and_the_worker_goes_on(over: Over) -> None:
    federation = over(blobs_recipe(rounds=1, federation=EVERYBODY))
    hands = Hands(federation)
    hands.dead_letters()
    server = federation.serve()
    tasks = hands.take(6)
    stray = Refusal(federation.recipe.name, 1, 0, 1, "lost", "on the wrong queue")
    hands.transport.publish(hands.tasks, [b"hello"])
    hands.transport.publish(hands.tasks, encode_message(stray))
    for (_, make), task in zip(BAD_TASKS.values(), tasks, strict=False):
        hands.transport.publish(hands.tasks, encode_message(make(task)))
    # A server that was replaced by this one wrote another model: nobody is told, the good task is behind it.
    rewritten = dataclasses.replace(tasks[-1], model=ModelEntry(tasks[-1].model.address, "0" * 32))
    hands.transport.publish(hands.tasks, encode_message(rewritten))
    # One that names a model which is not in the log has a good one after it: the server asks again.
    unread = tasks[len(BAD_TASKS)]
    nowhere = dataclasses.replace(unread.model.address, version=99)
    no_such_model = dataclasses.replace(unread.model, address=nowhere)
    hands.transport.publish(hands.tasks, encode_message(dataclasses.replace(unread, model=no_such_model)))
    for task in tasks[len(BAD_TASKS) + 1 :]:
        hands.give_back(task)
    with at_work(federation.participant()):
        server.result(SOON)
    (record,) = federation.diary.records
    outcomes = {outcome.client: outcome for outcome in record.outcomes}
    for (detail, _), task in zip(BAD_TASKS.values(), tasks, strict=False):
        assert outcomes[task.client].outcome == "refused"
        assert detail in outcomes[task.client].detail
        assert outcomes[task.client].detail.count("schema: ") <= 1
    for task in tasks[len(BAD_TASKS) :]:
        assert outcomes[task.client].outcome in ("accepted", "rejected_cosine")
    assert record.refused == {"model_missing": 1}
    dead = hands.dead_letters()
    assert dead[b"hello"] == "not_fedil"
    assert dead[b"".join(encode_message(stray))] == "schema"
    assert sorted(map(str, dead.values())) == ["not_fedil", "schema", "schema"]


# Ledgers


Spoil = Callable[[Any, str], None]

SPOILT: dict[str, tuple[str, Spoil]] = {
    "garbage for a ledger": (
        "what the store holds is no ledger",
        lambda client, key: client.hset(key, "1", b"garbage"),
    ),
    "no ledger where one was": ("has lost the ledger", lambda client, key: client.hdel(key, "1")),
    "a record that is none": ("does not hold what FedIL wrote", lambda c, key: c.hset(key, "kept", "x y")),
    "another kind of value": ("does not hold what FedIL wrote", lambda c, key: replace_by_text(c, key)),
    "an activation of the far future": ("is over", lambda client, key: client.hset(key, "opened", 10**9)),
}


def replace_by_text(client: Any, key: str) -> None:
    client.delete(key)
    client.set(key, "text")


def spoil_all(federation: OverBrokers, store: Service) -> None:
    """Client 0 gets the first of the above, and so on; the last one stays well."""
    with redis_py.Redis.from_url(store.url) as client:
        for number, (_, spoil) in enumerate(SPOILT.values()):
            spoil(client, ledger_key(federation.site, federation.recipe.name, number))


def check_the_spoilt_are_refused(federation: OverBrokers) -> None:
    outcomes = {outcome.client: outcome for outcome in federation.diary.records[-1].outcomes}
    for number, (detail, _) in enumerate(SPOILT.values()):
        assert outcomes[number].outcome == "refused", outcomes[number]
        assert detail in outcomes[number].detail
    assert outcomes[5].outcome in ("accepted", "rejected_cosine")


@pytest.mark.parametrize("mode", ["rounds", "buffered"])
def test_clients_with_spoilt_ledgers_are_refused_by_name_and_the_run_goes_on(
    over: Over, redis: Service, mode: str
) -> None:
    settings = EVERYBODY if mode == "rounds" else {"mode": mode, "in_flight": 6, "buffer_size": 6}
    federation = over(blobs_recipe(rounds=2, federation=settings))
    federation.diary.on_update = lambda number, answered: (
        spoil_all(federation, redis) if (number, answered) == (1, 6) else None
    )
    server = federation.serve()
    with at_work(federation.participant()):
        outcome = server.result(SOON)
    assert outcome.rounds_done == 2
    check_the_spoilt_are_refused(federation)
    assert outcome.ledger_digest == ""
    assert any("no digest of the ledgers" in note for note in federation.diary.notes)


def test_a_server_comes_back_to_spoilt_ledgers_and_goes_on(over: Over, redis: Service) -> None:
    first = over(blobs_recipe(rounds=2, federation=EVERYBODY))
    hands, server = Hands(first), first.serve()
    for task in hands.take(6):
        hands.answer(task)
    tasks = hands.take(6)
    first.stop.set()
    assert server.result(SOON).rounds_done == 1
    spoil_all(first, redis)
    for task in tasks:
        hands.give_back(task)
    with first.resumed() as again:
        server = again.serve()
        with at_work(again.participant()):
            assert server.result(SOON).rounds_done == 2
        check_the_spoilt_are_refused(again)


def test_a_server_does_not_go_on_when_all_ledgers_are_gone(over: Over, redis: Service) -> None:
    first = over(blobs_recipe(rounds=2, federation=EVERYBODY))
    hands, server = Hands(first), first.serve()
    for task in hands.take(6):
        hands.answer(task)
    hands.take(6)
    first.stop.set()
    assert server.result(SOON).rounds_done == 1
    with redis_py.Redis.from_url(redis.url) as client:
        client.delete(*(ledger_key(first.site, first.recipe.name, number) for number in range(6)))
    with first.resumed() as again, pytest.raises(LedgerMissing, match="has lost the ledger"):
        again.serve().result(SOON)
