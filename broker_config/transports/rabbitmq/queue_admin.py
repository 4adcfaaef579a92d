"""Declares, binds, counts and deletes exchanges and queues."""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from broker_config.brokers.topology import (
    EXCHANGES,
    REPLICATED,
    STREAMS_PREPARED,
    Exchange,
    QueueKind,
    kind_of,
)
from broker_config.protocol.errors import BrokerRefused, QueueMissing
from broker_config.transports.rabbitmq.connection import Connection, is_usable

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

SETTLE_SECONDS = 1.0
"""RabbitMQ writes the members of its quorum queues and streams to disk after half a second without a new one."""

Arguments = Mapping[str, str | int | bool]


class _Inequivalent(BrokerRefused):
    """A queue exists with other arguments."""


class QueueAdmin:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._channel: BlockingChannel | None = None
        self._replicated: bool | None = None

    def declare_exchanges(self) -> None:
        for exchange in EXCHANGES:
            self._declare_exchange(exchange)
        if self.replicated:
            self._declare_exchange(REPLICATED)  # for processes with another address

    @property
    def replicated(self) -> bool:
        """Whether queues are made to outlive the loss of a node: as the address says, else as the broker was set up."""
        if self._replicated is None:
            self._replicated = self._connection.address.replicated
        if self._replicated is None:
            try:
                self._replicated = self._exchange_exists(REPLICATED)
            except BrokerRefused:  # by RabbitMQ 4.3, if a site asks: on a cluster its address says so
                self._replicated = False
        return self._replicated

    def declare(self, *queues: str, arguments: Arguments | None = None) -> None:
        """Creates and binds queues. An existing queue with other arguments is used as it is: its operator may have
        reasons."""
        incomplete = [queue for queue in queues if self._is_incomplete(queue)]
        if any(self.exists(queue) for queue in incomplete):
            time.sleep(2 * SETTLE_SECONDS)  # another server may be creating it now
        if [queue for queue in incomplete if self._is_incomplete(queue) and self._recreate(queue, arguments)]:
            time.sleep(SETTLE_SECONDS)
        for queue in queues:
            self._create(queue, arguments)
            kind = queue_kind(queue)
            if kind.exchange.is_family:
                self._declare_exchange(kind.exchange_of(queue))
            self.bind(queue)

    def prepare_streams(self) -> None:
        """Creates and deletes a first stream. A broker that is killed just after its first stream was declared forgets
        all streams that it had until then."""
        if self._exchange_exists(STREAMS_PREPARED):
            return
        queue = f"{STREAMS_PREPARED.name}.{uuid.uuid4().hex}"
        arguments = {"x-queue-type": "stream"}
        self._call(lambda channel: channel.queue_declare(queue, durable=True, arguments=arguments))
        time.sleep(SETTLE_SECONDS)
        self.delete(queue)
        self._declare_exchange(STREAMS_PREPARED)

    def bind(self, queue: str) -> None:
        """To the exchange that `Publisher` uses. Idempotent."""
        exchange, key = route(queue)
        self._call(lambda channel: channel.queue_bind(queue, exchange, key))

    def depth(self, queue: str) -> int | None:
        """Number of ready messages; None if there is no such queue."""
        try:
            declared: Any = self._call(lambda channel: channel.queue_declare(queue, passive=True))
        except QueueMissing:
            return None
        return int(declared.method.message_count)

    def exists(self, queue: str) -> bool:
        return self.depth(queue) is not None

    def delete(self, queue: str) -> None:
        """Idempotent."""
        self._call(lambda channel: channel.queue_delete(queue))

    def _is_incomplete(self, queue: str) -> bool:
        """A broker that is killed just after it created a quorum queue forgets the members, and then waits for their
        votes forever. So the exchange is declared when the members are on disk: without it, nothing was published."""
        kind = queue_kind(queue)
        return (
            kind.type == "quorum"
            and kind.exchange.is_family
            and not self._exchange_exists(kind.exchange_of(queue))
        )

    def _recreate(self, queue: str, arguments: Arguments | None) -> bool:
        """False if it exists with other arguments."""
        existed = self.exists(queue)
        if not self._create(queue, arguments):
            return False
        if existed:
            self.delete(queue)
            return self._create(queue, arguments)
        return True

    def _create(self, queue: str, arguments: Arguments | None) -> bool:
        """False if it exists with other arguments."""
        all_arguments = queue_kind(queue).on_cluster(self.replicated).arguments | dict(arguments or {})
        try:
            self._call(lambda channel: channel.queue_declare(queue, durable=True, arguments=all_arguments))
        except _Inequivalent as error:
            _log.warning(
                "the queue %s was made by an earlier version or by its operator, and is used as it is (%s). To have it "
                "as we make it: delete it when it is empty",
                queue,
                error,
            )
            return False
        return True

    def _declare_exchange(self, exchange: Exchange) -> None:
        self._call(lambda channel: channel.exchange_declare(exchange.name, exchange.type, durable=True))

    def _exchange_exists(self, exchange: Exchange) -> bool:
        try:
            self._call(lambda channel: channel.exchange_declare(exchange.name, exchange.type, passive=True))
        except QueueMissing:
            return False
        return True

    def _call(self, method: Callable[[BlockingChannel], _T]) -> _T:
        with self._connection.exclusive() as connection:
            if self._channel is None or not is_usable(self._channel, connection):
                self._channel = connection.channel()
            try:
                return method(self._channel)
            except ChannelClosedByBroker as error:
                if error.reply_code == 406 and "inequivalent arg" in error.reply_text:
                    raise _Inequivalent(error.reply_text) from error
                raise


def queue_kind(queue: str) -> QueueKind:
    kind = kind_of(queue)
    if kind is None or "*" in queue or "#" in queue:
        raise QueueMissing(f"{queue!r} is not a queue of FedIL: see broker_config/brokers/topology.py")
    return kind


def route(queue: str) -> tuple[str, str]:
    """The exchange and the routing key that lead to a queue."""
    kind = queue_kind(queue)
    return kind.exchange_of(queue).name, kind.routing_key(queue)
