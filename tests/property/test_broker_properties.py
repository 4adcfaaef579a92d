"""The embedded broker compared with a model: no message is lost or held by two consumers."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from broker_config.brokers.topology import DEAD_LETTERS
from broker_config.transports.interface import DELIVERY_LIMIT
from broker_config.transports.memory.broker import EmbeddedBroker
from broker_config.transports.memory.transport import MemoryDelivery, MemoryTransport

QUEUE = "fedil.tasks.a"


@dataclass
class Held:
    message: int
    holder: int
    delivery: MemoryDelivery


class BrokerMachine(RuleBasedStateMachine):
    consumers = Bundle("consumers")

    def __init__(self) -> None:
        super().__init__()
        self.broker = EmbeddedBroker()
        self.publisher = MemoryTransport(self.broker)
        self.publisher.declare(QUEUE)
        self.transports: dict[int, MemoryTransport] = {}
        self.num_published = 0
        self.waiting: list[int] = []
        self.held: list[Held] = []
        self.deaths: dict[int, int] = {}
        self.returned: set[int] = set()
        self.acknowledged: set[int] = set()
        self.dead: list[tuple[int, str]] = []

    @rule()
    def publish(self) -> None:
        body = self.num_published.to_bytes(30, "big")
        self.publisher.publish(QUEUE, [body[:5], body[5:]])
        self.waiting.append(self.num_published)
        self.num_published += 1

    @rule(target=consumers)
    def connect(self) -> int:
        number = len(self.transports)
        self.transports[number] = MemoryTransport(self.broker)
        return number

    @rule(consumer=consumers)
    def receive(self, consumer: int) -> None:
        delivery = self.transports[consumer].receive(QUEUE, 0)
        if not self.waiting:
            assert delivery is None
            return
        assert delivery is not None
        message = self.waiting.pop(0)
        assert int.from_bytes(delivery.body, "big") == message
        assert delivery.redelivered == (message in self.returned)
        assert message not in [held.message for held in self.held]
        self.held.append(Held(message, consumer, delivery))

    @rule(dies=st.booleans(), times=st.integers(1, DELIVERY_LIMIT))
    def receive_and_return(self, dies: bool, times: int) -> None:
        """Repeats deliveries, because random steps alone rarely reach the delivery limit."""
        for _ in range(times):
            consumer = self.connect()
            num_held = len(self.held)
            self.receive(consumer)
            if dies:
                self.lose(consumer)
            elif len(self.held) > num_held:
                self._requeue(self.held.pop())

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        if held := self._any_held(data):
            held.delivery.acknowledge()
            self.acknowledged.add(held.message)

    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        if held := self._any_held(data):
            self._requeue(held)

    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        if held := self._any_held(data):
            held.delivery.reject("schema")
            self.dead.append((held.message, "schema"))

    @rule(consumer=consumes(consumers))
    def lose(self, consumer: int) -> None:
        self.transports[consumer].close()
        lost = [held for held in self.held if held.holder == consumer]
        self.held = [held for held in self.held if held.holder != consumer]
        for held in reversed(lost):
            self.deaths[held.message] = self.deaths.get(held.message, 0) + 1
            if self.deaths[held.message] == DELIVERY_LIMIT:
                self.dead.append((held.message, "delivery_limit"))
            else:
                self._return(held.message)

    @invariant()
    def every_message_is_in_exactly_one_place(self) -> None:
        places = [*self.waiting, *(held.message for held in self.held), *self.acknowledged]
        places += [message for message, _ in self.dead]
        assert sorted(places) == list(range(self.num_published))

    def teardown(self) -> None:
        for transport in self.transports.values():
            transport.close()
        for message, reason in self.dead:
            delivery = self.publisher.receive(DEAD_LETTERS, 0)
            assert delivery is not None
            assert (int.from_bytes(delivery.body, "big"), delivery.reason) == (message, reason)
        left = {held.message for held in self.held} | set(self.waiting)
        while delivery := self.publisher.receive(QUEUE, 0):
            left.remove(int.from_bytes(delivery.body, "big"))
        # The others reached the delivery limit when the consumers above disconnected.
        while delivery := self.publisher.receive(DEAD_LETTERS, 0):
            assert delivery.reason == "delivery_limit"
            left.remove(int.from_bytes(delivery.body, "big"))
        assert not left

    def _any_held(self, data: st.DataObject) -> Held | None:
        if not self.held:
            return None
        return self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))

    def _requeue(self, held: Held) -> None:
        held.delivery.requeue()
        self._return(held.message)

    def _return(self, message: int) -> None:
        self.waiting.insert(0, message)
        self.returned.add(message)


TestEmbeddedBroker = BrokerMachine.TestCase
TestEmbeddedBroker.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
