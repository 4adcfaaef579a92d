"""The interface to a message broker. Implementations: `rabbitmq/`, and `memory/` for one machine.

Every implementation keeps these promises (tests/contract/test_transport_contract.py):

* Publisher confirms: `publish` and `append_model` return when the broker has taken responsibility for the message.
* At-least-once delivery: an unacknowledged message is redelivered when its consumer disconnects.
* Dead-lettering: a rejected message goes to DEAD_LETTERS with its reason and does not return. So does a message that
  was delivered DELIVERY_LIMIT times without an answer: it probably kills its consumers.
* No size limit: a body that exceeds the broker's message size is split and put together again.
* Calls block, and come from one thread at a time. Heartbeats need no action of the caller.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from broker_config.protocol.errors import ModelMissing

DELIVERY_LIMIT = 4
MAX_BODY_BYTES = 8 << 30
"""Default of `Transport.max_body_bytes`"""

Buffers = Sequence[bytes | memoryview]
"""A body in pieces: 26 MB of weights are sent without joining them first."""

Unwanted = Callable[[memoryview, str | None], bool]
"""Of a message's body and `Delivery.sender`"""


class Delivery(Protocol):
    """A received message, until it is settled by exactly one of acknowledge, requeue and reject."""

    @property
    def body(self) -> memoryview:
        """Fetched now if it is not inline. Raises MessageRejected if a part of it is lost, or if it is larger than the
        transport's `max_body_bytes`."""

    @property
    def body_is_inline(self) -> bool:
        """The body arrived with the message. Otherwise reading `body` fetches it, which takes time and memory."""

    @property
    def queue(self) -> str:
        """From which it was received"""

    @property
    def redelivered(self) -> bool:
        """It was delivered before, to this or another consumer."""

    @property
    def reason(self) -> str | None:
        """Why the message was dead-lettered; None outside DEAD_LETTERS."""

    @property
    def sender(self) -> str | None:
        """The publisher's user, as validated by the broker: "" if it sent no user id, None if the broker has no
        users."""

    def release_body(self) -> None:
        """Free the memory of the body. The message can still be acknowledged."""

    def acknowledge(self) -> None:
        """Remove the message from its queue."""

    def requeue(self) -> None:
        """Return the message to its queue for another consumer. Does not count towards DELIVERY_LIMIT."""

    def reject(self, reason: str) -> None:
        """Move the message to DEAD_LETTERS."""


@dataclass(frozen=True)
class ModelAddress:
    """Where an entry of a run's model log is stored. A version has a main entry, "", and may have others by name."""

    run: str
    version: int
    offset: int
    entry: str = ""

    def missing(self) -> ModelMissing:
        return ModelMissing(
            f"version {self.version} of run {self.run!r} is not in the model log: "
            "drop this task and wait for one with a newer version"
        )


class Transport(Protocol):
    """One connection to a broker."""

    max_body_bytes: int
    """A larger body is rejected before memory is allocated for it. May change at any time; applies to messages
    received afterwards."""

    @property
    def bytes_sent(self) -> Mapping[str, int]:
        """Body bytes by kind of queue: task, update, model, dead …"""

    @property
    def bytes_received(self) -> Mapping[str, int]: ...

    def declare(self, *queues: str) -> None:
        """Create the queues that do not exist. Idempotent."""

    def publish(self, queue: str, body: Buffers) -> None:
        """Raises QueueMissing if the queue is not declared."""

    def receive(self, queue: str | Sequence[str], timeout_seconds: float) -> Delivery | None:
        """The next message, or None after the timeout. Any number of messages may be held unacknowledged. Of several
        queues, the first that has a message."""

    def discard_while(self, queue: str, is_unwanted: Unwanted, most: int) -> int:
        """Remove at most this many messages from the front of a queue, up to the first that is wanted, and return their
        number. Much cheaper than to receive them one by one. Only for queues without a delivery limit. A body that is
        not inline is wanted."""

    def depth(self, queue: str) -> int | None:
        """Number of messages ready in a queue or stored in a model log; None if there is no such queue."""

    def append_model(
        self, run: str, version: int, body: Buffers, kept: int = 2, entry: str = "", entries: int = 1
    ) -> ModelAddress:
        """Write one entry of a model version once for all readers. The main entry, "", begins the version or replaces
        all of it; the others follow. The log keeps the `kept` versions written last. `entries` is the largest number of
        entries per version, for which the log reserves space."""

    def read_model(self, address: ModelAddress) -> memoryview:
        """Raises ModelMissing if the log no longer has this entry."""

    def acquire_leadership(self, run: str, timeout_seconds: float) -> bool:
        """Become the only server of a run; False if another one still leads after the timeout. Idempotent. Leadership
        ends with this connection, and passes to a waiting server at once."""

    def retire(self, run: str, sites: Iterable[str]) -> None:
        """Delete the run's queues: its sites' updates, model log, leader election. Idempotent."""

    def timeout_warnings(self, longest_task_seconds: float) -> tuple[str, ...]:
        """Settings of the broker that may interrupt tasks of this length, as sentences for the operator."""

    def close(self) -> None:
        """Unacknowledged messages return to their queues."""
