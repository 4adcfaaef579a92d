"""RabbitMQ, from 3.10 on. See `broker_config/brokers/topology.py` for what lies where.

Two connections, since an alarm of the broker blocks all of one that publishes, a third one for large bodies, and a
thread that answers heartbeats on all. After the receiving one is lost this transport is dead, like what it held: make
another.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from broker_config.brokers.definitions import DEFAULT_CONSUMER_TIMEOUT_SECONDS, consumer_timeout_seconds
from broker_config.brokers.topology import DEAD, DEAD_LETTERS, lead_queue, models_queue, updates_queue
from broker_config.protocol.buffers import check_size
from broker_config.protocol.errors import BrokerRefused, BrokerUnavailable, FedILError, QueueMissing
from broker_config.transports.interface import MAX_BODY_BYTES, Buffers, ModelAddress
from broker_config.transports.rabbitmq import bodies
from broker_config.transports.rabbitmq.connection import Line, Pump
from broker_config.transports.rabbitmq.consumer import Inlet, Letter, Plumb
from broker_config.transports.rabbitmq.election import Lead
from broker_config.transports.rabbitmq.publisher import Headers, Outlet, family_of
from broker_config.transports.rabbitmq.stream import ModelLog
from broker_config.transports.rabbitmq.url import BLOCKED_SECONDS, account_of

_OURS = "x-fedil-"
_REDELIVERED = f"{_OURS}redelivered"
_REASON = f"{_OURS}reason"
_QUEUE = f"{_OURS}queue"


class RabbitDelivery:
    def __init__(
        self,
        receiving: Line,
        fetching: Line,
        inlet: Inlet,
        outlet: Outlet,
        letter: Letter,
        received: Counter[str],
        max_body_bytes: int,
    ) -> None:
        self._receiving, self._fetching = receiving, fetching
        self._inlet, self._outlet, self._tag = inlet, outlet, letter.tag
        self._received, self._max_body_bytes = received, max_body_bytes
        self._kind = family_of(inlet.queue)
        headers: Mapping[str, Any] = letter.properties.headers or {}
        self._inline: bytes | None = letter.body
        self._place: str | None = bodies.place_in(headers)
        """Where the body is, if this is only a notice of it"""
        self._fetched: memoryview | None = None
        self._settled = False
        self._was_given_back = headers.get(_REDELIVERED) is True
        self.redelivered: bool = letter.redelivered or self._was_given_back
        self.sender: str | None = letter.properties.user_id or ""
        self.body_is_inline = self._place is None
        self.reason: str | None = None
        if self._kind is DEAD:
            reason = headers.get(_REASON) or headers.get("x-first-death-reason")
            self.reason = reason if isinstance(reason, str) else "unknown"
        received[self._kind.name] += len(letter.body)

    @property
    def body(self) -> memoryview:
        if self._place is None:
            check_size(len(self._inline or b""), self._max_body_bytes)
            return memoryview(self._inline or b"")
        if self._fetched is None:
            try:
                self._fetched = bodies.fetch(self._fetching, self._place, self._max_body_bytes)
            except BrokerUnavailable:
                # As if our own connection had been lost: the notice comes again, with all else that is held.
                self._receiving.close()
                raise
            self._received[self._kind.name] += len(self._fetched)
        return self._fetched

    def release_body(self) -> None:
        self._fetched = None
        if self._place is None:
            self._inline = None

    def acknowledge(self) -> None:
        self._check_unsettled()
        try:
            self._inlet.acknowledge(self._tag)
        except QueueMissing:  # the notice went with it, and never comes back
            self._discard()
            raise
        self._settled = True
        # Only now: a notice that came back would find no body.
        self._discard()

    def _discard(self) -> None:
        if self._place is not None:
            bodies.discard(self._fetching, self._place)

    def requeue(self) -> None:
        self._check_unsettled()
        if not self._inlet.is_open:
            self._settled = True  # it went back by itself when the connection was lost
        elif self._kind.has_delivery_limit and self._inline is not None:
            # A polite hand-back does not count, but most brokers count it: a fresh copy takes its place.
            self._replace(self._inlet.queue, {_REDELIVERED: True})
        else:
            self._inlet.give_back(self._tag)
            self._settled = True

    def reject(self, reason: str) -> None:
        self._check_unsettled()
        self._replace(DEAD_LETTERS, {_REASON: reason, _QUEUE: self._inlet.queue})

    def _replace(self, queue: str, about: Headers) -> None:
        """By a copy elsewhere. Where that fails the original goes back: nobody would settle it any more. What else its
        sender wrote into the headers is left out: it might not fit beside ours, and would come back for ever."""
        try:
            self._put_copy(queue, {**self._known_headers(), **about})
        except FedILError:
            self._inlet.give_back(self._tag)
            raise
        else:
            self._inlet.acknowledge(self._tag)
        finally:
            self._settled = True

    def _put_copy(self, queue: str, headers: Headers) -> None:
        body = self._inline or b""
        try:
            self._outlet.put(queue, body, headers)
        except QueueMissing:
            # Somebody has deleted it. Servers may make it again; sites may not, and wait for one that does. Not a
            # queue of tasks: others were in it, and the server must notice.
            if queue != DEAD_LETTERS:
                raise
            try:
                self._outlet.declare(queue)
                self._outlet.put(queue, body, headers)
            except (BrokerRefused, QueueMissing) as error:
                raise BrokerUnavailable(
                    f"{queue} is not there and this user cannot make it ({error}): a server that runs makes it again, "
                    "and so does fedil broker init"
                ) from error

    def _known_headers(self) -> Headers:
        known: dict[str, str | bool] = {}
        if self._place is not None and bodies.is_place(self._place):
            known[bodies.BODY_HEADER] = self._place
        if self._was_given_back:
            known[_REDELIVERED] = True
        return known

    def _check_unsettled(self) -> None:
        if self._settled:
            raise BrokerUnavailable("this delivery was settled before: settle each exactly once")


class RabbitTransport:
    def __init__(self, url: str, *, blocked_seconds: float = BLOCKED_SECONDS) -> None:
        account = account_of(url, blocked_seconds)
        self._line = Line(account, "receiving", heals=False)
        with self._line.talk():
            pass  # whether we are let in shows here, and not at the first message
        self._outlet = Outlet(Line(account, "publishing", heals=True), self._line)
        # Others' queues of bodies: a trap among them may cost this connection, and nothing else.
        self._fetching = Line(account, "fetching", heals=True)
        self._plumb = Plumb(self._fetching)
        self._models = ModelLog(self._line, self._outlet, self._lead_of)
        self.max_body_bytes = MAX_BODY_BYTES
        self._inlets: dict[str, Inlet] = {}
        self._leads: dict[str, Lead] = {}
        self.bytes_received: Counter[str] = self._models.bytes_received
        self.bytes_sent: Counter[str] = self._outlet.bytes_sent
        """Of bodies, by kind: model, update, task, dead …"""
        self._pump = Pump([self._line, self._fetching, self._outlet.line])

    def declare(self, *queues: str) -> None:
        self._outlet.declare_exchanges()
        self._outlet.declare(*queues)

    def publish(self, queue: str, body: Buffers) -> None:
        bodies.send(self._outlet, queue, body)

    def receive(self, queue: str, timeout_seconds: float) -> RabbitDelivery | None:
        family_of(queue)
        inlet = self._inlets.get(queue) or self._inlets.setdefault(queue, Inlet(self._line, queue))
        try:
            letter = inlet.take(timeout_seconds)
        except FedILError:
            if not inlet.is_open:
                self._inlets.pop(queue).abandon()
            raise
        return None if letter is None else self._delivery(inlet, letter)

    def depth(self, queue: str) -> int | None:
        return self._plumb.depth(queue)

    def append_model(
        self, run: str, version: int, body: Buffers, kept: int = 2, entry: str = "", entries: int = 1
    ) -> ModelAddress:
        return self._models.append(run, version, body, kept, entry, entries)

    def read_model(self, address: ModelAddress) -> memoryview:
        return self._models.read(address)

    def acquire_leadership(self, run: str, timeout_seconds: float) -> bool:
        lead = self._leads.setdefault(run, Lead(self._line, self._outlet, run))
        return lead.take(timeout_seconds)

    def _lead_of(self, run: str) -> object | None:
        lead = self._leads.get(run)
        return None if lead is None else lead.hold()

    def retire(self, run: str) -> None:
        lead = self._leads.pop(run, None)
        if lead is not None:
            lead.give_up()
        bodies.discard_all(self._fetching, updates_queue(run))
        for queue in (updates_queue(run), models_queue(run), lead_queue(run)):
            self._outlet.delete(queue)
        self._models.forget(run)

    def timeout_warnings(self, longest_task_seconds: float) -> tuple[str, ...]:
        """AMQP cannot tell what a broker's time-out is, only which broker it is."""
        version = ".".join(map(str, self._line.version))
        needed_seconds = consumer_timeout_seconds(longest_task_seconds)
        if needed_seconds <= DEFAULT_CONSUMER_TIMEOUT_SECONDS:
            return ()
        return (
            f"RabbitMQ {version} takes a task back after its consumer_timeout, 30 minutes if nobody has set it, and "
            f"tasks here may take {longest_task_seconds / 60:g}: see that it is at least "
            f"{round(1000 * needed_seconds)} ms (fedil broker check tells, fedil broker files writes it)",
        )

    def close(self) -> None:
        for inlet in self._inlets.values():
            for letter in inlet.unwanted():
                with suppress(FedILError):
                    self._delivery(inlet, letter).requeue()
        self._pump.stop()
        self._line.close()
        self._fetching.close()
        self._outlet.line.close()

    def _delivery(self, inlet: Inlet, letter: Letter) -> RabbitDelivery:
        return RabbitDelivery(
            self._line,
            self._fetching,
            inlet,
            self._outlet,
            letter,
            self.bytes_received,
            self.max_body_bytes,
        )
