"""Checks of RabbitMQ with the credentials of an administrator."""

import math
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from broker_config.brokers.definitions import (
    BODIES_POLICY,
    DEADLINE_POLICY,
    MOST_QUEUES,
    SiteLimits,
    consumer_timeout_seconds,
    rabbitmq_definitions,
    users_of,
)
from broker_config.brokers.topology import BODIES, kind_of, site_user, tasks_queue
from broker_config.transports.rabbitmq.publisher import CHUNK_BYTES
from ops.broker.differences import differences
from ops.broker.management import Management
from ops.doctor.clocks import check_clock
from ops.doctor.finding import Finding, wrong_or_ok
from ops.doctor.rabbitmq import PROBE, site_of

if TYPE_CHECKING:
    from ops.plan.trial import Sizes

_EVAL_TIMEOUT = "{ok, Timeout} = application:get_env(rabbit, consumer_timeout), Timeout."
_CTL_SECONDS = 60.0
Policies = Sequence[Mapping[str, Any]]
_MEMBERS = "columns=name,type,members"
_ENOUGH_MEMBERS = 3
_REMEDIES = {
    "quorum": "rabbitmq-queues grow NODE all, for the other nodes",
    "stream": "rabbitmq-streams add_replica {name} NODE, for the other nodes",
    "classic": "it was made before fedil broker init, and goes with its run",
}
_MANY_BODIES = 500
_QUORUM_TARGETS = ("all", "queues", "quorum_queues")


def check_management(
    management: Management, vhost: str, sites: Sequence[str], deadline_seconds: float, sizes: "Sizes | None"
) -> Iterator[Finding]:
    overview, found = management.get("overview"), management.get("definitions")
    where = f"RabbitMQ {overview['rabbitmq_version']} at {management.where}"
    users = (user["name"] for user in found["users"])
    wanted_sites = sites or sorted(site for user in users if (site := site_of(user)) is not None)
    nodes = management.get("nodes")
    hashes = dict.fromkeys(users_of(wanted_sites))
    wanted = rabbitmq_definitions(wanted_sites, hashes, vhost, replicated=len(nodes) > 1)
    tagged = [user["name"] for user in found["users"] if user["tags"] and site_of(user["name"]) is not None]
    bounds = wanted.pop("policies")
    del wanted["parameters"]
    queues = management.get(f"queues/{quote(vhost, safe='')}?{_MEMBERS}")
    problems = [
        *differences(wanted, found),
        *_unlimited(bounds, found, vhost, wanted_sites),
        *_hoarded(queues, wanted_sites),
        *(f"{user} has tags: rabbitmqctl set_user_tags {user}" for user in tagged),
        *lost_with_a_node(queues, [node["name"] for node in nodes]),
    ]
    whose = ", ".join(wanted_sites) or "the server"
    yield from wrong_or_ok(where, problems, f"has the rights and queues of {whose}")
    yield from wrong_or_ok(where, _troubled(nodes), f"has no alarm; nodes that run: {len(nodes)}")
    yield from check_clock(where, management.clock_ahead_seconds)
    if sizes is not None:
        yield from wrong_or_ok(
            where, _too_small(found, vhost, sizes), f"takes updates of {sizes.update} bytes"
        )
    tasks = [tasks_queue(site) for site in wanted_sites or (PROBE,)]
    policies = [policy for policy in found.get("policies", []) if policy["vhost"] == vhost]
    yield check_consumer_timeout(where, overview["node"], policies, tasks, deadline_seconds)


def _unlimited(
    policies: Policies, found: Mapping[str, Any], vhost: str, sites: Sequence[str]
) -> Iterator[str]:
    """What lets one site take all of the broker. How much it may take is the operator's choice."""
    remedy = "run fedil broker init"
    there = {
        policy["name"]: policy["definition"]
        for policy in found.get("policies", ())
        if policy["vhost"] == vhost
    }
    for name in (policy["name"] for policy in policies):
        if "max-length-bytes" not in there.get(name, {}):
            yield f"policy {name} sets no max-length-bytes, so a site may fill the disk: {remedy}"
    users = {user["name"]: user.get("limits", {}) for user in found["users"]}
    for user in map(site_user, sites):
        missing = [name for name in SiteLimits().of_user if name not in users.get(user, {})]
        if user in users and missing:
            yield f"user {user} has no limit {' and '.join(missing)}: {remedy}"
    limits = [
        each["value"]
        for each in found.get("parameters", ())
        if (each["component"], each.get("vhost")) == ("vhost-limits", vhost)
    ]
    if not any("max-queues" in each for each in limits):
        yield f"virtual host {vhost} has no limit max-queues: {remedy}"


def _too_small(found: Mapping[str, Any], vhost: str, sizes: "Sizes") -> Iterator[str]:
    """An update in several messages has a queue of its own, which is bounded; smaller ones share one."""
    bounds = {
        policy["name"]: policy["definition"].get("max-length-bytes")
        for policy in found.get("policies", ())
        if policy["vhost"] == vhost
    }
    name = BODIES_POLICY if sizes.update > CHUNK_BYTES else DEADLINE_POLICY
    bound, needed = bounds.get(name), sizes.update + (sizes.update >> 10)  # and the heads of its chunks
    if bound is not None and bound < needed:
        gib = math.ceil(10 * needed / 2**30) / 10
        yield (
            f"policy {name} allows {bound} bytes, and an update has {sizes.update}: "
            f"fedil broker init --largest-update {gib:g}, with the same sites"
        )


