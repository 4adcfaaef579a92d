"""The consumer time-out of task queues where policies set it, and queues of a cluster."""

from pathlib import Path
from typing import Any

import pytest

from broker_config.brokers.definitions import SiteLimits, policies
from broker_config.brokers.topology import tasks_queue
from ops.doctor.management import check_consumer_timeout, lost_with_a_node

HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def _without_rabbitmqctl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def policies_for(deadline_seconds: float) -> list[dict[str, Any]]:
    return policies(SiteLimits(), deadline_seconds=deadline_seconds, version=(3, 12))


def policy(pattern: str, timeout: int | None, priority: int = 0, apply_to: str = "queues") -> dict[str, Any]:
    definition = {} if timeout is None else {"consumer-timeout": timeout}
    rest = {"pattern": pattern, "apply-to": apply_to, "priority": priority, "definition": definition}
    return {"name": "operator", **rest}


@pytest.mark.parametrize(
    ("policies", "verdict"),
    [
        (policies_for(3600.0), "ok"),
        (policies_for(1900.0), "wrong"),
        ([policy("^fedil", 2 * HOUR_MS)], "ok"),
        ([policy("^other", 2 * HOUR_MS)], "unknown"),
        ([policy("^fedil", 2 * HOUR_MS, apply_to="exchanges")], "unknown"),
        ([policy("^fedil", 2 * HOUR_MS), policy("", HOUR_MS, priority=1)], "wrong"),
        ([policy("^fedil", HOUR_MS), policy("", 2 * HOUR_MS, priority=1)], "ok"),
        ([policy("^fedil", 2 * HOUR_MS), policy("", None, priority=1)], "unknown"),
        ([policy("north$", 2 * HOUR_MS)], "unknown"),
        ([policy("north$", HOUR_MS)], "wrong"),
        ([policy("(?|a)", HOUR_MS)], "unknown"),
    ],
)
def test_the_verdict_follows_the_policy_that_rabbitmq_applies(
    policies: list[dict[str, Any]], verdict: str
) -> None:
    queues = [tasks_queue("north"), tasks_queue("south")]
    assert check_consumer_timeout("here", "node", policies, queues, 3600.0).verdict == verdict


@pytest.mark.parametrize(
    ("policies", "text"),
    [
        (
            policies_for(1900.0),
            "consumer_timeout is 3800000 by policy fedil-deadline, should be at least 7200000: "
            "run fedil broker init with this deadline",
        ),
        (
            [policy("^fedil", HOUR_MS)],
            "consumer_timeout is 3600000 by policy operator: set it to at least 7200000 in that policy",
        ),
    ],
)
def test_a_time_out_that_a_policy_makes_too_short_is_reported_with_the_policy(
    policies: list[dict[str, Any]], text: str
) -> None:
    finding = check_consumer_timeout("here", "node", policies, [tasks_queue("north")], 3600.0)
    assert str(finding) == f"wrong: here: {text}"


def names(count: int) -> list[str]:
    return [f"rabbit@{number}" for number in range(count)]


def queue(name: str, kind: str, members: int | None = None, gone: int = 0) -> dict[str, Any]:
    forgotten = [f"rabbit@gone{number}" for number in range(gone)]
    listed = {} if members is None else {"members": [*names(members), *forgotten]}
    return {"name": name, "type": kind} | listed


@pytest.mark.parametrize(
    ("found", "nodes", "problem"),
    [
        (queue("fedil.tasks.a", "quorum", 1), 3, "on 1 of 3 nodes: rabbitmq-queues grow NODE all"),
        (
            queue("fedil.models.r", "stream", 2),
            5,
            "on 2 of 5 nodes: rabbitmq-streams add_replica fedil.models.r",
        ),
        (queue("fedil.models.r", "stream", 2, gone=1), 3, "on 2 of 3 nodes: rabbitmq-streams add_replica"),
        (queue("fedil.updates.a.r", "classic"), 3, "on 1 of 3 nodes: it was made before fedil broker init"),
        (queue("fedil.tasks.a", "quorum", 3), 5, None),
        (queue("fedil.tasks.a", "quorum", 2), 2, None),
        (queue("fedil.models.r", "stream"), 3, None),
        (queue("fedil.updates.a.r", "classic"), 1, None),
        (queue("others", "classic"), 3, None),
    ],
)
def test_queues_of_a_cluster_that_would_be_lost_with_a_node_are_reported(
    found: dict[str, Any], nodes: int, problem: str | None
) -> None:
    problems = list(lost_with_a_node([found], names(nodes)))
    assert len(problems) == (problem is not None)
    assert problem is None or problem in problems[0]
