"""Names, types and arguments of all exchanges and queues, and the topics of notices.

The transport declares queues from this data, and the brokers' definitions and permissions are generated from it.
Nothing is published through the default exchange, on which sites have no permissions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from broker_config.transports.interface import DELIVERY_LIMIT

_WEEK_MS = 7 * 24 * 3600 * 1000
_MONTH_MS = 30 * 24 * 3600 * 1000
_MOST_DEAD_LETTERS = 10_000
_MOST_UPDATES, _MOST_UPDATE_BYTES = 1000, 512 << 20
"""Of one site that the server has not read yet: RabbitMQ refuses more, and workers wait. Without a bound a site could
fill the disk, and its next good update would be behind all that."""
_NO_DELIVERY_LIMIT = 1_000_000_000
"""RabbitMQ 4 has a limit of 20 by default, and earlier versions refuse -1."""

DEAD_LETTERS = "fedil.dead"
DEFAULT_SITE = "default"
"""Owner of all clients in a recipe without sites"""


@dataclass(frozen=True)
class Exchange:
    """A durable exchange. RabbitMQ checks the routing keys with which a user binds to or publishes on a topic exchange,
    but version 3 does not check those in the headers CC and BCC: users may write only to exchanges where these cannot
    name another user's queue."""

    name: str
    """A name that ends with a dot is a prefix: each site has its own exchange."""
    type: str

    @property
    def is_family(self) -> bool:
        return self.name.endswith(".")


@dataclass(frozen=True)
class QueueKind:
    """Durable queues with a common prefix; the rest of a queue's name is its routing key on the exchange."""

    name: str
    prefix: str
    exchange: Exchange
    type: str
    options: Mapping[str, int | str | bool] = field(default_factory=dict)
    own_key: str | None = None
    """Routing key of a kind with a single queue, whose name is the prefix"""

    @property
    def arguments(self) -> dict[str, int | str | bool]:
        """The arguments that RabbitMQ compares when a queue is declared again."""
        return {"x-queue-type": self.type, **self.options}

    def on_cluster(self, replicated: bool) -> "QueueKind":
        """Of queues that outlive the loss of a node, if wanted: classic queues are on one node only. Streams need no
        argument: they have a replica on every node that is there when they are declared."""
        if self.type != "classic" or not replicated:
            return self
        return replace(self, type="quorum", options={"x-delivery-limit": _NO_DELIVERY_LIMIT, **self.options})

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
        site = self.routing_key(queue).partition(".")[0]
        return Exchange(self.exchange.name + site, self.exchange.type)


# One per site, for its updates and for tasks that its workers return: they must not be able to publish to another
# site's queue.
SITE_EXCHANGES = Exchange("fedil.site.", "direct")
MODELS_EXCHANGE = Exchange("fedil.models", "direct")
BODIES_EXCHANGE = Exchange("fedil.bodies", "topic")
LEAD_EXCHANGE = Exchange("fedil.lead", "direct")
DEAD_EXCHANGE = Exchange("fedil.dead", "direct")
STREAMS_PREPARED = Exchange("fedil.streams", "direct")
"""Carries no messages: its existence means that the broker has stored its first stream. Not in the definitions."""
REPLICATED = Exchange("fedil.replicated", "direct")
"""Carries no messages: its existence means that queues are declared `QueueKind.on_cluster`."""

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
    SITE_EXCHANGES,
    "quorum",
    {
        # RabbitMQ counts returns, one less than deliveries.
        "x-delivery-limit": DELIVERY_LIMIT - 1,
        # For tasks of an abandoned run; a server that resumes it later publishes them again.
        "x-message-ttl": _WEEK_MS,
        "x-dead-letter-exchange": DEAD_EXCHANGE.name,
        "x-dead-letter-routing-key": "dead",
    },
)
# No delivery limit: a server may die any number of times.
# Expires when no server has used it for a month; the clients are then asked again.
UPDATES = QueueKind(
    "update",
    "fedil.updates.",
    SITE_EXCHANGES,
    "classic",
    {
        "x-expires": _MONTH_MS,
        "x-max-length": _MOST_UPDATES,
        "x-max-length-bytes": _MOST_UPDATE_BYTES,
        "x-overflow": "reject-publish",
    },
)
# The transport adds the retention, which depends on the model's size. RabbitMQ refuses x-expires for streams: the log
# of an abandoned run stays until `fedil broker retire`.
MODELS = QueueKind("model", "fedil.models.", MODELS_EXCHANGE, "stream")
LEAD = QueueKind(
    "lead",
    "fedil.lead.",
    LEAD_EXCHANGE,
    "classic",
    {"x-single-active-consumer": True, "x-max-length": 1, "x-expires": _WEEK_MS},
)
# Expires unread, later than any dead letter that refers to it.
BODIES = QueueKind("body", "fedil.body.", BODIES_EXCHANGE, "classic", {"x-expires": 2 * _WEEK_MS})

QUEUE_KINDS = (TASKS, UPDATES, MODELS, LEAD, BODIES, DEAD)
RUN_KINDS = (UPDATES, MODELS, LEAD)
"""The queues of a run: one of its updates for each site, one each of the others"""
EXCHANGES = tuple(kind.exchange for kind in QUEUE_KINDS if not kind.exchange.is_family)


def kind_of(queue: str) -> QueueKind | None:
    return next((kind for kind in QUEUE_KINDS if kind.holds(queue)), None)


def kind_name(queue: str) -> str:
    """Label of metrics: task, update, dead …"""
    kind = kind_of(queue)
    return kind.name if kind else "other"


def tasks_queue(site: str) -> str:
    """The tasks of one site's clients, for which its workers compete."""
    return f"{TASKS.prefix}{site}"


def updates_queue(run: str, site: str = DEFAULT_SITE) -> str:
    """The updates of one site's clients, for the run's server. A site has no dot in its name."""
    return f"{UPDATES.prefix}{site}.{run}"


def models_queue(run: str) -> str:
    """The log of a run's model versions."""
    return f"{MODELS.prefix}{run}"


def lead_queue(run: str) -> str:
    """The queue whose single active consumer is the run's server."""
    return f"{LEAD.prefix}{run}"


def body_queue(user: str, body_id: str) -> str:
    """A body that is too large for one message. Users write only under their own name; other users cannot guess the
    random id."""
    return f"{BODIES.prefix}{user}.{body_id}"


def run_of(queue: str) -> str | None:
    """The run that the queue belongs to, if it is one of RUN_KINDS."""
    kind = kind_of(queue)
    if kind is None or kind not in RUN_KINDS:
        return None
    key = kind.routing_key(queue)
    return key.partition(".")[2] or None if kind is UPDATES else key


def run_queues(run: str, sites: Iterable[str]) -> list[str]:
    """All queues of a run with these sites"""
    return [*(updates_queue(run, site) for site in sites), models_queue(run), lead_queue(run)]


FINISHED_TOPIC = "finished"
"""Notices of servers whose run has ended; they stay for a week."""
RUNS_TOPIC = "runs"
"""Notices of servers, one per run"""


def workers_topic(site: str) -> str:
    """Notices of a site's workers"""
    return f"workers.{site}"


def site_user(site: str) -> str:
    """User name of a site's workers at RabbitMQ and Redis"""
    return f"site-{site}"
