import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from server_worker.deployment import run_id
from server_worker.run_dir import RunDir
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
