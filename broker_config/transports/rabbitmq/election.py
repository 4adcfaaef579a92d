"""Leader election with a single-active-consumer queue: the broker delivers to the consumer that came first."""

import time
from contextlib import suppress

from pika.adapters.blocking_connection import BlockingChannel

from broker_config.brokers.topology import lead_queue
from broker_config.protocol.errors import FedILError, QueueMissing
from broker_config.transports.rabbitmq.session import RabbitSession

_REPUBLISH_SECONDS = 0.5
_MIN_SECONDS = 1.0
"""The broker needs a moment to deliver, even without another leader."""


class LeaderElection:
    """The election of one run's server. A server that receives a message is the leader until its connection ends.

    The leader acknowledges every message at once, because one that it held would exceed the consumer_timeout. So a
    candidate publishes again and again; after the end of the leader it receives its own message.
    """

    def __init__(self, session: RabbitSession, run: str) -> None:
        self._session, self._queue = session, lead_queue(run)
        self._channel: BlockingChannel | None = None
        self._elected = False

    @property
    def is_leader(self) -> bool:
        return self._elected and self._channel is not None and bool(self._channel.is_open)

    def term(self) -> object | None:
        """An object for this term as leader, None if we do not lead. Another term has another object."""
        with self._session.receiving.exclusive() as connection:
            connection.process_data_events(0)  # detects that leadership was lost
            return self._channel if self.is_leader else None

    def campaign(self, timeout_seconds: float) -> bool:
        """True as soon as we are the leader."""
        with self._session.receiving.exclusive():
            if self.is_leader:
                return True
        self.resign()
        self._session.queues.declare_exchanges()
        self._session.queues.declare(self._queue)
        deadline = time.monotonic() + max(timeout_seconds, _MIN_SECONDS)
        while not self.is_leader:
            left = deadline - time.monotonic()
            if left <= 0:
                self.resign()
                return False
            try:
                self._republish(min(left, _REPUBLISH_SECONDS))
            except QueueMissing:  # the run was retired just now; the next campaign declares the queue again
                self.resign()
                return False
        return True

    def resign(self) -> None:
        channel, self._channel, self._elected = self._channel, None, False
        if channel is not None:
            with suppress(FedILError), self._session.receiving.exclusive():
                if channel.is_open:
                    channel.close()

    def _republish(self, wait_seconds: float) -> None:
        """Publishes a message and waits for its delivery to us."""
        self._session.publisher.publish(self._queue, b"")
        until = time.monotonic() + wait_seconds
        with self._session.receiving.exclusive() as connection:
            if self._channel is None or not self._channel.is_open:
                self._channel = connection.channel()
                self._channel.add_on_cancel_callback(self._on_cancel)
                self._channel.basic_consume(self._queue, self._on_message, auto_ack=True)
            while not self._elected and (left := until - time.monotonic()) > 0:
                connection.process_data_events(left)

    def _on_message(self, *_: object) -> None:
        self._elected = True

    def _on_cancel(self, *_: object) -> None:
        self._elected = False
