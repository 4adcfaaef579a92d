"""Rounds mode when those who were asked are gone, and when the server dies over it."""

import time
from dataclasses import replace
from pathlib import Path

from broker_config.topology import tasks_queue
from ops.services.process import wait_until
from server_worker.rounds import DEAD_TASK_SECONDS
from tests.federation import SITE, SOON, Federation, Hands, blobs_recipe, serving

THERE = "there"


class VanishingSite:
    """Some clients are at a site that nobody serves; the others are here."""

    def __init__(self, away: tuple[int, ...]) -> None:
        self._away, self.gone = away, False

    def names(self) -> tuple[str, ...]:
        return (SITE, THERE)

    def site_of(self, client: int) -> str:
        return THERE if client in self._away else SITE

    def may_speak(self, sender: str | None, client: int) -> bool:
        return True

    def present(self) -> tuple[str, ...]:
        return (SITE,) if self.gone else self.names()


def prepared(folder: Path) -> tuple[Federation, VanishingSite, tuple[int, ...]]:
    """A federation whose first three are all at the site that vanishes."""
    federation = Federation(blobs_recipe(rounds=1), folder)
    first = federation.coordinator()._asking.select(1)
    sites = VanishingSite(first)
    federation.sites = sites
    federation.broker.declare([tasks_queue(SITE), tasks_queue(THERE)])
    return federation, sites, first


def vanish(federation: Federation, sites: VanishingSite) -> None:
    """Once they have been asked"""
    assert wait_until(lambda: federation.broker.depth(tasks_queue(THERE)) == 3, SOON)
    sites.gone = True


def test_when_all_who_were_asked_are_gone_others_are_asked(tmp_path: Path) -> None:
    federation, sites, first = prepared(tmp_path)
    hands = Hands(federation)
    with serving(federation) as server:
        vanish(federation, sites)
        tasks = hands.take(3)
        assert {task.client for task in tasks} == set(range(6)) - set(first)
        for task in tasks:
            hands.answer(task)
        server.end()
    (record,) = federation.diary.records
    assert [o.client for o in record.outcomes] == sorted(task.client for task in tasks)
    assert record.accepted == 3
    assert any("asking others" in note for note in federation.diary.notes)
    assert server.progress is not None
    # Who was asked in vain is fenced off.
    assert server.progress.activations == (1,) * 6


def test_a_server_that_dies_after_asking_others_asks_the_same_again(tmp_path: Path) -> None:
    federation, sites, _ = prepared(tmp_path)
    hands = Hands(federation)
    with serving(federation) as server:
        vanish(federation, sites)
        before = hands.take(3)
        server.die()
    # One has learned meanwhile: its ledger has this activation.
    hands.answer(before[0])
    for task in before[1:]:
        hands.give_back(task)
    sites.gone = False
    federation.stop.clear()
    with serving(federation) as server:
        # Two lie in the queue since before, and are asked for again.
        after = {task.client: task for task in hands.take(4)}
        for task in after.values():
            hands.answer(task)
        server.end()
    assert set(after) == {task.client for task in before[1:]}
    assert {task.activation for task in after.values()} == {1}
    (record,) = federation.diary.records
    assert sorted(o.client for o in record.outcomes) == sorted(task.client for task in before)
    assert record.accepted == 3


def test_a_dead_letter_of_an_earlier_life_is_not_believed(tmp_path: Path) -> None:
    federation = Federation(blobs_recipe(rounds=1), tmp_path)
    hands = Hands(federation)
    with serving(federation) as server:
        for task in hands.take(3):
            hands.reject(task, "delivery_limit")
        server.die()
    federation.stop.clear()
    with serving(federation) as server:
        tasks = hands.take(3)
        time.sleep(1.5 * DEAD_TASK_SECONDS)  # it has looked through the letters by now
        for task in tasks:
            hands.answer(task)
        server.end()
    (record,) = federation.diary.records
    assert [o.outcome for o in record.outcomes] == ["accepted"] * 3


def test_a_claim_of_more_steps_than_can_be_is_invalid(tmp_path: Path) -> None:
    federation = Federation(blobs_recipe(rounds=1), tmp_path)
    hands = Hands(federation)
    with serving(federation) as server:
        first, *others = hands.take(3)
        update = hands.train(first)
        hands.send(replace(update, num_steps=10**15))
        for task in others:
            hands.answer(task)
        server.end()
    (record,) = federation.diary.records
    found = {o.client: (o.outcome, o.detail) for o in record.outcomes}
    assert found[first.client] == (
        "invalid",
        f"{10**15} steps of {update.num_samples} samples, in {federation.recipe.client.epochs} epochs",
    )
    assert record.accepted == 2
