"""A message that was received from RabbitMQ."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from broker_config.brokers.topology import DEAD, DEAD_LETTERS
from broker_config.protocol.buffers import check_size
from broker_config.protocol.errors import BrokerRefused, BrokerUnavailable, FedILError, QueueMissing
from broker_config.transports.rabbitmq import large_messages
from broker_config.transports.rabbitmq.consumer import Consumer, Message
from broker_config.transports.rabbitmq.publisher import Headers
from broker_config.transports.rabbitmq.queue_admin import queue_kind
from broker_config.transports.rabbitmq.session import RabbitSession

_REDELIVERED = "x-fedil-redelivered"
_REASON = "x-fedil-reason"
_QUEUE = "x-fedil-queue"


class RabbitDelivery:
    def __init__(
        self,
        session: RabbitSession,
        consumer: Consumer,
        message: Message,
        received: Counter[str],
        max_body_bytes: int,
    ) -> None:
        self._session, self._consumer, self._tag = session, consumer, message.tag
        self._received, self._max_body_bytes = received, max_body_bytes
        self.queue = consumer.queue
        self._kind = queue_kind(self.queue)
        headers: Mapping[str, Any] = message.properties.headers or {}
        self._inline: bytes | None = message.body
        self._body_queue: str | None = large_messages.body_queue_in(headers)
        """Where the body is, if the message is a reference to it"""
        self._fetched: memoryview | None = None
        self._settled = False
        self._was_requeued = headers.get(_REDELIVERED) is True
        self.redelivered: bool = message.redelivered or self._was_requeued
        self.sender: str | None = message.properties.user_id or ""
        self.body_is_inline = self._body_queue is None
        self.reason: str | None = None
        if self._kind is DEAD:
            reason = headers.get(_REASON) or headers.get("x-first-death-reason")
            self.reason = reason if isinstance(reason, str) else "unknown"
        received[self._kind.name] += len(message.body)

    @property
    def body(self) -> memoryview:
        if self._body_queue is None:
            check_size(len(self._inline or b""), self._max_body_bytes)
            return memoryview(self._inline or b"")
        if self._fetched is None:
            try:
                self._fetched = large_messages.fetch(
                    self._session.fetching, self._body_queue, self._max_body_bytes
                )
            except BrokerUnavailable:
                # As if the receiving connection were lost: this reference is redelivered, and all else that it holds.
                self._session.receiving.close()
                raise
            self._received[self._kind.name] += len(self._fetched)
        return self._fetched

    def release_body(self) -> None:
        self._fetched = None
        if self._body_queue is None:
            self._inline = None

    def acknowledge(self) -> None:
        self._check_unsettled()
        try:
            self._consumer.acknowledge(self._tag)
        except QueueMissing:  # the reference was deleted with its queue
            self._discard_body()
            raise
        self._settled = True
        # Not before: a redelivered reference would find no body.
        self._discard_body()

    def requeue(self) -> None:
        self._check_unsettled()
        if not self._consumer.is_open:
            self._settled = True  # the broker requeued it when the channel was closed
        elif self._kind.has_delivery_limit and self._inline is not None:
            # Most broker versions count a nack towards the delivery limit, so a copy replaces the message.
            self._replace(self._consumer.queue, {_REDELIVERED: True})
        else:
            self._consumer.requeue(self._tag)
            self._settled = True

    def reject(self, reason: str) -> None:
        self._check_unsettled()
        self._replace(DEAD_LETTERS, {_REASON: reason, _QUEUE: self._consumer.queue})

    def _discard_body(self) -> None:
        if self._body_queue is not None:
            large_messages.discard(self._session.fetching, self._body_queue)

    def _replace(self, queue: str, headers: Headers) -> None:
        """Publishes a copy and acknowledges the original, or requeues the original if publishing fails. Other headers
        of the sender are dropped: with ours they might exceed a frame, and the message would return forever."""
        try:
            self._publish_copy(queue, {**self._own_headers(), **headers})
        except FedILError:
            self._consumer.requeue(self._tag)
            raise
        else:
            self._consumer.acknowledge(self._tag)
        finally:
            self._settled = True

    def _publish_copy(self, queue: str, headers: Headers) -> None:
        body, publisher = self._inline or b"", self._session.publisher
        try:
            publisher.publish(queue, body, headers)
        except QueueMissing:
            # A deleted dead-letter queue is declared again, if this user may. A deleted task queue is not: the server
            # must notice that its tasks are lost.
            if queue != DEAD_LETTERS:
                raise
            try:
                self._session.queues.declare(queue)
                publisher.publish(queue, body, headers)
            except (BrokerRefused, QueueMissing) as error:
                raise BrokerUnavailable(
                    f"{queue} is not there and this user cannot declare it ({error}): a running server declares it "
                    "again, and so does fedil broker init"
                ) from error

    def _own_headers(self) -> Headers:
        headers: dict[str, str | bool] = {}
        if self._body_queue is not None and large_messages.is_body_queue(self._body_queue):
            headers[large_messages.BODY_HEADER] = self._body_queue
        if self._was_requeued:
            headers[_REDELIVERED] = True
        return headers

    def _check_unsettled(self) -> None:
        if self._settled:
            raise BrokerUnavailable("this delivery was settled before: settle each exactly once")
