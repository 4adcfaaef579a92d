"""Two sites at one RabbitMQ and one Redis: what a worker needs it may do, and nothing else. Every refusal is the
brokers' own."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker
from redis import Redis as Client
from redis.exceptions import AuthenticationError, NoPermissionError

from broker_config.brokers.definitions import permission, redis_rules, site_rights
from broker_config.brokers.topology import (
    DEAD_LETTERS,
    RUNS_TOPIC,
    body_queue,
    lead_queue,
    models_queue,
    tasks_queue,
    updates_queue,
    workers_topic,
)
from broker_config.protocol.errors import BrokerRefused, FedILError
from broker_config.stores import connect_store
from broker_config.stores.interface import Store
from broker_config.stores.redis.keys import board_key, clients_key, ledger_key, notice_key
from broker_config.transports import connect_transport
from broker_config.transports.interface import Delivery, ModelAddress, Transport
from tests.integration.configured_brokers import Brokers, configured_brokers

RUN = "run"
NORTH, SOUTH = tasks_queue("north"), tasks_queue("south")
UPDATES = updates_queue(RUN, "north")
OWN_BODY, OTHER_BODY = body_queue("site-north", "0" * 32), body_queue("site-south", "1" * 32)
SOON, NOTHING = 60.0, 0.3
TEN_MEGABYTES = np.random.default_rng(0).bytes(10_000_000)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """With a run under way: a lead, a model, and somebody's body."""
    with (
        configured_brokers(tmp_path_factory.mktemp("brokers"), "north", "south") as brokers,
        closing(connect_transport(brokers.broker_url("server"))) as server,
    ):
        assert server.acquire_leadership(RUN, SOON)
        server.declare(
            updates_queue(RUN, "north"), updates_queue(RUN, "south"), DEAD_LETTERS, NORTH, SOUTH, OTHER_BODY
        )
        server.append_model(RUN, 1, [b"weights"])
        yield brokers


@pytest.fixture
def server(brokers: Brokers) -> Iterator[Transport]:
    with closing(connect_transport(brokers.broker_url("server"))) as transport:
        yield transport


@pytest.fixture
def north(brokers: Brokers) -> Iterator[Transport]:
    with closing(connect_transport(brokers.broker_url("site-north"))) as transport:
        yield transport


@pytest.fixture
def channel(brokers: Brokers) -> Iterator[BlockingChannel]:
    """What somebody with a site's password and other software than ours could use."""
    connection = pika.BlockingConnection(pika.URLParameters(brokers.broker_url("site-north")))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open:
        connection.close()


def take(transport: Transport, queue: str, body: bytes) -> Delivery:
    """This message; others are what an earlier test has left."""
    while True:
        delivery = transport.receive(queue, SOON)
        assert delivery is not None
        if bytes(delivery.body) == body:
            return delivery
        delivery.acknowledge()


# What a worker does


def work(server: Transport, north: Transport) -> None:
    """All that a worker ever asks of RabbitMQ."""
    assert bytes(north.read_model(ModelAddress(RUN, 1, 0))) == b"weights"
    task = uuid.uuid4().bytes
    server.publish(NORTH, [task])
    take(north, NORTH, task).requeue()
    again = take(north, NORTH, task)
    assert again.redelivered
    for body in (task, task + TEN_MEGABYTES):
        north.publish(UPDATES, [body])
        update = take(server, UPDATES, body)
        assert update.sender == "site-north"
        update.acknowledge()
    again.reject("odd")
    letter = take(server, DEAD_LETTERS, task)
    assert (letter.reason, letter.sender) == ("odd", "site-north")
    letter.acknowledge()


def test_a_site_may_do_all_that_a_worker_does(server: Transport, north: Transport) -> None:
    work(server, north)


def pieces() -> Iterator[tuple[str, str]]:
    rights = permission("site-north")
    for kind in ("configure", "write", "read"):
        for piece in rights[kind].removeprefix("^(").removesuffix(")$").split("|"):
            yield kind, piece


@pytest.mark.parametrize(("kind", "piece"), list(pieces()))
def test_no_right_could_be_spared(brokers: Brokers, server: Transport, kind: str, piece: str) -> None:
    rights = permission("site-north")
    try:
        set_rights(brokers, {**rights, kind: rights[kind].replace(piece, "nothing")})
        with (
            closing(connect_transport(brokers.broker_url("site-north"))) as site,
            pytest.raises(BrokerRefused),
        ):
            work(server, site)
    finally:
        set_rights(brokers, rights)


def set_rights(brokers: Brokers, rights: dict[str, Any]) -> None:
    brokers.management.post("definitions", {"permissions": [rights]})


# What a site may not do, with whatever software


def refused(attempt: Callable[[], object]) -> int:
    """The code with which the broker refuses it; 0 if it does not."""
    try:
        attempt()
    except (ChannelClosedByBroker, ConnectionClosedByBroker) as error:
        return int(error.reply_code)
    return 0


