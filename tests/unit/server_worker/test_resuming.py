from pathlib import Path

import pytest

from fedil_model.errors import SettingError
from server_worker.run.folder import RunDir
from server_worker.run.recipe import Recipe, make_recipe
from server_worker.run.resuming import refuse_differences, saved_recipe, stretched_schedules


def begun(folder: Path, *overrides: str, done: int = 5) -> Recipe:
    recipe = make_recipe({}, overrides=["rounds=10", *overrides])
    RunDir(folder).recipe.write_text(recipe.model_dump_json())
    RunDir(folder).checkpoints.mkdir()
    (RunDir(folder).checkpoints / f"round-{done:08d}.ckpt").write_bytes(b"")
    return recipe


def asked(*overrides: str) -> Recipe:
    return make_recipe({}, overrides=overrides)


@pytest.mark.parametrize("rounds", [8, 12])
def test_other_rounds_are_refused_unless_they_were_asked_for(tmp_path: Path, rounds: int) -> None:
    saved, recipe = begun(tmp_path), asked(f"rounds={rounds}")
    with pytest.raises(SettingError, match=f"rounds was 10, is {rounds}"):
        refuse_differences(tmp_path, saved, recipe)
    refuse_differences(tmp_path, saved, recipe, more_rounds=True)


def test_fewer_rounds_than_are_done_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="has 5 rounds behind it: it cannot go on to 4"):
        refuse_differences(tmp_path, begun(tmp_path), asked("rounds=4"), more_rounds=True)


def test_other_settings_are_refused_with_more_rounds_too(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="seed was 0, is 1"):
        refuse_differences(tmp_path, begun(tmp_path), asked("rounds=12", "seed=1"), more_rounds=True)


def test_code_that_only_the_folder_names_is_not_run(tmp_path: Path) -> None:
    RunDir(tmp_path).recipe.write_text('{"method": {"name": "foreign:method"}}')
    with pytest.raises(SettingError, match="names code that would run here, foreign:method"):
        saved_recipe(RunDir(tmp_path), asked())


def test_a_stretched_cosine_says_what_the_rate_was_and_is(tmp_path: Path) -> None:
    begun(tmp_path, "client.lr_schedule=cosine", "client.lr=1.0")
    (words,) = stretched_schedules(
        RunDir(tmp_path), asked("client.lr_schedule=cosine", "client.lr=1.0", "rounds=20")
    )
    assert words.startswith("client.lr follows a cosine over 20 rounds from here on, not over 10: ")
    assert words.endswith("round 5 had 0.655, round 6 has 0.854")
    assert list(stretched_schedules(RunDir(tmp_path), asked("rounds=10"))) == []
