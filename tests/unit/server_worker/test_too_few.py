"""Rounds in which too few have learned, and whom they wait for then."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from broker_config.protocol.errors import FedILError
from broker_config.protocol.messages import Update
from tests.federation import SITE, Federation, Hands, blobs_recipe
from tests.serving import THERE, Clock, TwoSites, served, until

LEARNED = {"accepted", "rejected_cosine"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is silent for one poll is looked after."""
    monkeypatch.setattr("server_worker.round.loop.QUIET_SECONDS", 0.0)
    monkeypatch.setattr("server_worker.round.loop.POLL_SECONDS", 0.05)
    monkeypatch.setattr("server_worker.round.dead_letters._LOOKING_SHARE", 1.0)
    monkeypatch.setattr("server_worker.round.dead_letters._LOOK_ANYWAY_SECONDS", 0.0)


def nonsense(update: Update) -> Update:
    tensors = {name: np.full_like(array, np.nan) for name, array in update.tensors.items()}
    return dataclasses.replace(update, tensors=tensors)


def test_nonsense_from_everybody_is_not_asked_of_the_whole_federation(tmp_path: Path) -> None:
    settings = {"split": {"labelled": 20, "clients": 20}, "federation": {"clients_per_round": 2}}
    federation = Federation(blobs_recipe(rounds=1, **settings), tmp_path)
    with served(federation) as (server, hands):
        for _ in range(3 * 2):
            (task,) = hands.take(1)
            hands.send(nonsense(hands.train(task)))
        assert server.end() is not None
    assert [o.outcome for o in federation.diary.records[0].outcomes] == ["invalid"] * 6


def test_a_task_that_a_dying_broker_gave_up_may_still_be_answered(tmp_path: Path) -> None:
    """All of them, not only the first: the round waits as long as there is time."""
    federation = Federation(blobs_recipe(rounds=1, split={"clients": 3}), tmp_path)
    federation.away = lambda: 1.0
    given_up: list[int] = []
    federation.diary.on_update = lambda _, answered: given_up.append(answered)
    with served(federation) as (server, hands):
        tasks = hands.take(3)
        updates = [hands.train(task) for task in tasks]
        for task in tasks:
            hands.reject(task, "delivery_limit")
        until(lambda: len(given_up) == 3)
        for update in updates:
            assert server.is_alive
            hands.send(update)
        assert server.end() is not None
    assert {o.outcome for o in federation.diary.records[0].outcomes} <= LEARNED
    assert federation.diary.records[0].refused == {}


def test_at_the_deadline_a_round_closes_with_those_who_have_learned(tmp_path: Path) -> None:
    clock = Clock()
    federation = Federation(blobs_recipe(rounds=1, split={"clients": 3}), tmp_path, clock=clock)
    federation.away = lambda: 1.0
    told: list[int] = []
    federation.diary.on_update = lambda _, answered: told.append(answered)
    with served(federation) as (server, hands):
        first, *dead = hands.take(3)
        hands.answer(first)
        for task in dead:
            hands.reject(task, "delivery_limit")
        until(lambda: len(told) == 3)
        clock.now += 10.0
        clock.until_it_was_read()
        assert server.is_alive
        clock.now += 1000.0
        assert server.end() is not None
    outcomes = [o.outcome for o in federation.diary.records[0].outcomes]
    assert outcomes.count("missing") == 2


def test_a_site_that_refuses_ends_nothing_while_the_others_are_away(tmp_path: Path) -> None:
    sites = TwoSites()
    federation = Federation(
        blobs_recipe(rounds=1, federation={"clients_per_round": 6, "quorum": 0.5}), tmp_path, sites=sites
    )
    told: list[int] = []
    federation.diary.on_update = lambda _, answered: told.append(answered)
    with served(federation) as (server, here):
        there = Hands(federation, THERE)
        away = there.take(3)
        sites.gone = THERE
        for task in here.take(3):
            here.refuse(task)
        until(lambda: len(told) == 6)
        assert server.is_alive
        sites.gone = SITE
        for task in away:
            there.answer(task)
        assert server.end() is not None
    outcomes = [o.outcome for o in federation.diary.records[0].outcomes]
    assert outcomes[:3] == ["refused"] * 3
    assert set(outcomes[3:]) <= LEARNED


def test_who_gives_up_says_what_was_wrong(tmp_path: Path) -> None:
    clock = Clock()
    federation = Federation(blobs_recipe(rounds=1, split={"clients": 3}), tmp_path, clock=clock)
    with served(federation) as (server, hands):
        silent, *_, refusing = hands.take(3)
        hands.refuse(refusing)
        clock.until_it_was_read()
        clock.now += 1000.0
        with pytest.raises(
            FedILError, match=rf"quorum is 3.*; client {refusing.client}: refused \(no: no data\)"
        ):
            server.end()
    assert silent.client != refusing.client