def publish(channel: BlockingChannel, exchange: str, key: str, **properties: Any) -> None:
    channel.basic_publish(exchange, key, b"forged", pika.BasicProperties(**properties), mandatory=True)


def nobody(*_: object) -> None:
    raise AssertionError("a message arrived")


Attack = Callable[[BlockingChannel], object]
FORBIDDEN: dict[str, Attack] = {
    "fetch another's task": lambda c: c.basic_get(SOUTH),
    "consume another's tasks": lambda c: c.basic_consume(SOUTH, nobody),
    "purge another's tasks": lambda c: c.queue_purge(SOUTH),
    "ask another to train": lambda c: publish(c, "fedil.site.south", "south"),
    "answer for another": lambda c: publish(c, "fedil.site.south", f"south.{RUN}"),
    "publish past all exchanges": lambda c: publish(c, "", SOUTH),
    "publish past all exchanges, to itself": lambda c: publish(c, "", NORTH),
    "write a model": lambda c: publish(c, "fedil.models", RUN),
    "read updates": lambda c: c.basic_get(UPDATES),
    "purge updates": lambda c: c.queue_purge(UPDATES),
    "delete updates": lambda c: c.queue_delete(UPDATES),
    "read dead letters": lambda c: c.basic_get(DEAD_LETTERS),
    "knock for the lead": lambda c: publish(c, "fedil.lead", RUN),
    "wait for the lead": lambda c: c.basic_consume(lead_queue(RUN), nobody),
    "declare a lead": lambda c: c.queue_declare(lead_queue("other"), durable=True),
    "read another's body": lambda c: c.basic_get(OTHER_BODY),
    "delete another's body": lambda c: c.queue_delete(OTHER_BODY),
    "declare a body for another": lambda c: c.queue_declare(body_queue("site-south", "2" * 32), durable=True),
    "publish another's body": lambda c: publish(c, "fedil.bodies", f"site-south.{'1' * 32}"),
    "read its own body": lambda c: c.basic_get(OWN_BODY),
    "declare tasks": lambda c: c.queue_declare(tasks_queue("west"), durable=True),
    "declare a queue": lambda c: c.queue_declare("", exclusive=True),
    "declare an exchange": lambda c: c.exchange_declare("fedil.mine", "fanout"),
    "delete its own tasks": lambda c: c.queue_delete(NORTH),
    "cut itself off": lambda c: c.queue_unbind(NORTH, "fedil.site.north", "north"),
    "cut another off": lambda c: c.queue_unbind(SOUTH, "fedil.site.south", "south"),
    "delete a model log": lambda c: c.queue_delete(models_queue(RUN)),
    "delete an exchange": lambda c: c.exchange_delete("fedil.site.north"),
    "bind exchanges together": lambda c: c.exchange_bind("fedil.site.north", "fedil.models", RUN),
}


