"""RabbitMQ and Redis over TLS: with the right certificates everything works, and a wrong one is named."""

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from broker_config.brokers.topology import updates_queue
from broker_config.process.retry import RetryPolicy
from broker_config.protocol.errors import BrokerRefused, BrokerUnavailable, FedILError
from broker_config.stores import connect_store
from broker_config.transports import connect_transport
from ops.broker.management import Management
from ops.local.services import RabbitMQ, Redis, Tls, private_rabbitmq, private_redis
from ops.local.services.process import LOOPBACK, free_ports
from ops.local.services.rabbitmq import read_settings
from tests.certificates import Authority
from tests.services import needed

SOON = 60.0
AT_ONCE = RetryPolicy(seconds=0.0)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("strangers"))


@pytest.fixture(scope="module")
def worker(ours: Authority) -> tuple[Path, Path]:
    return ours.sign("worker")


@pytest.fixture(scope="module")
def rabbitmq(ours: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    certificate, key = ours.sign("rabbitmq", host="localhost")
    config = f"""
    management.ssl.ip = {LOOPBACK}
    management.ssl.port = {free_ports(["management"])["management"]}
    management.ssl.certfile = {certificate}
    management.ssl.keyfile = {key}
    """
    folder, tls = tmp_path_factory.mktemp("mq"), Tls(ours.certificate, certificate, key)
    with needed(lambda: private_rabbitmq(folder, config=config, management=True, tls=tls)) as node:
        yield node


@pytest.fixture(scope="module")
def redis(ours: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    tls = Tls(ours.certificate, *ours.sign("redis", host="localhost"))
    with needed(lambda: private_redis(tmp_path_factory.mktemp("redis"), tls=tls)) as service:
        yield service


# RabbitMQ


def amqps(node: RabbitMQ, authority: Authority, worker: tuple[Path, Path] | None) -> str:
    own = f"&certfile={worker[0]}&keyfile={worker[1]}" if worker else ""
    return f"{node.tls_url}?cafile={authority.certificate}{own}"


def test_messages_of_any_size_travel_over_tls(
    rabbitmq: RabbitMQ, ours: Authority, worker: tuple[Path, Path]
) -> None:
    queue, body = updates_queue(uuid.uuid4().hex), np.random.default_rng(0).bytes(10_000_000)
    with closing(connect_transport(amqps(rabbitmq, ours, worker))) as transport:
        transport.declare(queue)
        for sent in (b"small", body):
            transport.publish(queue, [sent])
            delivery = transport.receive(queue, SOON)
            assert delivery is not None
            assert bytes(delivery.body) == sent
            delivery.acknowledge()


def test_a_rabbitmq_of_an_unknown_authority_is_not_trusted(
    rabbitmq: RabbitMQ, strangers: Authority, worker: tuple[Path, Path]
) -> None:
    with pytest.raises(
        BrokerRefused, match=r"certificate .* not to be trusted \(.+\): name the right authority"
    ):
        connect_transport(amqps(rabbitmq, strangers, worker))


def test_a_rabbitmq_with_another_name_is_not_trusted(
    rabbitmq: RabbitMQ, ours: Authority, worker: tuple[Path, Path]
) -> None:
    url = amqps(rabbitmq, ours, worker).replace("localhost", LOOPBACK)
    with pytest.raises(BrokerRefused, match=r"not to be trusted \(IP address mismatch"):
        connect_transport(url)


@pytest.mark.parametrize("shown", [None, "a stranger's"])
def test_rabbitmq_does_not_take_a_worker_without_a_certificate_of_its_authority(
    rabbitmq: RabbitMQ, ours: Authority, strangers: Authority, shown: str | None
) -> None:
    certificate = strangers.sign("impostor") if shown else None
    with pytest.raises((BrokerRefused, BrokerUnavailable), match="certfile"):
        connect_transport(amqps(rabbitmq, ours, certificate))


def test_amqp_at_the_port_of_amqps_is_named(rabbitmq: RabbitMQ) -> None:
    url = f"amqp://guest:guest@{LOOPBACK}:{rabbitmq.ports['amqps']}/%2F"
    with pytest.raises(BrokerUnavailable, match="amqp:// against amqps://"):
        connect_transport(url)


def test_amqps_at_the_port_of_amqp_is_named(rabbitmq: RabbitMQ, ours: Authority) -> None:
    url = f"amqps://guest:guest@localhost:{rabbitmq.port}/%2F?cafile={ours.certificate}"
    with pytest.raises(BrokerUnavailable, match="amqp:// against amqps://"):
        connect_transport(url)


def https(node: RabbitMQ, authority: Authority) -> str:
    port = read_settings((node.directory / "rabbitmq.conf").read_text())["management.ssl.port"]
    return f"https://guest:guest@localhost:{port}?cafile={authority.certificate}"


def test_the_management_api_is_asked_over_tls(rabbitmq: RabbitMQ, ours: Authority) -> None:
    assert Management(https(rabbitmq, ours)).get("whoami")["name"] == "guest"


def test_a_management_api_of_an_unknown_authority_is_not_trusted(
    rabbitmq: RabbitMQ, strangers: Authority
) -> None:
    with pytest.raises(
        BrokerRefused, match=r"certificate .* not to be trusted \(.+\): name the right authority"
    ):
        Management(https(rabbitmq, strangers)).get("whoami")


def test_an_authority_that_is_not_there_is_named() -> None:
    with pytest.raises(FedILError, match=r"cannot use cafile=/nowhere/ca\.pem: No such file"):
        Management("https://host?cafile=/nowhere/ca.pem")


# Redis


def rediss(service: Redis, authority: Authority, worker: tuple[Path, Path] | None) -> str:
    own = f"&ssl_certfile={worker[0]}&ssl_keyfile={worker[1]}" if worker else ""
    return f"{service.tls_url}?ssl_ca_certs={authority.certificate}{own}"


def test_ledgers_travel_over_tls(redis: Redis, ours: Authority, worker: tuple[Path, Path]) -> None:
    with closing(connect_store(rediss(redis, ours, worker))) as store:
        assert store.commit("run", 7, 1, b"ledger")
        assert store.read("run", 7, 2) == b"ledger"


def test_a_redis_of_an_unknown_authority_is_not_trusted(
    redis: Redis, strangers: Authority, worker: tuple[Path, Path]
) -> None:
    with pytest.raises(BrokerRefused, match=r"certificate verify failed.*check ssl_ca_certs"):
        connect_store(rediss(redis, strangers, worker))


def test_a_redis_with_another_name_is_not_trusted(
    redis: Redis, ours: Authority, worker: tuple[Path, Path]
) -> None:
    with pytest.raises(BrokerRefused, match=r"IP address mismatch.*check ssl_ca_certs"):
        connect_store(rediss(redis, ours, worker).replace("localhost", LOOPBACK))


@pytest.mark.parametrize("shown", [None, "a stranger's"])
def test_redis_does_not_take_a_worker_without_a_certificate_of_its_authority(
    redis: Redis, ours: Authority, strangers: Authority, shown: str | None
) -> None:
    certificate = strangers.sign("impostor") if shown else None
    with pytest.raises((BrokerRefused, BrokerUnavailable), match="ssl_certfile"):
        connect_store(rediss(redis, ours, certificate), retry=AT_ONCE)


def test_redis_at_the_port_of_rediss_is_named(redis: Redis) -> None:
    with pytest.raises(FedILError, match="rediss://"):
        connect_store(f"redis://{LOOPBACK}:{redis.ports['tls']}/0", retry=AT_ONCE)


def test_rediss_at_the_port_of_redis_is_named(redis: Redis, ours: Authority) -> None:
    brief = f"ssl_ca_certs={ours.certificate}&socket_timeout=1&socket_connect_timeout=1"
    with pytest.raises(FedILError, match="speaks TLS"):
        connect_store(f"rediss://localhost:{redis.port}/0?{brief}", retry=AT_ONCE)
