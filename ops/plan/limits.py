"""What bounds a federation, how much of it is used, and what raises it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from broker_config.brokers.definitions import MOST_QUEUES, MOST_SITE_BYTES, SiteLimits
from broker_config.protocol.wire import MAX_HEADER_BYTES
from broker_config.stores.redis.store import MAX_CLIENTS_BYTES, MAX_LEDGER_BYTES
from broker_config.transports.interface import MAX_BODY_BYTES
from broker_config.transports.rabbitmq.publisher import CHUNK_BYTES
from ops.plan import formulas
from ops.plan.formulas import Scale
from ops.plan.trial import Sizes

_QUEUES_OF_A_RUN, _QUEUES_OF_A_SITE = 3, 2
_COUNTS_PER_CLIENT = 2
"""In a checkpoint's header: how often it was asked, and which answer was the last"""


@dataclass(frozen=True)
class Limit:
    name: str
    used: float
    allowed: float
    remedy: str

    @property
    def share(self) -> float:
        return self.used / self.allowed


def limits(
    sizes: Sizes, scale: Scale, deadline_seconds: float, capacities: Mapping[str, tuple[float, float]]
) -> list[Limit]:
    """The one that is hit first comes first. `capacities`: what the operator has, by name: (needed, there is)."""
    found = [*_of_fedil(sizes, scale), *_of_site_accounts(sizes, scale)]
    found.append(
        Limit(
            "seconds of a round, against the deadline",
            formulas.round_seconds(sizes, scale),
            deadline_seconds,
            "raise federation.deadline_seconds, the bandwidth or --workers",
        )
    )
    found += [
        Limit(name, needed, there, "give it more, or plan with less")
        for name, (needed, there) in capacities.items()
    ]
    return sorted(found, key=lambda limit: limit.share, reverse=True)


def _of_fedil(sizes: Sizes, scale: Scale) -> Iterator[Limit]:
    smaller = "a smaller network"
    yield Limit("bytes of a model version", sizes.model, MAX_BODY_BYTES, smaller)
    yield Limit("bytes of an update", sizes.update, MAX_BODY_BYTES, f"{smaller}, or federation.wire")
    ledger = sizes.ledger_of(scale.samples)
    yield Limit("bytes of a client's ledger", ledger, MAX_LEDGER_BYTES, "more clients with fewer samples")
    listed = formulas.client_list_bytes(scale)
    yield Limit("bytes of a site's list of clients in Redis", listed, MAX_CLIENTS_BYTES, "more sites")
    activations = -(-scale.per_round * scale.rounds // scale.clients)
    counts = _COUNTS_PER_CLIENT * scale.clients * packed_bytes(activations)
    yield Limit("bytes of clients' counts in a checkpoint", counts, MAX_HEADER_BYTES, "fewer clients")


def _of_site_accounts(sizes: Sizes, scale: Scale) -> Iterator[Limit]:
    """As `fedil broker init` sets them"""
    usual, tasks = SiteLimits(), -(-scale.per_round // scale.sites) * sizes.task
    yield Limit("bytes of a site's tasks in RabbitMQ", tasks, MOST_SITE_BYTES, "more sites")
    workers = -(-scale.workers // scale.sites)
    yield Limit("workers of a site", workers, usual.workers, f"fedil broker init --workers {workers}")
    queues = _QUEUES_OF_A_RUN + _QUEUES_OF_A_SITE * scale.sites
    if sizes.update > CHUNK_BYTES:
        gib = f"{1.01 * sizes.update / 2**30:.2f}"
        remedy = f"fedil broker init --largest-update {gib}, or federation.wire"
        yield Limit("bytes of an update that a site may send", sizes.update, usual.update_bytes, remedy)
        queues += scale.per_round  # each large update has a queue until the checkpoint
    yield Limit(
        "queues in RabbitMQ",
        queues,
        MOST_QUEUES,
        "fewer clients per round, or federation.wire for updates below 4 MiB",
    )


def packed_bytes(count: int) -> int:
    """Of a number in msgpack"""
    return next(size for size, end in ((1, 1 << 7), (2, 1 << 8), (3, 1 << 16), (5, 1 << 32)) if count < end)