@pytest.mark.parametrize("attack", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_a_site_may_not(channel: BlockingChannel, attack: Attack) -> None:
    assert refused(lambda: attack(channel)) == 403


@pytest.mark.parametrize(
    ("exchange", "key"),
    [
        ("fedil.bodies", f"site-south.{'1' * 32}"),
        ("fedil.bodies", "site-south.#"),
        ("fedil.bodies", "#"),
        ("fedil.bodies", "*.*"),
        ("fedil.site.south", f"south.{RUN}"),
        ("fedil.site.south", "south"),
        ("fedil.models", RUN),
        ("fedil.dead", "dead"),
    ],
)
def test_a_site_may_not_listen_in(channel: BlockingChannel, exchange: str, key: str) -> None:
    channel.queue_declare(OWN_BODY, durable=True)
    assert refused(lambda: channel.queue_bind(OWN_BODY, exchange, key)) == 403


def test_a_site_may_not_pass_for_another(channel: BlockingChannel) -> None:
    assert refused(lambda: publish(channel, "fedil.site.north", f"north.{RUN}", user_id="site-south")) == 406


def test_a_site_may_not_pass_for_the_server(channel: BlockingChannel) -> None:
    assert refused(lambda: publish(channel, "fedil.site.north", "north", user_id="server")) == 406


def test_nobody_may_empty_a_model_log(channel: BlockingChannel) -> None:
    assert refused(lambda: channel.queue_purge(models_queue(RUN))) == 540


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_a_carbon_copy_does_not_reach_another_site(
    server: Transport, channel: BlockingChannel, header: str
) -> None:
    publish(channel, "fedil.site.north", "north", headers={header: ["south", SOUTH]})
    take(server, NORTH, b"forged").acknowledge()
    assert server.receive(SOUTH, NOTHING) is None


def test_a_site_does_not_become_the_server(north: Transport) -> None:
    with pytest.raises(BrokerRefused, match="'site-north'"):
        north.acquire_leadership(RUN, SOON)


def test_our_own_transport_says_what_is_missing(north: Transport) -> None:
    with pytest.raises(BrokerRefused, match=r"'site-north' .*fedil\.tasks\.south.* permission"):
        north.receive(SOUTH, NOTHING)


def test_who_does_not_know_the_password_stays_outside(brokers: Brokers) -> None:
    with pytest.raises(BrokerRefused, match="password"):
        connect_transport(brokers.broker_url("site-north").replace("word-of-site-north", "guessed"))


# Redis


@pytest.fixture
def admin(brokers: Brokers) -> Iterator[Any]:
    with Client.from_url(brokers.store_url("admin")) as client:
        client.acl_log_reset()
        yield client


@pytest.fixture
def client(brokers: Brokers) -> Iterator[Any]:
    with Client.from_url(brokers.store_url("site-north")) as client:
        yield client


def store_of(brokers: Brokers, user: str, site: str) -> Store:
    return connect_store(brokers.store_url(user), site_of=lambda _: site)


def test_a_site_may_do_all_that_a_worker_does_with_its_ledgers(brokers: Brokers, admin: Any) -> None:
    with (
        closing(store_of(brokers, "server", "north")) as server,
        closing(store_of(brokers, "site-north", "north")) as north,
    ):
        for activation in (1, 2, 3):
            server.open_activation(RUN, 7, activation)
            north.read(RUN, 7, activation, at_least=activation - 1)
            assert north.commit(RUN, 7, activation, b"ledger %d" % activation)
        north.announce(workers_topic("north"), "worker", {"state": "idle"}, 60.0)
        assert server.notices(workers_topic("north")) == {"worker": {"state": "idle"}}
        north.withdraw(workers_topic("north"), "worker")
        assert server.latest(RUN) == {7: (3, b"ledger 3")}
    assert admin.acl_log() == []


THEIRS = [
    f"HMGET {ledger_key('south', RUN, 7)} opened",
    f"HSTRLEN {ledger_key('south', RUN, 7)} opened",
    f"MEMORY USAGE {ledger_key('south', RUN, 7)}",
    f"HSET {ledger_key('south', RUN, 7)} opened 9",
    f"DEL {ledger_key('south', RUN, 7)}",
    f"WATCH {ledger_key('south', RUN, 7)}",
    f"SADD {clients_key('south', RUN)} 7",
    f"ZRANGE {board_key(workers_topic('south'))} 0 -1",
    f"ZADD {board_key(workers_topic('south'))} 9 worker",
    f"SET {notice_key(workers_topic('south'), 'worker')} {{}}",
    f"STRLEN {notice_key(workers_topic('south'), 'worker')}",
    f"GETRANGE {notice_key(workers_topic('south'), 'worker')} 0 1",
    f"ZRANGE {board_key(RUNS_TOPIC)} 0 -1",
    f"SET {notice_key(RUNS_TOPIC, RUN)} {{}}",
    "SET anything 1",
]
FOR_ALL = [
    *(
        "FLUSHALL",
        "FLUSHDB",
        "KEYS *",
        "SCAN 0",
        "CONFIG GET *",
        "CONFIG SET maxmemory 1",
        "EVAL return(1) 0",
    ),
    *(
        "EVALSHA 0 0",
        "FUNCTION LIST",
        "SCRIPT FLUSH",
        "ACL LIST",
        "ACL WHOAMI",
        "CLIENT LIST",
        "CLIENT KILL TYPE normal",
    ),
    *(
        "SHUTDOWN",
        "MONITOR",
        "SAVE",
        "BGREWRITEAOF",
        "REPLICAOF NO ONE",
        "SLOWLOG GET",
        "SWAPDB 0 1",
    ),
    *("MEMORY DOCTOR", "MEMORY PURGE"),
    *("PUBLISH x y", "SUBSCRIBE x", "RANDOMKEY", "DBSIZE", "MODULE LIST", "LATENCY RESET"),
]


@pytest.mark.parametrize("command", THEIRS + FOR_ALL)
def test_a_site_may_not_in_redis(client: Any, command: str) -> None:
    with pytest.raises(NoPermissionError):
        client.execute_command(*command.split())


def test_what_is_in_a_transaction_is_refused_too(client: Any) -> None:
    with client.pipeline() as transaction:
        transaction.hset(ledger_key("south", RUN, 7), "opened", "9")
        with pytest.raises(NoPermissionError):
            transaction.execute()


def test_nobody_comes_in_without_a_password(brokers: Brokers) -> None:
    with pytest.raises(BrokerRefused, match="password"):
        connect_store(brokers.redis.url)


def test_who_lets_go_of_its_name_is_nobody_again(client: Any) -> None:
    """RESET makes a connection that of the user `default`, which has rights and is switched off."""
    with client.client() as own:
        own.connection.send_command("RESET")
        assert own.connection.read_response() == b"RESET"
        with pytest.raises(AuthenticationError):
            own.dbsize()


def test_the_configuration_knows_no_site_by_pattern() -> None:
    """A name that is no literal would let one site in at another's."""
    for wide in ("*", "a.b", "a|b", "[ab]"):
        with pytest.raises(FedILError, match="not a valid name of a site"):
            site_rights(wide)
        with pytest.raises(FedILError, match="not a valid name of a site"):
            redis_rules(f"site-{wide}")
