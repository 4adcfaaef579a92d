"""A run's folder and its store that do not belong together any more."""

from pathlib import Path

import pytest

from broker_config.errors import FedILError
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
