import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_config.process.durable import append_line, write_atomically, write_privately
from broker_config.protocol.errors import BrokerUnavailable


def test_a_line_that_does_not_reach_the_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "history.jsonl"
    append_line(path, b"one")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(BrokerUnavailable, match=r"cannot use .*history\.jsonl: No space left on device"):
            append_line(path, b"two")
    assert path.read_bytes() == b"one\n"
    append_line(path, b"three")
    assert path.read_bytes() == b"one\nthree\n"


def test_a_line_of_which_only_the_beginning_fits_leaves_neither_that_nor_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    append_line(path, b"one")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        with pytest.raises(BrokerUnavailable, match="File too large"):
            append_line(path, b"x" * 900)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"one\n"


@pytest.fixture
def permissive() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("permissive")
def test_a_private_file_is_its_owners_whatever_lay_there_before(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "server.env", tmp_path / "elsewhere"
    elsewhere.write_text("theirs")
    for leftover in (path, tmp_path / "server.env.tmp"):
        leftover.write_text("old")
        leftover.chmod(0o666)
    write_privately(path, [b"secret"])
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"secret", 0o600)
    (tmp_path / "server.env.tmp").symlink_to(elsewhere)
    write_privately(path, [b"another"])
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"another", 0o600)
    assert elsewhere.read_text() == "theirs"


@pytest.mark.usefixtures("permissive")
def test_other_files_are_as_readable_as_the_umask_says(tmp_path: Path) -> None:
    write_atomically(tmp_path / "page.html", [b"page"])
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o666
