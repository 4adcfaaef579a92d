import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker_config.protocol.errors import FedILError
from server_worker.run.folder import RunDir
from server_worker.run.name import known_run, run_id, simulation_id
from tests.federation import blobs_recipe


def test_servers_that_start_at_the_same_time_in_a_new_folder_agree_on_the_runs_name(tmp_path: Path) -> None:
    recipe, together = blobs_recipe(), threading.Barrier(8)

    def name_in(where: RunDir) -> str:
        together.wait()
        return run_id(where, recipe, None)

    with ThreadPoolExecutor(8) as threads:
        for number in range(20):
            where = RunDir(tmp_path / str(number))
            names = set(threads.map(name_in, [where] * 8))
            assert names == {run_id(where, recipe, None)}
            assert [path.name for path in where.root.iterdir()] == [where.identity.name]


def test_a_new_simulation_has_a_name_of_its_own_and_nothing_is_written_yet(tmp_path: Path) -> None:
    recipe, where = blobs_recipe(), RunDir(tmp_path / "new")
    names = {simulation_id(where, recipe) for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith(f"{recipe.name}-") for name in names)
    assert not where.root.exists()


def test_a_simulation_keeps_the_name_that_its_folder_has(tmp_path: Path) -> None:
    recipe, where = blobs_recipe(), RunDir(tmp_path)
    name = run_id(where, recipe, simulation_id(where, recipe))
    assert simulation_id(where, recipe) == known_run(where) == name


def test_the_longest_name_of_a_recipe_makes_a_name_that_brokers_take(tmp_path: Path) -> None:
    recipe, where = blobs_recipe(name="x" * 80), RunDir(tmp_path)
    assert len(run_id(where, recipe, None)) == 80


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run": "../elsewhere"}', '{"run": 7}'])
def test_a_damaged_name_is_told_with_its_file(tmp_path: Path, text: str) -> None:
    where = RunDir(tmp_path)
    where.identity.write_text(text)
    with pytest.raises(FedILError, match=r"run\.json is damaged"):
        simulation_id(where, blobs_recipe())
