"""A hostile site with nothing but its user's rights, of the benchmark `fuzz`."""

import random
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from redis import Redis as RedisClient
from redis.exceptions import RedisError

from broker_config.brokers.topology import (
    BODIES,
    body_queue,
    tasks_queue,
    updates_queue,
    workers_topic,
)
from broker_config.protocol.messages import TrainTask, Update
from broker_config.protocol.wire import decode_message
from broker_config.stores import connect_store
from broker_config.stores.redis.keys import board_key, clients_key, ledger_key, mark_key, notice_key
from broker_config.transports.rabbitmq.large_messages import BODY_HEADER
from broker_config.transports.rabbitmq.queue_admin import route
from tests.benchmarks._fuzz_messages import (
    MALFORMED,
    MUTATIONS,
    ODD,
    RUN,
    Mutation,
    deep_table,
    invalid_answers,
    odd_frames,
    odd_notice,
    packed,
)
from tests.integration.configured_brokers import Brokers

NORTH, WEST = "north", "west"
SITES = {NORTH: range(3), "south": range(3, 9), WEST: range(9, 12)}
_UPDATES, _KEY = route(updates_queue(RUN, NORTH))
_NOTICE_SECONDS = 3.0
_MOST_BODIES = 20


@dataclass
class Material:
    """Real messages, the newest last"""

    updates: deque[bytes] = field(default_factory=lambda: deque(maxlen=50))
    tasks: deque[bytes] = field(default_factory=lambda: deque(maxlen=50))
    own: deque[bytes] = field(default_factory=lambda: deque(maxlen=50))
    """Answers of north"""


class Sender:
    """A connection with a site's rights, opened again whenever the broker closes it. Without confirms, which would be
    most of the time."""

    def __init__(self, url: str, user: str) -> None:
        self._url, self.user = url, user
        self._connection: pika.BlockingConnection | None = None
        self._channel: BlockingChannel | None = None

    @property
    def channel(self) -> BlockingChannel:
        if self._connection is None or not self._connection.is_open:
            self._connection = pika.BlockingConnection(pika.URLParameters(self._url))
            self._channel = None
        if self._channel is None or not self._channel.is_open:
            self._channel = self._connection.channel()
        return self._channel

    def publish(self, exchange: str, key: str, body: bytes, **properties: Any) -> None:
        properties = {"user_id": self.user, "delivery_mode": 2, **properties}
        self.channel.basic_publish(exchange, key, body, pika.BasicProperties(**properties))

    def send_heartbeats(self) -> None:
        if self._connection is not None and self._connection.is_open:
            with suppress(AMQPError):
                self._connection.process_data_events(0)

    def close(self) -> None:
        if self._connection is not None and self._connection.is_open:
            with suppress(AMQPError):
                self._connection.close()


class Spy:
    """Copies of what workers send and get, with the administrator's rights"""

    def __init__(self, url: str, material: Material) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel, self._material = self._connection.channel(), material
        self._updates, self._tasks = (
            self._channel.queue_declare("", exclusive=True, arguments={"x-max-length": 2000}).method.queue
            for _ in range(2)
        )
        for site in SITES:
            self._channel.queue_bind(self._updates, *route(updates_queue(RUN, site)))
        self._channel.queue_bind(self._tasks, f"fedil.site.{WEST}", WEST)

    def collect(self) -> None:
        self._take(self._updates, ("site-south", f"site-{WEST}"), self._material.updates)
        self._take(self._tasks, ("server",), self._material.tasks)

    def _take(self, queue: str, users: tuple[str, ...], found: deque[bytes]) -> None:
        while True:
            method, properties, body = self._channel.basic_get(queue, auto_ack=True)
            if method is None or properties is None:
                return
            if properties.user_id in users and body:
                found.append(body)

    def close(self) -> None:
        self._connection.close()


