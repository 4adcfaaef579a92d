"""Real services for tests, benchmarks and chaos scripts. A test without its service is skipped by plain pytest, and
fails in `ops/scripts/test` and in CI."""

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
    """RabbitMQ and Redis in a temporary folder, for use outside of pytest."""
    with tempfile.TemporaryDirectory(prefix="fedil-") as folder, services(Path(folder)) as both:
        yield both


def needed(start: Callable[[], Started]) -> Started:
    """Starts a service; without its program the test is skipped, or fails if all tests must run."""
    import pytest

    try:
        return start()
    except ServiceMissing as missing:
        if must_run_everything():
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


def must_run_everything() -> bool:
    """Set by `ops/scripts/test` and by CI systems."""
    values = (os.environ.get(name, "") for name in ("CI", "FEDIL_REQUIRE_SERVICES"))
    return any(value.lower() not in ("", "0", "false", "no") for value in values)
