"""Redis behind Sentinels: a primary that is gone for ever costs seconds and no bit, and a replica that was behind when
it took over is noticed."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from broker_config.protocol.errors import FedILError, LedgerMissing
from server_worker.run.recipe import Recipe, load_recipe
from tests.deployment import Deployed, write_recipe
from tests.federation import SOON, Federation, Hands, OverBrokers, apart, at_work, blobs_recipe
from tests.sentinels import SERVICE, Pair, redis_pair
from tests.services import Service, needed

CLIENTS = 2


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield needed(lambda: stack.enter_context(redis_pair(tmp_path / "pair")))


@pytest.fixture
def recipe() -> Recipe:
    return apart(blobs_recipe(split={"clients": CLIENTS}, federation={"clients_per_round": CLIENTS}))


@pytest.fixture
def federation(recipe: Recipe, rabbitmq: Service, pair: Pair, tmp_path: Path) -> Iterator[OverBrokers]:
    with OverBrokers(recipe, tmp_path, broker_url=rabbitmq.url, store_url=pair.url()) as federation:
        yield federation


def undisturbed(recipe: Recipe, directory: Path) -> object:
    federation = Federation(recipe, directory)
    federation.play()
    return federation.fingerprint()


def play_a_round(hands: Hands) -> None:
    for task in hands.take(CLIENTS):
        hands.answer(task)


def test_a_primary_that_is_killed_for_ever_costs_seconds_and_no_bit(
    rabbitmq: Service, pair: Pair, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, rounds=4)
    expected = Federation(load_recipe(recipe), tmp_path / "undisturbed")
    expected.play()
    with Deployed(tmp_path / "run", recipe, rabbitmq.url, pair.url(), workers=2) as run:
        run.wait_for_progress(2, SOON)
        before, killed = run.progress(), time.monotonic()
        pair.primary.kill()
        run.wait_for_progress(before, SOON)
        print(f"progress {time.monotonic() - killed:.1f} s after the primary was killed")
        assert not run.server.finished.is_set()
        assert run.wait(SOON) == expected.digests()
        assert run.server.starts == 1
        assert [worker.starts for worker in run.workers] == [1, 1]


def test_a_run_that_loses_a_part_of_a_round_in_a_failover_says_so_and_goes_on_when_started_again(
    federation: OverBrokers, pair: Pair, tmp_path: Path
) -> None:
    hands, server = Hands(federation), federation.serve()
    play_a_round(hands)
    first, second = hands.take(CLIENTS)
    pair.cut_replica_off()
    counted = threading.Event()
    federation.diary.on_update = lambda *_: counted.set()
    hands.answer(first)
    assert counted.wait(SOON)
    pair.fail_over()
    hands.answer(second)
    with pytest.raises(FedILError, match=r"has lost what clients committed since.*: start the server again"):
        server.result(SOON)
    with federation.resumed() as again:
        rest = again.serve()
        (repeated,) = hands.take(1)
        assert (repeated.client, repeated.activation) == (first.client, first.activation)
        hands.answer(repeated)
        play_a_round(hands)
        rest.result(SOON)
        assert [record.refused for record in again.diary.records] == [{"ledger_missing": 1}, {}]
        assert again.fingerprint() == undisturbed(federation.recipe, tmp_path / "undisturbed")


def test_a_run_that_loses_what_its_checkpoint_needs_in_a_failover_stops_and_names_it(
    federation: OverBrokers, pair: Pair
) -> None:
    hands, server = Hands(federation), federation.serve()
    first, second = hands.take(CLIENTS)
    pair.cut_replica_off()
    hands.answer(first)
    hands.answer(second)
    tasks = hands.take(CLIENTS)
    pair.fail_over()
    for task in tasks:
        hands.give_back(task)
    gone_back = rf"Redis at {SERVICE} .* has gone back to an earlier state of run"
    with at_work(federation.participant()), pytest.raises(LedgerMissing, match=gone_back):
        server.result(SOON)
    with federation.resumed() as again, pytest.raises(LedgerMissing, match=gone_back):
        again.serve().result(SOON)


def test_a_ledger_that_was_lost_before_its_update_arrived_is_asked_for_again(
    federation: OverBrokers, pair: Pair, tmp_path: Path
) -> None:
    hands, server = Hands(federation), federation.serve()
    first, second = hands.take(CLIENTS)
    pair.cut_replica_off()
    update = hands.train(first)
    pair.fail_over()
    hands.send(update)
    hands.settle(first)
    hands.answer(second)
    (repeated,) = hands.take(1)
    assert (repeated.client, repeated.activation) == (first.client, first.activation)
    hands.answer(repeated)
    for _ in range(federation.recipe.rounds - 1):
        play_a_round(hands)
    server.result(SOON)
    assert federation.diary.records[0].refused == {"ledger_missing": 1}
    assert federation.fingerprint() == undisturbed(federation.recipe, tmp_path / "undisturbed")
