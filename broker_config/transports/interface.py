"""The seam to a message broker. Ten methods; the promises are the contract suite's.

* `publish` and `append_model` return only when the broker has taken responsibility.
* An unacknowledged delivery comes back, marked redelivered, when its consumer goes away.
* A rejected delivery goes to DEAD_LETTERS with its reason, and does not return. So does one that was
  delivered more than DELIVERY_LIMIT times: it kills whoever takes it.
* A body may have any size; the transport splits it if its broker has a limit.
* Calls block and may come from any one thread at a time; heartbeats are the transport's own business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

DELIVERY_LIMIT = 4
MAX_BODY_BYTES = 8 << 30
"""Of deliveries, unless somebody who knows what to expect says less"""

Buffers = Sequence[bytes | memoryview]
"""A body in pieces, so that nobody has to join 26 MB to send it."""


class Delivery(Protocol):
    @property
    def body(self) -> memoryview:
        """May be fetched only now. Raises MessageRejected where a part of it is lost for good, or where it is larger
        than the transport's `max_body_bytes`."""

    @property
    def is_at_hand(self) -> bool:
        """The body has come along. Otherwise asking for it fetches it, which takes time and memory."""

    @property
    def redelivered(self) -> bool: ...

    @property
    def reason(self) -> str | None:
        """On DEAD_LETTERS: why it was put there."""

    @property
    def sender(self) -> str | None:
        """The user that the broker vouches for; None where it knows no users, "" where none is named."""

    def release_body(self) -> None:
        """Let go of the body, which may be large. What is left can still be acknowledged."""

    def acknowledge(self) -> None: ...

    def requeue(self) -> None:
        """Give it back at once, for somebody else."""

    def reject(self, reason: str) -> None:
        """Dead-letter it: nobody should try again."""


@dataclass(frozen=True)
class ModelAddress:
    """Where an entry of a run's model log is. A version has a main entry, "", and may have others by name."""

    run: str
    version: int
    offset: int
    entry: str = ""


class Transport(Protocol):
    max_body_bytes: int
    """Larger bodies of deliveries are rejected before there is memory for them. May be set at any time, and holds for
    what is received from then on."""

    @property
    def bytes_sent(self) -> Mapping[str, int]:
        """Of bodies, until now, by kind: task, update, model, dead …"""

    @property
    def bytes_received(self) -> Mapping[str, int]: ...

    def declare(self, *queues: str) -> None:
        """Make queues that do not exist yet; harmless if they do."""

    def publish(self, queue: str, body: Buffers) -> None:
        """Raises QueueMissing if nobody declared the queue."""

    def receive(self, queue: str, timeout_seconds: float) -> Delivery | None:
        """The next message, or None after the time-out. Any number may be held unacknowledged."""

    def depth(self, queue: str) -> int | None:
        """How many messages wait in a queue, or lie in a model log, for people who watch; None where there is no such
        queue."""

    def append_model(
        self, run: str, version: int, body: Buffers, kept: int = 2, entry: str = "", entries: int = 1
    ) -> ModelAddress:
        """Write one entry of a version once for all readers. The main entry, "", begins the version or replaces it
        whole; others follow it. The `kept` versions written last stay, others leave. `entries`: how many a version may
        have, so that the log is made large enough."""

    def read_model(self, address: ModelAddress) -> memoryview:
        """Raises ModelMissing when the version has left the log."""

    def take_lead(self, run: str, timeout_seconds: float) -> bool:
        """Become the one server of a run, if nobody else is within the time-out. Asking again while leading is
        harmless. The lead ends with this connection, and the next who waits for it gets it at once."""

    def retire(self, run: str) -> None:
        """The run is over: its updates, its model log and its lead are dropped. Harmless if there are none."""

    def concerns(self, longest_task_seconds: float) -> tuple[str, ...]:
        """What about this broker may hurt tasks that take so long, in words for people."""

    def close(self) -> None:
        """What this side holds unacknowledged goes back to its queues."""
