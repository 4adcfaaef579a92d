"""A run's folder and its store that do not belong together any more."""

from pathlib import Path

import pytest

from broker_config.brokers.topology import DEFAULT_SITE
from broker_config.protocol.errors import FedILError, LedgerMissing
from broker_config.stores.memory.store import MemoryStore
from tests.federation import Federation, blobs_recipe


def test_a_checkpoint_that_the_ledgers_have_left_behind_is_named_as_such(tmp_path: Path) -> None:
    recipe = blobs_recipe(rounds=4, split={"clients": 3})
    federation = Federation(recipe, tmp_path)
    federation.diary.on_update = lambda number, answered: (
        federation.stop.set() if (number, answered) == (3, 2) else None
    )
    assert federation.play() is None
    *_, newest = sorted((tmp_path / "checkpoints").glob("round-*"))
    newest.unlink()
    again = Federation(recipe, tmp_path)
    again.store = federation.store
    with pytest.raises(
        FedILError, match="ahead of its newest checkpoint: restore the run's folder and the store"
    ):
        again.coordinator().run()


def test_a_store_restored_from_an_older_copy_while_a_client_trained_is_not_taken_for_one_that_is_ahead(
    tmp_path: Path,
) -> None:
    recipe = blobs_recipe(rounds=4, split={"clients": 3})
    federation = Federation(recipe, tmp_path)
    federation.diary.on_update = lambda number, answered: (
        federation.stop.set() if (number, answered) == (3, 1) else None
    )
    assert federation.play() is None
    again = Federation(recipe, tmp_path)
    again.store = MemoryStore(tmp_path / "restored")
    again.store.begin(recipe.name, DEFAULT_SITE)
    for client in range(3):
        again.store.commit(recipe.name, client, 1, b"of the older copy")
    again.store.commit(recipe.name, 0, 3, b"of the task that was under way")
    with pytest.raises(LedgerMissing, match="committed and is gone"):
        again.coordinator().run()


def test_a_store_that_has_lost_the_mark_is_not_gone_on_with_though_all_ledgers_are_there(
    tmp_path: Path,
) -> None:
    federation = Federation(blobs_recipe(rounds=2), tmp_path)
    federation.diary.on_update = lambda number, _: federation.stop.set() if number == 1 else None
    assert federation.play() is None  # before anybody's answer was in a checkpoint
    (tmp_path / "ledgers" / federation.recipe.name / "begun").unlink()
    with pytest.raises(LedgerMissing, match="has lost all"):
        Federation(federation.recipe, tmp_path, broker=federation.broker).play()
