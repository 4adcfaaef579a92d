"""Who is a run's one server: the broker gives messages of the lead queue to one consumer at a time, the first that
came. Whoever gets one leads, until its connection ends."""

import time
from contextlib import suppress

from pika.adapters.blocking_connection import BlockingChannel

from broker_config.brokers.topology import lead_queue
from broker_config.protocol.errors import FedILError, QueueMissing
from broker_config.transports.rabbitmq.connection import Line
from broker_config.transports.rabbitmq.publisher import Outlet

_KNOCK_SECONDS = 0.5
_LEAST_SECONDS = 1.0
"""The broker needs a moment to deliver, even where nobody leads."""


class Lead:
    """One run's. The leader takes every message at once: one that it held would outlive the consumer_timeout. So
    whoever waits has to knock again and again; after the leader's end a knock comes back to it."""

    def __init__(self, line: Line, outlet: Outlet, run: str) -> None:
        self._line, self._outlet, self._queue = line, outlet, lead_queue(run)
        self._channel: BlockingChannel | None = None
        self._heard = False

    @property
    def is_ours(self) -> bool:
        return self._heard and self._channel is not None and bool(self._channel.is_open)

    def hold(self) -> object | None:
        """What stands for this lead while it lasts, None afterwards. When it is taken again it is another one."""
        with self._line.talk() as connection:
            connection.process_data_events(0)  # who has lost it learns so here
            return self._channel if self.is_ours else None

    def take(self, timeout_seconds: float) -> bool:
        with self._line.talk():
            if self.is_ours:
                return True
        self.give_up()
        self._outlet.declare_exchanges()
        self._outlet.declare(self._queue)
        deadline = time.monotonic() + max(timeout_seconds, _LEAST_SECONDS)
        while not self.is_ours:
            left = deadline - time.monotonic()
            if left <= 0:
                self.give_up()
                return False
            try:
                self._knock(min(left, _KNOCK_SECONDS))
            except QueueMissing:  # the run was retired just now; who asks again makes another
                self.give_up()
                return False
        return True

    def give_up(self) -> None:
        channel, self._channel, self._heard = self._channel, None, False
        if channel is not None:
            with suppress(FedILError), self._line.talk():
                if channel.is_open:
                    channel.close()

    def _knock(self, wait_seconds: float) -> None:
        self._outlet.put(self._queue, b"")
        until = time.monotonic() + wait_seconds
        with self._line.talk() as connection:
            if self._channel is None or not self._channel.is_open:
                self._channel = connection.channel()
                self._channel.add_on_cancel_callback(self._on_cancel)
                self._channel.basic_consume(self._queue, self._on_message, auto_ack=True)
            while not self._heard and (left := until - time.monotonic()) > 0:
                connection.process_data_events(left)

    def _on_message(self, *_: object) -> None:
        self._heard = True

    def _on_cancel(self, *_: object) -> None:
        self._heard = False
