import os
import resource
from pathlib import Path

import pytest

from broker_config.process.durable import append_line
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
