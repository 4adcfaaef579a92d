"""The transport on RabbitMQ 3.10 or later. `broker_config/brokers/topology.py` lists its exchanges and queues."""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress

from broker_config.brokers.definitions import DEFAULT_CONSUMER_TIMEOUT_SECONDS, consumer_timeout_seconds
from broker_config.brokers.topology import run_queues, updates_queue
from broker_config.protocol.errors import FedILError
from broker_config.transports.interface import MAX_BODY_BYTES, Buffers, ModelAddress, Unwanted
from broker_config.transports.rabbitmq import large_messages
from broker_config.transports.rabbitmq.consumer import Consumer, Message, receive_first
from broker_config.transports.rabbitmq.delivery import RabbitDelivery
from broker_config.transports.rabbitmq.discarding import discard_while
from broker_config.transports.rabbitmq.election import LeaderElection
from broker_config.transports.rabbitmq.model_log import ModelLog
from broker_config.transports.rabbitmq.queue_admin import QueueAdmin, queue_kind
from broker_config.transports.rabbitmq.session import RabbitSession
from broker_config.transports.rabbitmq.url import BLOCKED_SECONDS


class RabbitTransport:
    """After the receiving connection is lost, this transport cannot be used any more: open another."""

    def __init__(self, url: str, *, blocked_seconds: float = BLOCKED_SECONDS) -> None:
        self._session = RabbitSession(url, blocked_seconds)
        # Not on the publishing connection: depths are read also while an alarm blocks it.
        self._depths = QueueAdmin(self._session.fetching)
        self._models = ModelLog(self._session, self._term_of)
        self._consumers: dict[str, Consumer] = {}
        self._elections: dict[str, LeaderElection] = {}
        self.max_body_bytes = MAX_BODY_BYTES
        self.bytes_received: Counter[str] = self._models.bytes_received
        self.bytes_sent: Counter[str] = self._session.publisher.bytes_sent

    @property
    def chunk_bytes(self) -> int:
        """The largest message that the broker has not refused so far"""
        return self._session.publisher.chunk_bytes

    def declare(self, *queues: str) -> None:
        self._session.queues.declare_exchanges()
        self._session.queues.declare(*queues)

    def publish(self, queue: str, body: Buffers) -> None:
        large_messages.publish(self._session, queue, body)

    def receive(self, queue: str | Sequence[str], timeout_seconds: float) -> RabbitDelivery | None:
        consumers = [self._consumer(each) for each in ([queue] if isinstance(queue, str) else queue)]
        try:
            received = receive_first(self._session.receiving, consumers, timeout_seconds)
        except FedILError:
            for consumer in consumers:
                if not consumer.is_open:
                    self._consumers.pop(consumer.queue).close()
            raise
        return None if received is None else self._delivery(*received)

    def _consumer(self, queue: str) -> Consumer:
        queue_kind(queue)
        if queue not in self._consumers:
            self._consumers[queue] = Consumer(self._session.receiving, queue)
        return self._consumers[queue]

    def discard_while(self, queue: str, is_unwanted: Unwanted, most: int) -> int:
        return discard_while(self._session.fetching, queue, is_unwanted, most)

    def depth(self, queue: str) -> int | None:
        return self._depths.depth(queue)

    def append_model(
        self, run: str, version: int, body: Buffers, kept: int = 2, entry: str = "", entries: int = 1
    ) -> ModelAddress:
        return self._models.append(run, version, body, kept, entry, entries)

    def read_model(self, address: ModelAddress) -> memoryview:
        return self._models.read(address)

    def acquire_leadership(self, run: str, timeout_seconds: float) -> bool:
        election = self._elections.setdefault(run, LeaderElection(self._session, run))
        return election.campaign(timeout_seconds)

    def _term_of(self, run: str) -> object | None:
        election = self._elections.get(run)
        return None if election is None else election.term()

    def retire(self, run: str, sites: Iterable[str]) -> None:
        sites = list(sites)
        election = self._elections.pop(run, None)
        if election is not None:
            election.resign()
        for site in sites:
            large_messages.discard_all(self._session.fetching, updates_queue(run, site))
        for queue in run_queues(run, sites):
            self._session.queues.delete(queue)
        self._models.forget(run)

    def timeout_warnings(self, longest_task_seconds: float) -> tuple[str, ...]:
        """AMQP has no way to read the broker's consumer_timeout."""
        needed_seconds = consumer_timeout_seconds(longest_task_seconds)
        if needed_seconds <= DEFAULT_CONSUMER_TIMEOUT_SECONDS:
            return ()
        version = ".".join(map(str, self._session.receiving.broker_version))
        return (
            f"RabbitMQ {version} takes a task back after its consumer_timeout, 30 minutes by default, and "
            f"tasks here may take {longest_task_seconds / 60:g}: see that it is at least "
            f"{round(1000 * needed_seconds)} ms (fedil broker check tells, fedil broker files writes it)",
        )

    def close(self) -> None:
        for consumer in self._consumers.values():
            for message in consumer.unsubscribe():
                with suppress(FedILError):
                    self._delivery(consumer, message).requeue()
        self._session.close()

    def _delivery(self, consumer: Consumer, message: Message) -> RabbitDelivery:
        return RabbitDelivery(self._session, consumer, message, self.bytes_received, self.max_body_bytes)
