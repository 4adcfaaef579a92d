"""The RabbitMQ transport when the broker is killed, has a memory alarm or tight limits."""

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pika
import pytest
from pika.exceptions import AMQPConnectionError

from broker_config.brokers.topology import DEAD_LETTERS, tasks_queue, updates_queue
from broker_config.brokers.topology import TASKS as TASKS_KIND
from broker_config.process.retry import RetryPolicy
from broker_config.protocol.errors import BrokerBlocked, BrokerUnavailable
from broker_config.transports.rabbitmq.connection import Connection
from broker_config.transports.rabbitmq.transport import RabbitTransport
from broker_config.transports.reconnecting import ReconnectingTransport
from tests.integration.rabbitmq_direct import SOON
from tests.services import RabbitMQ, Service, needed, private_rabbitmq, rabbitmq_service

UPDATES, TASKS = updates_queue("run"), tasks_queue("site")
BIG = 10_000_000
LONG = 120.0
"""RabbitMQ checks its consumer_timeout once a minute by default."""


def reconnecting(service: Service) -> ReconnectingTransport:
    return ReconnectingTransport(lambda: RabbitTransport(service.url), RetryPolicy(SOON))


def test_a_killed_broker_is_unavailable_to_every_call_and_keeps_its_messages(own_rabbitmq: Service) -> None:
    body = np.random.default_rng(0).bytes(BIG)
    with closing(RabbitTransport(own_rabbitmq.url)) as transport:
        transport.declare(UPDATES, TASKS, DEAD_LETTERS)
        transport.publish(UPDATES, [body])
        transport.publish(TASKS, [b"task"])
        address = transport.append_model("run", 1, [body])
        held = transport.receive(TASKS, SOON)
        assert held is not None
        own_rabbitmq.kill()
        for call in (
            lambda: transport.publish(TASKS, [b"lost"]),
            lambda: transport.receive(TASKS, SOON),
            held.acknowledge,
            lambda: transport.read_model(address),
            lambda: transport.acquire_leadership("run", SOON),
        ):
            with pytest.raises(BrokerUnavailable):
                call()
    own_rabbitmq.start()
    with closing(reconnecting(own_rabbitmq)) as transport:
        task, update = transport.receive(TASKS, SOON), transport.receive(UPDATES, SOON)
        assert task is not None
        assert update is not None
        assert bytes(task.body) == b"task"
        assert update.body == body
        # A stream is available some seconds after its broker.
        assert transport.read_model(address) == body
        assert transport.append_model("run", 2, [body]).offset > address.offset


def test_a_quorum_queue_without_a_leader_is_declared_again(own_rabbitmq: Service) -> None:
    url = pika.URLParameters(own_rabbitmq.url)
    with suppress(AMQPConnectionError), pika.BlockingConnection(url) as connection:
        connection.channel().queue_declare(TASKS, durable=True, arguments=TASKS_KIND.arguments)
        own_rabbitmq.kill()
    own_rabbitmq.start()
    with closing(RabbitTransport(own_rabbitmq.url)) as transport:
        transport.declare(TASKS, DEAD_LETTERS)
        transport.publish(TASKS, [b"task"])
        task = transport.receive(TASKS, SOON)
        assert task is not None
        task.acknowledge()


def test_acknowledging_after_the_broker_was_killed_is_unavailable(own_rabbitmq: Service) -> None:
    with closing(RabbitTransport(own_rabbitmq.url)) as transport:
        transport.declare(UPDATES)
        transport.publish(UPDATES, [b"update"])
        held = transport.receive(UPDATES, SOON)
        assert held is not None
        own_rabbitmq.kill()
        with pytest.raises(BrokerUnavailable):
            held.acknowledge()


