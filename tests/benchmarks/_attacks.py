"""What one site's credentials can do to brokers, in a process of its own: `… ATTACK BROKER STORE SITE RUN`. On loopback
only, and bounded in number and time. It prints what the brokers have taken from it so far."""

import json
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count
from urllib.parse import urlsplit

import pika
from pika.exceptions import AMQPError
from redis import Redis
from redis.exceptions import ResponseError

from broker_config.brokers.topology import BODIES, body_queue, site_user, updates_queue
from broker_config.protocol.errors import FedILError
from broker_config.protocol.wire import encode_arrays
from broker_config.stores.redis.keys import ledger_key
from broker_config.transports.rabbitmq.queue_admin import route
from broker_config.transports.rabbitmq.transport import RabbitTransport

SECONDS = 30.0
MESSAGES, MESSAGES_A_SECOND = 120_000, 4000
HEADERS, HEADER_BYTES = 40, 4 << 20
BODY_BYTES, QUEUES, CONNECTIONS, CHANNELS = 1_500_000_000, 3450, 300, 6000
_PIECE = 1 << 20
_PRINTED_EVERY_SECONDS = 0.2


class Delivered:
    """Counts of what the brokers took, printed as a line of JSON now and then: the process is killed with its run."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._next_print = 0.0

    def add(self, **counts: int) -> None:
        self._counts.update(counts)
        if time.monotonic() >= self._next_print:
            self.print()

    def print(self) -> None:
        self._next_print = time.monotonic() + _PRINTED_EVERY_SECONDS
        print(json.dumps(self._counts), flush=True)


delivered = Delivered()


def garbage(broker: str, store: str, site: str, run: str) -> None:
    """Messages of 100 bytes to the queue of updates, without waiting for the broker"""
    began, properties = time.monotonic(), pika.BasicProperties(user_id=site_user(site))
    with pika.BlockingConnection(pika.URLParameters(broker)) as connection:
        channel = connection.channel()
        for sent in range(0, MESSAGES, 100):
            for _ in range(100):
                channel.basic_publish(*route(updates_queue(run, site)), os.urandom(100), properties)
            left = began + sent / MESSAGES_A_SECOND - time.monotonic()
            connection.process_data_events(max(left, 0.0))
            delivered.add(messages=100, bytes=10_000)
            if time.monotonic() - began > SECONDS:
                return


def headers(broker: str, store: str, site: str, run: str) -> None:
    """Headers of nothing but empty lists"""
    body = b"".join(encode_arrays("Update", {"x": [[]] * (HEADER_BYTES - 1000)}, {}))
    with closing(RabbitTransport(broker)) as transport:
        for _ in range(HEADERS):
            transport.publish(updates_queue(run, site), [body])
            delivered.add(messages=1, bytes=len(body))


def hoard(broker: str, store: str, site: str, run: str) -> None:
    """Bodies, queues, connections and channels"""
    began, user, held = time.monotonic(), site_user(site), list[pika.BlockingConnection]()

    def connection() -> pika.BlockingConnection:
        held.append(pika.BlockingConnection(pika.URLParameters(broker)))
        return held[-1]

    def names() -> Iterator[str]:
        for _ in range(QUEUES):
            yield body_queue(user, uuid.uuid4().hex)

    with suppress(AMQPError):
        channel, queue = connection().channel(), next(names())
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, *route(queue))
        for _ in range(BODY_BYTES // _PIECE):
            channel.basic_publish(*route(queue), bytes(_PIECE), pika.BasicProperties(user_id=user))
            delivered.add(bytes=_PIECE)
    with suppress(AMQPError):
        channel = connection().channel()
        for name in names():
            channel.queue_declare(name, durable=True, arguments=BODIES.arguments)
            delivered.add(queues=1)
    with suppress(AMQPError):
        for _ in range(CONNECTIONS):
            connection()
            delivered.add(connections=1)
    for each in held:
        with suppress(AMQPError):
            for _ in range(CHANNELS // CONNECTIONS):
                each.channel()
                delivered.add(channels=1)
    while time.monotonic() - began < SECONDS:
        for each in held:
            with suppress(AMQPError):
                each.process_data_events(0)
        time.sleep(1.0)


def fill(broker: str, store: str, site: str, run: str) -> None:
    """Redis, to the last byte, and again as soon as there is space"""
    began, size = time.monotonic(), _PIECE
    with Redis.from_url(store) as redis:
        for number in count():
            try:
                redis.hset(ledger_key(site, "mine", number), "1", os.urandom(size))
                delivered.add(writes=1, bytes=size)
                size = min(_PIECE, 2 * size)
            except ResponseError:
                delivered.add(refused=1)
                size = max(1, size // 4)
                time.sleep(0.01 if size == 1 else 0.0)
            if time.monotonic() - began > SECONDS:
                return


ATTACKS: dict[str, Callable[[str, str, str, str], None]] = {
    attack.__name__: attack for attack in (garbage, headers, hoard, fill)
}


if __name__ == "__main__":
    name, *where = sys.argv[1:]
    assert all(urlsplit(url).hostname in ("127.0.0.1", "localhost") for url in where[:2])
    # As if it had a machine of its own: it runs while all else waits.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(FedILError):  # the run may end before
        ATTACKS[name](*where)
    delivered.print()
