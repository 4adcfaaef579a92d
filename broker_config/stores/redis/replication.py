"""Waits until replicas have what was written, so that no failover loses it."""

from collections.abc import Callable

from redis import exceptions

from broker_config.protocol.errors import BrokerUnavailable
from broker_config.stores.redis.nodes import Client

_WAIT_MS = 1000
_MAX_LAG_SECONDS = 10
"""A replica that has said nothing for so long is not waited for. It may be gone for ever."""


def confirm(redis: Client, wanted: int, write: Callable[[Client], object]) -> None:
    """Returns when as many replicas as `wanted`, or all that answer if they are fewer, have everything that was written
    so far. `write` adds a write to a pipeline: WAIT counts from the last write of its own connection, and what it
    waits for may have been written through another one."""
    if not wanted:
        return
    try:
        info = redis.info("replication")
    except exceptions.NoPermissionError:
        return  # taken away from this user since it connected: FedIL's own rules allow it
    if info["role"] != "master":
        # As Redis answers a write: the next attempt then takes a new connection, which may reach the primary.
        raise exceptions.ReadOnlyError("it has just become a replica: what was written may not be kept")
    wanted = min(wanted, sum(_answers(value) for name, value in info.items() if name.startswith("slave")))
    if not wanted:
        return
    with redis.pipeline(transaction=False) as pipeline:
        write(pipeline)
        pipeline.wait(wanted, _WAIT_MS)
        have = pipeline.execute()[-1]
    if have < wanted:
        raise BrokerUnavailable(
            f"{have} of {wanted} replicas of Redis have confirmed a write within {_WAIT_MS} ms: see that they run"
        )


def _answers(replica: object) -> bool:
    return (
        isinstance(replica, dict)
        and replica.get("state") == "online"
        and int(replica.get("lag", 0)) < _MAX_LAG_SECONDS
    )
