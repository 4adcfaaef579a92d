"""Messages that arrive for a run's server: decoded, checked, and held until a checkpoint has their effect.

Each site has a queue of its own, which RabbitMQ bounds: one that sends without end delays no other site's updates.
While it does, its queue is read last, in bulk and for a share of the time only.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from broker_config.brokers.topology import updates_queue
from broker_config.protocol.errors import BrokerUnavailable, MessageRejected, QueueMissing
from broker_config.protocol.messages import Refusal, TrainTask, Update
from broker_config.protocol.wire import decode_message
from broker_config.transports.interface import Delivery
from server_worker.round.context import ServerContext
from server_worker.round.refusals import LATE, RefusalSampler
from server_worker.round.validation import one_line
from server_worker.watch.notices import Notice

_LEFTOVER_SECONDS = 0.2
"""Messages that a killed server held unacknowledged come back within this time."""
_LATECOMERS = 1000
"""Bound on messages that arrive while leftovers are read: a client may send without end."""
_FLOODED_SHARE = 0.2
"""Of the time, for the queues of sites that send bad messages without end"""
_IN_BULK = 200
"""Messages at a time: an answer of another site waits for them."""


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
        self._next_bulk = context.clock()
        """When the queue of a site that sends bad messages without end is read again"""
        self.is_empty = False
        """The last look into the queue found no message at all."""

    def next(self, timeout_seconds: float) -> Arrival | None:
        """None: no message in time, or one that was refused"""
        if self._own:
            return Arrival(self._own.popleft(), None)
        delivery = self._receive(timeout_seconds)
        return None if delivery is None else self._open(delivery)

    def refuse_for(self, refusal: Refusal) -> None:
        """Not by way of the client's queue, which its site may keep full. After a crash it is asked again anyway."""
        self._own.append(refusal)

    def leftovers(self) -> Iterator[Arrival]:
        """Updates that are in the queue already. Refusals are dropped: their clients are asked again, since the cause
        may have been removed before this server was started."""
        clock = self._context.clock
        depths, heard = [self._context.transport.depth(queue) or 0 for queue in self._sites], clock()
        for _ in range(sum(depths) + _LATECOMERS):
            self._context.check_stop()
            delivery = self._receive(_LEFTOVER_SECONDS)
            if delivery is None and (self.is_empty or clock() - heard >= _LEFTOVER_SECONDS):
                return
            if delivery is None:
                continue
            arrival, heard = self._open(delivery), clock()
            if arrival is not None and isinstance(arrival.answer, Refusal):
                delivery.acknowledge()
            elif arrival is not None:
                yield arrival

    def _receive(self, timeout_seconds: float) -> Delivery | None:
        """One message of each site in turn, and of sites that send bad ones without end only if there is no other."""
        flooded = [queue for queue, site in self._sites.items() if self._sampler.is_over_rate(site)]
        others = [queue for queue in self._sites if queue not in flooded]
        until_bulk = max(0.0, self._next_bulk - self._context.clock()) if flooded else timeout_seconds
        try:
            delivery = self._context.transport.receive(others, min(timeout_seconds, until_bulk))
            self.is_empty = delivery is None and not flooded
            if delivery is None and flooded and self._context.clock() >= self._next_bulk:
                delivery = self._receive_amid_flood(flooded)
        except QueueMissing:
            # It was deleted. The dispatcher declares it again when it looks for lost tasks.
            self._context.stop.wait(timeout_seconds)
            self.is_empty = True
            return None
        if delivery is not None:
            self._take_last(delivery.queue)
        return delivery

    def _receive_amid_flood(self, flooded: Sequence[str]) -> Delivery | None:
        """Of the first of these queues: discards bad messages up to one that may be good."""
        began, transport, queue = self._context.clock(), self._context.transport, flooded[0]
        site = self._sites[queue]
        self._take_last(queue)
        num_bad = transport.discard_while(
            queue, lambda body, sender: self._is_bad(site, body, sender), _IN_BULK
        )
        delivery = None if num_bad == _IN_BULK else transport.receive(queue, 0.0)
        ended = self._context.clock()
        self._next_bulk = ended + (ended - began) * (1.0 - _FLOODED_SHARE) / _FLOODED_SHARE
        self.is_empty = num_bad < _IN_BULK and delivery is None and len(flooded) == 1
        return delivery

    def _take_last(self, queue: str) -> None:
        self._sites[queue] = self._sites.pop(queue)

    def _is_bad(self, site: str, body: memoryview, sender: str | None) -> bool:
        """One that is, is counted, and not kept as a dead letter. In a new minute the next are kept again."""
        if not self._sampler.is_over_rate(site):
            return False
        try:
            self._read(body, sender)
        except MessageRejected as error:
            self._refused[error.reason] += 1
            self._sampler.keeps(site)
            return True
        return False

    def _open(self, delivery: Delivery) -> Arrival | None:
        try:
            return Arrival(self._read(delivery.body, delivery.sender), delivery)
        except MessageRejected as error:
            self.refuse(delivery, error.reason, error.detail)
        except BrokerUnavailable:
            pass  # the connection was lost while the body was fetched: it comes again
        return None

    def _read(self, body: memoryview, sender: str | None) -> Update | Refusal:
        answer = decode_message(body)
        if isinstance(answer, TrainTask):
            raise MessageRejected("misplaced", "a task on the queue of updates")
        if wrong := self._context.sites.wrong_sender(sender, answer.client):
            raise MessageRejected("not_yours", wrong)
        return answer

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
