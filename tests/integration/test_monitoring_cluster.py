"""`fedil cluster` keeps the metrics of all its parts in a Prometheus of its own, with our rules, and says where."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ops.local.services.process import wait_until
from tests.integration.monitored import Api
from tests.integration.test_cluster import Command
from tests.services import must_run_everything

SOON = 120.0


@contextmanager
def started(folder: Path, *words: str) -> Iterator[tuple[Command, str]]:
    """And what it says of metrics."""
    cluster = Command(folder, "cluster", "--run-dir", str(folder / "run"), "--set", "rounds=100000", *words)
    try:
        said = cluster.read_until(r"Prometheus http|no metrics are kept: --web|is not installed")
        if "is not installed" in said:
            (pytest.fail if must_run_everything() else pytest.skip)(said)
        yield cluster, said
        cluster.process.send_signal(signal.SIGTERM)
        code, said = cluster.finish()
        assert code == 128 + signal.SIGTERM, said
    finally:
        cluster.process.kill()


def test_a_cluster_says_where_its_prometheus_is_and_that_knows_every_part(tmp_path: Path) -> None:
    with started(tmp_path) as (cluster, said):
        address = re.search(r"http://\S+", said)
        assert address
        cluster.read_until(r"round +1/")
        check_that_all_are_known(Api(address[0], 5))


def check_that_all_are_known(api: Api) -> None:
    def up() -> dict[str, float]:
        return api.values("count by (job) (up == 1)")

    targets = {'{"job": "fedil-server"}': 1, '{"job": "fedil-worker"}': 2}
    targets |= {'{"job": "rabbitmq"}': 1, '{"job": "rabbitmq-queues"}': 1}
    assert wait_until(lambda: up() == targets, SOON), up()
    assert wait_until(lambda: bool(api.values("fedil_round >= 1")), SOON)
    assert len(api.get("rules")["groups"]) == 4


def test_a_cluster_without_a_page_says_that_no_metrics_are_kept(tmp_path: Path) -> None:
    with started(tmp_path, "--web", "off") as (_, said):
        assert said == "cluster: no metrics are kept: --web is off\n"
