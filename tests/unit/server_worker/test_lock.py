"""The lock of a run's folder in a place that others can write to."""

from pathlib import Path

import pytest

from broker_config.protocol.errors import FedILError
from server_worker.run.lock import lock_file, sole_use


@pytest.mark.parametrize("exists", [True, False])
def test_a_lock_that_is_a_symbolic_link_is_refused_and_not_followed(tmp_path: Path, exists: bool) -> None:
    run, other = tmp_path / "run", tmp_path / "precious"
    if exists:
        other.write_text("kept")
    lock_file(run).symlink_to(other)
    with (
        pytest.raises(FedILError, match=r"\.run\.lock is a symbolic link.*: delete it, or use another"),
        sole_use(run),
    ):
        pass
    assert other.exists() == exists
    assert not exists or other.read_text() == "kept"


def test_a_folder_reached_through_a_symbolic_link_can_still_be_locked(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with sole_use(tmp_path / "link"):
        assert lock_file(tmp_path / "real").exists()
    assert not lock_file(tmp_path / "real").exists()
