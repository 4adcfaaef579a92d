"""Names and kinds of exchanges, queues and notices, each of which exists once, here.

What a RabbitMQ broker is to hold is data: the transport declares from it, the broker's own definitions and
permissions are written from it. Nothing goes through the default exchange, on which sites have no rights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker_config.transports.interface import DELIVERY_LIMIT

_WEEK_MS = 7 * 24 * 3600 * 1000
_MONTH_MS = 30 * 24 * 3600 * 1000
_MOST_DEAD_LETTERS = 10_000

DEAD_LETTERS = "fedil.dead"
DEFAULT_SITE = "default"
"""Who owns the clients where nobody says"""


@dataclass(frozen=True)
class Exchange:
    """Durable. On a topic exchange the broker checks the keys with which a user binds and publishes; but RabbitMQ 3
    not those in a message's headers CC and BCC, so a user may write only where no queue of others can be named."""

    name: str
    """One that ends with a dot stands for a family: each queue has its own, named by the queue's key."""
    type: str

    @property
    def is_family(self) -> bool:
        return self.name.endswith(".")


@dataclass(frozen=True)
class QueueKind:
    """A family of durable queues: what follows the prefix is the key by which a queue is bound to the exchange."""

    name: str
    prefix: str
    exchange: Exchange
    type: str
    options: Mapping[str, int | str | bool] = field(default_factory=dict)
    own_key: str | None = None
    """For the one queue whose whole name is the prefix"""

    @property
    def arguments(self) -> dict[str, int | str | bool]:
        """As the broker compares them when a queue is declared again."""
        return {"x-queue-type": self.type, **self.options}

    @property
    def has_delivery_limit(self) -> bool:
        return "x-delivery-limit" in self.options

    def holds(self, queue: str) -> bool:
        if self.own_key is not None:
            return queue == self.prefix
        return queue.startswith(self.prefix) and len(queue) > len(self.prefix)

    def routing_key(self, queue: str) -> str:
        return self.own_key or queue.removeprefix(self.prefix)

    def exchange_of(self, queue: str) -> Exchange:
        if not self.exchange.is_family:
            return self.exchange
        return Exchange(self.exchange.name + self.routing_key(queue), self.exchange.type)


# One for each site: it gives tasks back there, and must not reach another's queue.
TASKS_EXCHANGES = Exchange("fedil.site.", "direct")
UPDATES_EXCHANGE = Exchange("fedil.updates", "direct")
MODELS_EXCHANGE = Exchange("fedil.models", "direct")
BODIES_EXCHANGE = Exchange("fedil.bodies", "topic")
LEAD_EXCHANGE = Exchange("fedil.lead", "direct")
DEAD_EXCHANGE = Exchange("fedil.dead", "direct")
STREAMS_PREPARED = Exchange("fedil.streams", "direct")
"""Carries nothing: that it is there says that the broker has kept account of streams for a while. No definitions."""

DEAD = QueueKind(
    "dead",
    DEAD_LETTERS,
    DEAD_EXCHANGE,
    "classic",
    {"x-message-ttl": _WEEK_MS, "x-max-length": _MOST_DEAD_LETTERS},
    own_key="dead",
)
TASKS = QueueKind(
    "task",
    "fedil.tasks.",
    TASKS_EXCHANGES,
    "quorum",
    {
        # The broker counts returns, so this is one less than the deliveries.
        "x-delivery-limit": DELIVERY_LIMIT - 1,
        # Of a run that nobody goes on with; a server that comes back later asks again.
        "x-message-ttl": _WEEK_MS,
        "x-dead-letter-exchange": DEAD_EXCHANGE.name,
        "x-dead-letter-routing-key": "dead",
    },
)
# No delivery limit: a server may die any number of times. On a cluster "quorum" survives the loss of a node, but
# from RabbitMQ 4.0 on its default limit of 20 must then be lifted: {"x-delivery-limit": -1}.
# Expires only when no server has looked into it for so long; what it held is then asked for again.
UPDATES = QueueKind("update", "fedil.updates.", UPDATES_EXCHANGE, "classic", {"x-expires": _MONTH_MS})
# How much is retained depends on the model; the transport adds it. RabbitMQ refuses x-expires for streams: the log of
# a run that nobody goes on with stays until somebody retires it.
MODELS = QueueKind("model", "fedil.models.", MODELS_EXCHANGE, "stream")
LEAD = QueueKind(
    "lead",
    "fedil.lead.",
    LEAD_EXCHANGE,
    "classic",
    {"x-single-active-consumer": True, "x-max-length": 1, "x-expires": _WEEK_MS},
)
# Expires only unread, and later than any dead letter that speaks of it.
BODIES = QueueKind("body", "fedil.body.", BODIES_EXCHANGE, "classic", {"x-expires": 2 * _WEEK_MS})

QUEUE_KINDS = (TASKS, UPDATES, MODELS, LEAD, BODIES, DEAD)
RUN_KINDS = (UPDATES, MODELS, LEAD)
"""Of which every run has a queue of its own, named after it"""
EXCHANGES = tuple(kind.exchange for kind in QUEUE_KINDS if not kind.exchange.is_family)


def kind_of(queue: str) -> QueueKind | None:
    return next((kind for kind in QUEUE_KINDS if kind.holds(queue)), None)


def kind_name(queue: str) -> str:
    """For people who count: task, update, dead …"""
    kind = kind_of(queue)
    return kind.name if kind else "other"


def tasks_queue(site: str) -> str:
    """Where the workers of one site compete for its clients' tasks."""
    return f"{TASKS.prefix}{site}"


def updates_queue(run: str) -> str:
    """Where one run's server collects what clients learned."""
    return f"{UPDATES.prefix}{run}"


def models_queue(run: str) -> str:
    """The log of a run's model versions."""
    return f"{MODELS.prefix}{run}"


def lead_queue(run: str) -> str:
    """Whoever is first here is the run's server."""
    return f"{LEAD.prefix}{run}"


def body_queue(user: str, body_id: str) -> str:
    """Where a body waits that is too big for one message. Users write only under their own name; the random id
    keeps others from naming it."""
    return f"{BODIES.prefix}{user}.{body_id}"


def run_of(queue: str) -> str | None:
    """The run whose queue this is."""
    kind = kind_of(queue)
    return kind.routing_key(queue) if kind in RUN_KINDS else None


RUNS_TOPIC = "runs"
"""Notices of servers, by run"""


def workers_topic(site: str) -> str:
    """Notices of a site's workers"""
    return f"workers.{site}"


def site_user(site: str) -> str:
    """The broker's and the store's name for a site's workers"""
    return f"site-{site}"