class Hostile:
    """North, and what west sends to itself"""

    def __init__(self, brokers: Brokers, shard_sizes: dict[int, int], seed: int) -> None:
        self._chance, self._sizes = random.Random(seed), shard_sizes
        self.material = Material()
        self._places: tuple[tuple[str, Callable[[], None]], ...] = (
            *[("updates", self._to_updates)] * 15,
            *[("dead letters", self._to_dead_letters)] * 3,
            *[("own tasks", self._to_own_tasks)] * 3,
            *[("redis", self._to_redis)] * 3,
            ("bodies", self._to_bodies),
        )
        self._stack = ExitStack()
        user = f"site-{NORTH}"
        self._north, self._worker = (Sender(brokers.broker_url(user), user) for _ in range(2))
        self._west = Sender(brokers.broker_url(f"site-{WEST}"), f"site-{WEST}")
        self._redis: Any = RedisClient.from_url(brokers.store_url(user))
        self._board = connect_store(brokers.store_url(user), site_of=lambda _: NORTH)
        self._spy = Spy(brokers.broker_url("admin"), self.material)
        for each in (self._north, self._worker, self._west, self._redis, self._board, self._spy):
            self._stack.callback(each.close)
        self._bodies: deque[str] = deque()
        self._announced = 0.0
        self._real: Update | None = None
        self.sent: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """By the brokers"""
        self.answered = 0

    def close(self) -> None:
        self._stack.close()

    def look(self) -> None:
        self._spy.collect()
        for sender in (self._north, self._worker, self._west):
            sender.send_heartbeats()
        if time.monotonic() - self._announced >= _NOTICE_SECONDS:
            # A site without a worker would not be waited for.
            self._board.announce(workers_topic(NORTH), "worker", {"state": "idle"}, 5 * _NOTICE_SECONDS)
            self._announced = time.monotonic()

    def send(self) -> None:
        """One message, or one change in Redis; of a body in chunks all messages"""
        place, send = self._chance.choice(self._places)
        self.sent[place] += 1
        try:
            send()
        except (AMQPError, RedisError) as error:
            self.refused[f"{place}: {type(error).__name__}"] += 1

    def answer_tasks(self) -> None:
        """With updates that are not valid, whichever of them comes first"""
        # Kept: a worker that finds repeats of old tasks may send nothing but refusals for a while.
        seen = map(decode_message, self.material.updates)
        self._real = real = next((found for found in seen if isinstance(found, Update)), self._real)
        while real is not None:
            # Not on the channel that the broker closes time and again: it would return the task, and count that.
            method, _, body = self._worker.channel.basic_get(tasks_queue(NORTH))
            if method is None:
                return
            task = decode_message(body or b"")
            assert isinstance(task, TrainTask)
            for invalid in invalid_answers(task, real, self._sizes[task.client], self._chance):
                self._worker.publish(_UPDATES, _KEY, invalid)
                self.material.own.append(invalid)
            self.answered += 1
            self._worker.channel.basic_ack(method.delivery_tag)

    # ---- RabbitMQ

    def _mutated(self, mutations: tuple[Mutation, ...], material: deque[bytes]) -> bytes:
        if not material:
            return self._chance.randbytes(100)
        one, other = self._chance.choice(material), self._chance.choice(material)
        return self._chance.choice(mutations)(self._chance, one, other)

    def _headers(self) -> dict[str, Any] | None:
        chance = self._chance
        if chance.random() < 0.7:
            return None
        names = (
            BODY_HEADER,
            *(f"x-fedil-{name}" for name in ("redelivered", "reason", "queue")),
            "x-death",
            "CC",
        )
        texts = ("", "x" * 1000, "fedil.updates.run", b"\xff\xfe")
        values: tuple[Any, ...] = (True, -1, 2**62, {}, [], deep_table(30), *texts)
        return {name: chance.choice(values) for name in chance.sample(names, chance.randint(1, 3))}

    def _user(self) -> str | None:
        """Another's is refused by the broker."""
        return self._chance.choice((*[self._north.user] * 50, None, "server", "site-south"))

    def _to_updates(self) -> None:
        if self.material.own and self._chance.random() < 0.1:
            self._north.publish(_UPDATES, _KEY, self._chance.choice(self.material.own))
            return
        body = self._mutated(MUTATIONS, self.material.updates)
        key = self._chance.choice((*[_KEY] * 20, f"south.{RUN}", "another", ""))
        self._north.publish(_UPDATES, key, body, headers=self._headers(), user_id=self._user())

    def _to_dead_letters(self) -> None:
        body = self._mutated(MUTATIONS, self.material.updates)
        self._north.publish("fedil.dead", "dead", body, headers=self._headers())

    def _to_own_tasks(self) -> None:
        """As west: its worker finds them, and repeats of real ones."""
        repeat = self.material.tasks and self._chance.random() < 0.1
        body = (
            self._chance.choice(self.material.tasks)
            if repeat
            else self._mutated(MALFORMED, self.material.tasks)
        )
        self._west.publish(f"fedil.site.{WEST}", WEST, body, headers=None if repeat else self._headers())

    def _to_bodies(self) -> None:
        """A body in chunks in a queue of its own, and a reference to it"""
        chance, channel = self._chance, self._north.channel
        while len(self._bodies) >= _MOST_BODIES:
            channel.queue_delete(self._bodies.popleft())
        queue = body_queue(self._north.user, uuid.UUID(int=chance.getrandbits(128)).hex)
        key = BODIES.routing_key(queue)
        self._bodies.append(queue)
        kinds: tuple[dict[str, Any], ...] = (
            *[{"durable": True}] * 20,
            {"durable": True, "arguments": {"x-queue-type": "quorum"}},
            {"durable": True, "arguments": {"x-queue-type": "stream"}},
            {"exclusive": True},
        )
        channel.queue_declare(queue, **chance.choice(kinds))
        channel.queue_bind(queue, "fedil.bodies", key)
        for frame in odd_frames(chance, self._mutated(MUTATIONS, self.material.updates)):
            self._north.publish("fedil.bodies", key, frame)
            self.sent["bodies"] += 1
        named = chance.choice(
            (*[queue] * 10, f"{queue}0", queue.upper(), updates_queue(RUN, "south"), "fedil.dead")
        )
        self._north.publish(_UPDATES, _KEY, b"", headers={BODY_HEADER: named})

    # ---- Redis

    def _to_redis(self) -> None:
        chance, redis = self._chance, self._redis
        value = chance.choice((chance.randbytes(50), packed(chance.choice(ODD)), odd_notice(chance)))
        client = chance.choice((3, 9, 99, 2**63))
        hashes = (
            ledger_key(NORTH, RUN, client),
            ledger_key(NORTH, "another", 0),
            ledger_key(NORTH, "x/y}", 1),
        )
        name = f"junk-{chance.randrange(200)}"
        board, notice = board_key(workers_topic(NORTH)), notice_key(workers_topic(NORTH), name)
        field = chance.choice(("opened", "first", "kept", "1", "", b"\xff"))
        chance.choice(
            (
                lambda: redis.hset(chance.choice(hashes), field, value),
                lambda: redis.set(chance.choice(hashes), value),
                lambda: redis.delete(chance.choice(hashes)),
                # A field that no one reads, of its own client
                lambda: redis.hset(ledger_key(NORTH, RUN, 0), f"x{chance.randrange(50)}", value),
                lambda: redis.sadd(
                    clients_key(NORTH, RUN), chance.choice((-1, 0, 3, 99, "x", 2**64, b"\xff"))
                ),
                lambda: redis.sadd(clients_key(NORTH, "another"), value),
                lambda: redis.zadd(board, {name: chance.choice((0, 1e300, time.time() * 1000 + 1e6))}),
                lambda: redis.zadd(board, {name: time.time() * 1000 + 1e6}),
                lambda: redis.set(notice, odd_notice(chance), px=60_000),
                lambda: redis.set(notice, odd_notice(chance), px=60_000),
                lambda: redis.hset(notice, "a", "b"),
                lambda: redis.delete(notice),
                self._board_of_another_type,
                lambda: redis.set(run_of_another(chance), value),  # not its own: refused
            )
        )()

    def _board_of_another_type(self) -> None:
        board = board_key(workers_topic(NORTH))
        self._redis.delete(board)
        self._redis.set(board, "no board")
        self._redis.delete(board)
        self._announced = 0.0
        self.look()


def run_of_another(chance: random.Random) -> str:
    return chance.choice((mark_key("south", RUN), ledger_key("south", RUN, 3), board_key("runs"), "anything"))
