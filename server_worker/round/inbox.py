"""Messages that arrive for a run's server: decoded, checked, and held until a checkpoint has their effect.

Each site has a queue of its own, which RabbitMQ bounds: one that sends without end delays nobody else's updates.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

from broker_config.brokers.topology import updates_queue
from broker_config.protocol.errors import BrokerUnavailable, MessageRejected, QueueMissing
from broker_config.protocol.messages import Refusal, TrainTask, Update
from broker_config.protocol.wire import decode_message
from broker_config.transports.interface import Delivery
from server_worker.round.context import ServerContext
from server_worker.round.dead_letters import MISPLACED
from server_worker.round.refusals import LATE, RefusalSampler
from server_worker.round.validation import one_line
from server_worker.watch.notices import Notice

_LEFTOVER_SECONDS = 0.2
"""Messages that a killed server held unacknowledged come back within this time."""
_LATECOMERS = 1000
"""Bound on messages that arrive while leftovers are read: a client may send without end."""


@dataclass(frozen=True)
class Arrival:
    """An answer that was decoded and comes from its client's site."""

    answer: Update | Refusal
    delivery: Delivery | None
    """None: the server itself refuses, in place of a client that cannot be asked"""


class Inbox:
    def __init__(self, run: str, context: ServerContext) -> None:
        self._run, self._context = run, context
        self._held: dict[tuple[int, int], Delivery] = {}
        """By client and activation"""
        self._refused: Counter[str] = Counter()
        self._sampler = RefusalSampler(context.clock, context.watcher.note)
        self._late = RefusalSampler(context.clock, context.watcher.note, LATE)
        self._sites = {updates_queue(run, site): site for site in context.sites.names()}
        """By queue, the one that was served last at the end"""
        self._own: deque[Refusal] = deque()
        self.is_empty = False
        """The last look into the queue found no message at all."""

    def next(self, timeout_seconds: float) -> Arrival | None:
        """None: no message in time, or one that was refused"""
        if self._own:
            return Arrival(self._own.popleft(), None)
        delivery = self._receive(timeout_seconds)
        self.is_empty = delivery is None
        return None if delivery is None else self._open(delivery)

    def refuse_for(self, refusal: Refusal) -> None:
        """Not by way of the client's queue, which its site may keep full. After a crash it is asked again anyway."""
        self._own.append(refusal)

    def leftovers(self) -> Iterator[Arrival]:
        """Updates that are in the queue already. Refusals are dropped: their clients are asked again, since the cause
        may have been removed before this server was started."""
        depths = [self._context.transport.depth(queue) or 0 for queue in self._sites]
        for _ in range(sum(depths) + _LATECOMERS):
            self._context.check_stop()
            delivery = self._receive(_LEFTOVER_SECONDS)
            if delivery is None:
                return
            arrival = self._open(delivery)
            if arrival is not None and isinstance(arrival.answer, Refusal):
                delivery.acknowledge()
            elif arrival is not None:
                yield arrival

    def _receive(self, timeout_seconds: float) -> Delivery | None:
        # One message of each site in turn, and last of those that send bad ones without end.
        queues = sorted(self._sites, key=lambda queue: self._sampler.is_over_rate(self._sites[queue]))
        try:
            delivery = self._context.transport.receive(queues, timeout_seconds)
        except QueueMissing:
            # It was deleted. The dispatcher declares it again when it looks for lost tasks.
            self._context.stop.wait(timeout_seconds)
            return None
        if delivery is not None:
            self._sites[delivery.queue] = self._sites.pop(delivery.queue)
        return delivery

    def _open(self, delivery: Delivery) -> Arrival | None:
        try:
            answer = decode_message(delivery.body)
        except MessageRejected as error:
            self.refuse(delivery, error.reason, error.detail)
            return None
        except BrokerUnavailable:
            return None  # the connection was lost while the body was fetched: it comes again
        if isinstance(answer, TrainTask):
            self.refuse(delivery, MISPLACED, "a task on the queue of updates")
            return None
        if wrong := self._context.sites.wrong_sender(delivery.sender, answer.client):
            self.refuse(delivery, "not_yours", wrong)
            return None
        return Arrival(answer, delivery)

    def refuse(self, delivery: Delivery, reason: str, detail: str) -> None:
        """Dead-letter a bad message, for operators to see; of a flood only some."""
        self._refused[reason] += 1
        site = self._sites[delivery.queue]
        if not self._sampler.keeps(site):
            delivery.acknowledge()
            return
        words = f"message refused ({reason}): {one_line(detail)}; from site {site}"
        self._context.watcher.note(Notice(words, num_refused=1, site=site))
        delivery.reject(reason)

    def drop(self, arrival: Arrival, reason: str) -> None:
        """A good answer that is of no use any more. A repeat is held: the first may be lost with its connection."""
        if arrival.delivery is None or self._late.keeps(self._sites[arrival.delivery.queue]):
            self._context.watcher.note(Notice(reason, arrival.answer.round, arrival.answer.client))
        self._refused[reason] += 1
        if reason == "duplicate":
            self.hold(arrival)
        elif arrival.delivery is not None:
            arrival.delivery.acknowledge()

    def hold(self, arrival: Arrival) -> None:
        """It counts: acknowledged only when a checkpoint has it, since it must come back after a crash. Of several
        copies the last is held: an earlier one may have been lost with its connection."""
        if arrival.delivery is None:
            return
        arrival.delivery.release_body()
        key = (arrival.answer.client, arrival.answer.activation)
        earlier = self._held.get(key)
        self._held[key] = arrival.delivery
        if earlier is not None:
            earlier.acknowledge()

    def settle(self) -> None:
        """A checkpoint has what is held."""
        for delivery in self._held.values():
            delivery.acknowledge()
        self._held = {}

    def take_refused(self) -> dict[str, int]:
        """Messages that did not count since the last call, by reason"""
        self._sampler.tell_rest()
        self._late.tell_rest()
        refused, self._refused = dict(self._refused), Counter()
        return refused
