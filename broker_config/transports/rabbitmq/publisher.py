"""What we send: every message persistent, mandatory and confirmed, under the name that the broker checks."""

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from broker_config.brokers.topology import EXCHANGES, STREAMS_PREPARED, Exchange, QueueKind, kind_of
from broker_config.protocol.errors import (
    BrokerBlocked,
    BrokerRefused,
    BrokerUnavailable,
    FedILError,
    QueueMissing,
)
from broker_config.transports.rabbitmq.burst import Burst
from broker_config.transports.rabbitmq.connection import Line, TooLarge

_log = logging.getLogger(__name__)

CHUNK_BYTES = 4 << 20
"""Every RabbitMQ takes messages of this size by default (4.x up to 16 MiB), and larger ones are no faster."""
_SMALLEST_CHUNK_BYTES = 16 << 10

SETTLE_SECONDS = 1.0
"""RabbitMQ writes down who its quorum queues and streams are when it had half a second without a new one."""

Headers = Mapping[str, str | int | bool]
_T = TypeVar("_T")


class Outlet:
    def __init__(self, line: Line, receiving: Line | None = None) -> None:
        self.line, self._receiving = line, receiving
        self.bytes_sent: Counter[str] = Counter()
        """By kind of queue"""
        self._channel: BlockingChannel | None = None
        self._burst: Burst | None = None
        self._chunk_bytes = CHUNK_BYTES

    def put(self, queue: str, body: bytes, headers: Headers | None = None) -> None:
        """Returns when the broker has taken responsibility."""
        family = family_of(queue)
        exchange, key = family.exchange_of(queue).name, family.routing_key(queue)
        with self._talk() as connection, self.line.watched(), self._publishing(queue):
            self._open(connection).basic_publish(
                exchange, key, body, self._properties(headers), mandatory=True
            )
        self.bytes_sent[family.name] += len(body)

    def put_all(self, queue: str, bodies: Iterable[bytes], kind: str) -> None:
        """In this order; returns when the broker has taken responsibility for all. After an error it has some of them.
        `kind` is what the bytes are counted as."""
        family, properties = family_of(queue), self._properties(None)
        exchange, key = family.exchange_of(queue).name, family.routing_key(queue)
        with self._talk() as connection, self._bursting(connection) as burst, self._publishing(queue):
            for body in bodies:
                with self.line.watched():
                    burst.put(exchange, key, body, properties)
                self.bytes_sent[kind] += len(body)
            with self.line.watched():
                burst.finish()

    def _properties(self, headers: Headers | None) -> pika.BasicProperties:
        return pika.BasicProperties(
            delivery_mode=pika.DeliveryMode.Persistent.value,
            user_id=self.line.account.user or None,
            headers=dict(headers) if headers else None,
        )

    @contextmanager
    def _publishing(self, queue: str) -> Iterator[None]:
        try:
            yield
        except UnroutableError:
            raise QueueMissing(f"nobody declared the queue {queue!r}: declare it first") from None
        except NackError:
            raise BrokerUnavailable(
                f"RabbitMQ could not take a message for {queue}: try again later"
            ) from None
        except ChannelClosedByBroker as error:
            raise _refused(self.line, error, queue) from error

    @contextmanager
    def _bursting(self, connection: pika.BlockingConnection) -> Iterator[Burst]:
        # Forgotten while it is in use: after trouble nobody may go on with it.
        burst, self._burst = self._burst, None
        if burst is None or not burst.is_on(connection):
            burst = Burst(connection.channel())
        try:
            yield burst
        except (FedILError, TooLarge):
            burst.abandon()
            raise
        self._burst = burst

    def fitting(self, send: Callable[[int], _T]) -> _T:
        """Calls `send` with the largest size of a message, and with smaller ones where the broker's limit is low."""
        while True:
            try:
                return send(self._chunk_bytes)
            except TooLarge as error:
                if self._chunk_bytes <= _SMALLEST_CHUNK_BYTES:
                    raise BrokerRefused(
                        f"RabbitMQ takes no message of any use ({error}): raise max_message_size"
                    ) from None
                self._chunk_bytes //= 2

    def declare_exchanges(self) -> None:
        for exchange in EXCHANGES:
            self._declare_exchange(exchange)

    def declare(self, *queues: str, extra: Headers | None = None) -> None:
        """One that exists otherwise is used as it is: its operator may know better."""
        unfinished = [queue for queue in queues if self._is_unfinished(queue)]
        if any(self.exists(queue) for queue in unfinished):
            time.sleep(2 * SETTLE_SECONDS)  # another server may be at it just now
        if [queue for queue in unfinished if self._is_unfinished(queue) and self._make_anew(queue, extra)]:
            time.sleep(SETTLE_SECONDS)
        for queue in queues:
            family = family_of(queue)
            self._make(queue, extra)
            if family.exchange.is_family:
                self._declare_exchange(family.exchange_of(queue))
            self.bind(queue)

    def _is_unfinished(self, queue: str) -> bool:
        """A broker forgets the members of a quorum queue that it made just before it was killed, and then waits for
        their votes for ever. So the exchange follows when it cannot forget any more: without one nothing was sent."""
        family = family_of(queue)
        return (
            family.type == "quorum"
            and family.exchange.is_family
            and not self._exchange_exists(family.exchange_of(queue))
        )

    def _make_anew(self, queue: str, extra: Headers | None) -> bool:
        """False: it is not ours."""
        existed = self.exists(queue)
        made = self._make(queue, extra)
        if existed and made:
            self.delete(queue)
            made = self._make(queue, extra)
        return made

    def _make(self, queue: str, extra: Headers | None) -> bool:
        arguments = family_of(queue).arguments | dict(extra or {})
        try:
            self._do(lambda channel: channel.queue_declare(queue, durable=True, arguments=arguments))
        except _Inequivalent as error:
            _log.warning(
                "the queue %s was made by an earlier version or by its operator, and is used as it is (%s). To have it "
                "as we make it: delete it when it is empty",
                queue,
                error,
            )
            return False
        return True

    def prepare_streams(self) -> None:
        """With its first stream a broker starts to keep account of streams. One that is killed a moment later forgets
        all streams that it had by then; so the first is one that nobody misses."""
        if self._exchange_exists(STREAMS_PREPARED):
            return
        queue = f"{STREAMS_PREPARED.name}.{uuid.uuid4().hex}"
        arguments = {"x-queue-type": "stream"}
        self._do(lambda channel: channel.queue_declare(queue, durable=True, arguments=arguments))
        time.sleep(SETTLE_SECONDS)
        self.delete(queue)
        self._declare_exchange(STREAMS_PREPARED)

    def _declare_exchange(self, exchange: Exchange) -> None:
        self._do(lambda channel: channel.exchange_declare(exchange.name, exchange.type, durable=True))

    def bind(self, queue: str) -> None:
        """To where `put` sends; harmless if it is bound."""
        family = family_of(queue)
        exchange, key = family.exchange_of(queue).name, family.routing_key(queue)
        self._do(lambda channel: channel.queue_bind(queue, exchange, key))

    def _exchange_exists(self, exchange: Exchange) -> bool:
        try:
            self._do(lambda channel: channel.exchange_declare(exchange.name, exchange.type, passive=True))
        except QueueMissing:
            return False
        return True

    def exists(self, queue: str) -> bool:
        try:
            self._do(lambda channel: channel.queue_declare(queue, durable=True, passive=True))
        except QueueMissing:
            return False
        return True

    def delete(self, queue: str) -> None:
        """Harmless if it is not there."""
        self._do(lambda channel: channel.queue_delete(queue))

    def _do(self, request: Callable[[BlockingChannel], object]) -> None:
        with self._talk() as connection:
            try:
                request(self._open(connection))
            except ChannelClosedByBroker as error:
                if error.reply_code == 406 and "inequivalent arg" in error.reply_text:
                    raise _Inequivalent(error.reply_text) from error
                raise

    @contextmanager
    def _talk(self) -> Iterator[pika.BlockingConnection]:
        """While only this connection is in trouble, what the receiving one holds need not go back."""
        try:
            with self.line.talk() as connection:
                yield connection
        except BrokerUnavailable as error:
            if self._receiving is None or not self._receiving.is_alive():
                raise
            raise BrokerBlocked(str(error)) from error

    def _open(self, connection: pika.BlockingConnection) -> BlockingChannel:
        """The broker closes a channel over every mistake; the connection lives on."""
        if self._channel is None or self._channel.connection is not connection or not self._channel.is_open:
            self._channel = connection.channel()
            self._channel.confirm_delivery()
        return self._channel


class _Inequivalent(BrokerRefused):
    pass


def family_of(queue: str) -> QueueKind:
    family = kind_of(queue)
    if family is None or "*" in queue or "#" in queue:
        raise QueueMissing(f"{queue!r} is no name of ours: see broker_config/brokers/topology.py")
    return family


def _refused(line: Line, error: ChannelClosedByBroker, queue: str) -> FedILError | TooLarge:
    if error.reply_code == 406 and "max size" in error.reply_text:
        return TooLarge(error.reply_text)
    return line.translated(error, queue)
