"""Real services for tests, benchmarks and chaos scripts. Tests whose service is missing are skipped under plain pytest,
and fail under `ops/scripts/test` and in CI."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ops.local.services import ServiceMissing, Services, services

Started = TypeVar("Started")


@contextmanager
def temporary_services() -> Iterator[Services]:
    """Outside of pytest: RabbitMQ and Redis in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="fedil-") as folder, services(Path(folder)) as both:
        yield both


def needed(start: Callable[[], Started]) -> Started:
    """What `start` starts; without the program this test is skipped, or fails where all must run."""
    import pytest

    try:
        return start()
    except ServiceMissing as missing:
        if must_run_everything():
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


def must_run_everything() -> bool:
    """`ops/scripts/test` and CI systems say so."""
    said = (os.environ.get(name, "") for name in ("CI", "FEDIL_REQUIRE_SERVICES"))
    return any(word.lower() not in ("", "0", "false", "no") for word in said)