def test_an_alarm_blocks_publishing_but_neither_receive_nor_depth(tmp_path: Path) -> None:
    config = "vm_memory_high_watermark.relative = 0.0000001"
    with needed(lambda: rabbitmq_service(tmp_path / "rabbitmq", config=config)) as service:
        transport = RabbitTransport(service.url, blocked_seconds=2.0)
        with closing(transport):
            transport.declare(UPDATES)
            with pytest.raises(BrokerBlocked, match=r"blocked publishing \(memory or disk alarm\)"):
                transport.publish(UPDATES, [b"update"])
            assert transport.receive(UPDATES, 0.0) is None
            # Depths do not wait for the end of the alarm.
            assert transport.depth(UPDATES) == 0
            assert transport.depth(TASKS) is None


def test_losing_only_the_publishing_connection_keeps_unacknowledged_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # The heartbeat thread might reconnect before the test publishes.
    monkeypatch.setattr(Connection, "service_heartbeats", lambda _: None)
    connects: list[RabbitTransport] = []
    with needed(lambda: private_rabbitmq(tmp_path / "rabbitmq")) as service:

        def connect() -> RabbitTransport:
            connects.append(RabbitTransport(service.url))
            return connects[-1]

        with closing(ReconnectingTransport(connect, RetryPolicy(SOON))) as transport:
            transport.declare(UPDATES)
            transport.publish(UPDATES, [b"held"])
            held = transport.receive(UPDATES, SOON)
            assert held is not None
            close_connection(service, "fedil publishing")
            transport.publish(UPDATES, [b"after"])
            assert "was lost" in caplog.text
            held.acknowledge()
            after = transport.receive(UPDATES, SOON)
            assert after is not None
            assert (bytes(after.body), after.redelivered) == (b"after", False)
            assert len(connects) == 1
            close_connection(service, "fedil publishing")
            with pytest.raises(BrokerBlocked):
                connects[0].publish(UPDATES, [b"lost"])
            close_connection(service, "fedil receiving")
            transport.publish(UPDATES, [b"still"])
            assert len(connects) == 1  # publishing needs no other connection
            close_connection(service, "fedil publishing")
            transport.publish(UPDATES, [b"anew"])
            assert len(connects) == 2


def close_connection(service: RabbitMQ, name: str) -> None:
    lines = service.ctl("list_connections", "pid", "client_properties").splitlines()
    (pid,) = [line.split()[0] for line in lines if f'"{name}"' in line]
    service.ctl("close_connection", pid, "by a test")


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    config = "consumer_timeout = 2000\nmax_message_size = 1000000"
    directory = tmp_path_factory.mktemp("tight") / "rabbitmq"
    with needed(lambda: rabbitmq_service(directory, config=config)) as service:
        if isinstance(service, RabbitMQ):
            service.ctl("eval", "application:set_env(rabbit, channel_tick_interval, 500).")
        yield service


def test_bodies_and_models_fit_a_broker_with_a_small_max_message_size(tight: Service) -> None:
    body = np.random.default_rng(0).bytes(BIG)
    with closing(RabbitTransport(tight.url)) as transport:
        transport.declare(UPDATES)
        transport.publish(UPDATES, [body])
        update = transport.receive(UPDATES, SOON)
        assert update is not None
        assert update.body == body
        assert transport.read_model(transport.append_model("run", 1, [body])) == body


def test_exceeding_the_consumer_timeout_redelivers_and_the_error_names_the_setting(
    tight: Service,
) -> None:
    with closing(RabbitTransport(tight.url)) as slow, closing(RabbitTransport(tight.url)) as next_one:
        slow.declare(TASKS, DEAD_LETTERS)
        assert slow.acquire_leadership("other", SOON)
        slow.publish(TASKS, [b"task"])
        held = slow.receive(TASKS, SOON)
        assert held is not None
        back = next_one.receive(TASKS, LONG)
        assert back is not None
        assert back.redelivered
        with pytest.raises(BrokerUnavailable, match=r"consumer_timeout in rabbitmq\.conf"):
            held.acknowledge()
        with pytest.raises(BrokerUnavailable, match=r"consumer_timeout in rabbitmq\.conf"):
            slow.receive(TASKS, SOON)
        assert not next_one.acquire_leadership("other", 0.0)
