"""A connection to an embedded broker in the same process."""

from collections import Counter

from broker_config.brokers.topology import MODELS, kind_name
from broker_config.protocol.buffers import check_size
from broker_config.transports.interface import MAX_BODY_BYTES, Buffers, ModelAddress
from broker_config.transports.memory.broker import EmbeddedBroker, QueuedMessage, Session


class MemoryDelivery:
    def __init__(
        self, broker: EmbeddedBroker, session: Session, message: QueuedMessage, max_body_bytes: int
    ) -> None:
        self._broker, self._session, self._message = broker, session, message
        self._max_body_bytes = max_body_bytes
        self.body_is_inline = True
        self.redelivered = message.redelivered
        self.reason = message.reason
        self.sender: str | None = None

    @property
    def body(self) -> memoryview:
        check_size(len(self._message.body), self._max_body_bytes)
        return memoryview(self._message.body)

    def release_body(self) -> None:
        """The broker holds the body until the message is settled."""

    def acknowledge(self) -> None:
        self._broker.acknowledge(self._session, self._message)

    def requeue(self) -> None:
        self._broker.requeue(self._session, self._message)

    def reject(self, reason: str) -> None:
        self._broker.reject(self._session, self._message, reason)


class MemoryTransport:
    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._session = Session()
        self.max_body_bytes = MAX_BODY_BYTES
        self.bytes_sent: Counter[str] = Counter()
        self.bytes_received: Counter[str] = Counter()

    def declare(self, *queues: str) -> None:
        self._session.check_open()
        self._broker.declare(queues)

    def publish(self, queue: str, body: Buffers) -> None:
        self._session.check_open()
        copied = b"".join(body)  # the sender goes on training in the arrays behind `body`
        self._broker.publish(queue, copied)
        self.bytes_sent[kind_name(queue)] += len(copied)

    def receive(self, queue: str, timeout_seconds: float) -> MemoryDelivery | None:
        self._session.check_open()
        message = self._broker.receive(self._session, queue, timeout_seconds)
        if message is None:
            return None
        self.bytes_received[kind_name(queue)] += len(message.body)
        return MemoryDelivery(self._broker, self._session, message, self.max_body_bytes)

    def depth(self, queue: str) -> int | None:
        self._session.check_open()
        return self._broker.depth(queue)

    def append_model(
        self,
        run: str,
        version: int,
        body: Buffers,
        kept: int = 2,
        entry: str = "",
        entries: int = 1,  # noqa: ARG002
    ) -> ModelAddress:
        self._session.check_open()
        copied = b"".join(body)
        self.bytes_sent[MODELS.name] += len(copied)
        return self._broker.append_model(run, version, copied, kept, entry)

    def read_model(self, address: ModelAddress) -> memoryview:
        self._session.check_open()
        body = memoryview(self._broker.read_model(address))
        self.bytes_received[MODELS.name] += len(body)
        return body

    def acquire_leadership(self, run: str, timeout_seconds: float) -> bool:
        return self._broker.acquire_leadership(self._session, run, timeout_seconds)

    def retire(self, run: str) -> None:
        self._session.check_open()
        self._broker.retire(run)

    def timeout_warnings(self, longest_task_seconds: float) -> tuple[str, ...]:  # noqa: ARG002 - it has no time-outs
        return ()

    def close(self) -> None:
        self._broker.disconnect(self._session)
