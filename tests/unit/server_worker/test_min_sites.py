"""Runs that need several sites do not go on with fewer."""

from pathlib import Path
from typing import Any

import pytest

from broker_config.brokers.topology import workers_topic
from broker_config.protocol.errors import FedILError
from fedil_model.errors import SettingError
from server_worker.round.sites import Sites
from server_worker.run.recipe import numbers_depend_on
from server_worker.watch.notices import Notice
from tests.federation import SITE, Federation, Hands, blobs_recipe
from tests.memory_store import new_store
from tests.serving import THERE, Clock, TwoSites, served, until
from tests.unit.server_worker.test_sites import Clock as SitesClock
from tests.unit.server_worker.test_sites import pass_time


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that is silent for one poll is looked after."""
    for mode in ("round", "buffered"):
        monkeypatch.setattr(f"server_worker.{mode}.loop.QUIET_SECONDS", 0.0)
        monkeypatch.setattr(f"server_worker.{mode}.loop.POLL_SECONDS", 0.05)


class Both(TwoSites):
    """Two sites that a run needs"""

    min_sites = 2


def of_both(directory: Path, sites: TwoSites, clients: int = 6, **more: Any) -> Federation:
    recipe = blobs_recipe(rounds=1, federation={"clients_per_round": clients})
    return Federation(recipe, directory, sites=sites, **more)


def test_a_round_waits_for_a_site_that_vanished_and_ends_as_if_it_had_not(tmp_path: Path) -> None:
    clock, undisturbed = Clock(), of_both(tmp_path / "undisturbed", Both())
    with served(undisturbed) as (server, here):
        there = Hands(undisturbed, THERE)
        for hands in (here, there):
            for task in hands.take(3):
                hands.answer(task)
        assert server.end() is not None

    sites = Both()
    federation = of_both(tmp_path / "disturbed", sites, clock=clock)
    with served(federation) as (server, here):
        there = Hands(federation, THERE)
        sites.gone = THERE
        for task in here.take(3):
            here.answer(task)
        clock.until_it_was_read()
        assert server.is_alive
        assert federation.diary.records == []
        sites.gone = None
        for task in there.take(3):
            there.answer(task)
        assert server.end() is not None
    assert federation.digests() == undisturbed.digests()


def test_at_the_deadline_the_run_ends_and_says_how_to_go_on_with_fewer_sites(tmp_path: Path) -> None:
    clock, sites = Clock(), Both()
    federation = of_both(tmp_path, sites, clock=clock)
    with served(federation) as (server, here):
        sites.gone = THERE
        for task in here.take(3):
            here.answer(task)
        clock.until_it_was_read()
        clock.now += 601.0
        with pytest.raises(
            FedILError, match=rf"no client of site {THERE} has learned.*2 sites.*min_sites=1, then"
        ):
            server.end()
    assert federation.diary.records == []


def test_a_site_that_refuses_everything_is_not_replaced_by_the_other(tmp_path: Path) -> None:
    federation = of_both(tmp_path, Both(), clients=2)
    federation.recipe = blobs_recipe(rounds=1, seed=first_seed_of_both(), federation={"clients_per_round": 2})
    with served(federation) as (server, here):
        there = Hands(federation, THERE)
        here.answer(here.take(1)[0])
        for _ in range(3):  # all its clients are asked, and none of the other site
            there.refuse(there.take(1)[0])
        with pytest.raises(FedILError, match=rf"site {THERE} has learned.*refused \(no: no data\)"):
            server.end()


def first_seed_of_both() -> int:
    """Of a first round that selects a client of each site"""
    from server_worker.round.selection import select_clients

    return next(
        seed for seed in range(99) if [c < 3 for c in select_clients(seed, 1, range(6), 2)] == [True, False]
    )


@pytest.mark.parametrize(("explicit", "asked_there"), [(False, 0), (True, 1)])
def test_a_round_that_selects_one_site_by_chance_needs_the_other_only_if_the_recipe_says_so(
    tmp_path: Path, explicit: bool, asked_there: int
) -> None:
    federation = of_both(tmp_path, Both(), clients=1)
    if explicit:
        settings = {"clients_per_round": 1, "sites": {SITE: 3, THERE: 3}, "min_sites": 2}
        federation.recipe = blobs_recipe(rounds=1, federation=settings)
    with served(federation) as (server, here):
        hands = {SITE: here, THERE: Hands(federation, THERE)}
        until(lambda: any(one.transport.depth(one.tasks) for one in hands.values()))
        first = SITE if here.transport.depth(here.tasks) else THERE
        hands[first].answer(hands[first].take(1)[0])
        for _ in range(asked_there):
            other = THERE if first == SITE else SITE
            hands[other].answer(hands[other].take(1)[0])
        assert server.end() is not None
    assert len(federation.diary.records[0].outcomes) == 1 + asked_there


def test_a_buffer_is_not_aggregated_while_a_site_that_is_needed_has_no_worker(tmp_path: Path) -> None:
    settings = {"mode": "buffered", "in_flight": 6, "buffer_size": 3}
    clock, sites = Clock(), Both(gone=THERE)
    federation = Federation(blobs_recipe(rounds=1, federation=settings), tmp_path, sites=sites, clock=clock)
    with served(federation) as (server, here):
        for task in here.take(3):
            here.answer(task)
        clock.until_it_was_read()
        assert federation.diary.records == []
        assert server.is_alive
        sites.gone = None
        assert server.end() is not None


def test_a_missing_site_that_is_needed_is_named_so() -> None:
    clock, store, notes = SitesClock(), new_store(), list[Notice]()
    sites = Sites({"a": range(4), "b": range(4, 6)}, store, clock, 60.0, None, notes.append, 2)
    store.announce(workers_topic("a"), "w", {}, 1000.0)
    pass_time(sites, clock, 100.0)
    assert not sites.are_enough()
    assert "site b has no worker: the run waits for it, as federation.min_sites is 2" in map(str, notes)


def test_by_default_two_sites_are_needed_where_there_are_two() -> None:
    def recipe(**federation: Any) -> Any:
        return blobs_recipe(federation=federation)

    two = {"sites": {"a": 4, "b": 2}}
    assert [recipe().min_sites, recipe(**two).min_sites, recipe(**two, min_sites=1).min_sites] == [1, 2, 1]
    assert recipe(sites={"a": 2, "b": 2, "c": 2}).min_sites == 2
    assert numbers_depend_on(recipe(**two)) == numbers_depend_on(recipe(**two, min_sites=1)), (
        "may be lowered later"
    )
    with pytest.raises(SettingError, match=r"federation.min_sites is 3, but there are 2 sites"):
        recipe(**two, min_sites=3)