def _troubled(nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for node in nodes:
        name, blocked = node["name"], "alarm, and takes no messages"
        if not node.get("running", True):
            yield f"node {name} is down: start it, or rabbitmqctl forget_cluster_node {name} if it is gone for ever"
        if node.get("mem_alarm"):
            yield (
                f"{name} has a memory {blocked} ({node['mem_used']} of {node['mem_limit']} bytes): retire old runs "
                f"(fedil broker runs), or rabbitmqctl -n {name} set_vm_memory_high_watermark 0.8"
            )
        if node.get("disk_free_alarm"):
            yield (
                f"{name} has a disk {blocked} ({node['disk_free']} bytes free of {node['disk_free_limit']} wanted): "
                f"free its disk, or rabbitmqctl -n {name} set_disk_free_limit 500MB"
            )
        if node.get("partitions"):
            others = ", ".join(node["partitions"])
            yield f"node {name} is cut off from {others}: rabbitmqctl -n {name} stop_app, then start_app"


def _hoarded(queues: Sequence[Mapping[str, Any]], sites: Sequence[str]) -> Iterator[str]:
    for user in map(site_user, sites):
        count = sum(queue["name"].startswith(f"{BODIES.prefix}{user}.") for queue in queues)
        if count > _MANY_BODIES:
            yield (
                f"user {user} has {count} queues of bodies, of {MOST_QUEUES} queues for all: if no update of it is on "
                f"the way, delete the user (rabbitmqctl delete_user {user}), then its queues {BODIES.prefix}{user}.*"
            )


def lost_with_a_node(queues: Sequence[Mapping[str, Any]], nodes: Collection[str]) -> Iterator[str]:
    for queue in queues:
        # RabbitMQ does not list the members of a new stream for some seconds. It lists a node that was forgotten.
        members = 1 if queue["type"] == "classic" else len(set(queue.get("members") or nodes) & set(nodes))
        if kind_of(queue["name"]) is not None and members < min(len(nodes), _ENOUGH_MEMBERS):
            remedy = _REMEDIES[queue["type"]].format(**queue)
            yield f"queue {queue['name']} is on {members} of {len(nodes)} nodes: {remedy}"


def check_consumer_timeout(
    where: str, node: str, policies: Policies, queues: Sequence[str], deadline_seconds: float
) -> Finding:
    needed = round(1000 * consumer_timeout_seconds(deadline_seconds))
    limits = [_limit_by_policy(policies, queue) for queue in queues]
    if None in limits:
        configured = _configured_limit(node)
        limits = [limit or configured for limit in limits]
    known = [limit for limit in limits if limit is not None]
    timeout, policy = min(known, default=(needed, ""))
    if timeout < needed:
        return Finding("wrong", f"{where}: consumer_timeout is {timeout}{_remedy(policy, needed)}")
    if len(known) < len(limits):
        return Finding("unknown", f"{where}: consumer_timeout in its rabbitmq.conf must be at least {needed}")
    return Finding("ok", f"{where}: consumer_timeout is {timeout}")


def _remedy(policy: str, needed: int) -> str:
    if policy == DEADLINE_POLICY:
        return f" by policy {policy}, should be at least {needed}: run fedil broker init with this deadline"
    if policy:
        return f" by policy {policy}: set it to at least {needed} in that policy"
    return f": set it to at least {needed} in its rabbitmq.conf"


def _limit_by_policy(policies: Policies, queue: str) -> tuple[int, str] | None:
    """A queue's consumer time-out and the policy that sets it: RabbitMQ applies only the matching policy of the highest
    priority."""
    matching = [policy for policy in policies if _applies(policy, queue)]
    chosen = max(matching, key=lambda policy: int(policy["priority"]), default=None)
    if chosen is None or "consumer-timeout" not in chosen["definition"]:
        return None
    return int(chosen["definition"]["consumer-timeout"]), str(chosen["name"])


def _applies(policy: Mapping[str, Any], queue: str) -> bool:
    try:
        matches = re.search(policy["pattern"], queue) is not None
    except re.error:  # an Erlang pattern that Python does not support
        return False
    return matches and policy["apply-to"] in _QUORUM_TARGETS


def _configured_limit(node: str) -> tuple[int, str] | None:
    """Only rabbitmqctl can read it, where it is installed and can connect to the node."""
    program = shutil.which("rabbitmqctl")
    if program is None:
        return None
    command = [program, "--quiet", "--node", node, "eval", _EVAL_TIMEOUT]
    # Without this rabbitmqctl leaves an epmd running on a machine that has no node.
    environment = {**os.environ, "ERL_FLAGS": f"{os.environ.get('ERL_FLAGS', '')} -start_epmd false"}
    try:
        output = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_CTL_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (int(output), "") if output.strip().isdecimal() else None
