"""RabbitMQ and Redis over TLS: valid certificates work, and errors name the invalid one."""

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
from ops.local.services.process import LOOPBACK, free_ports
from tests.certificates import Authority
from tests.services import needed, read_settings
from tests.tls_services import RabbitMQWithTls, RedisWithTls, Tls

SOON = 60.0
AT_ONCE = RetryPolicy(seconds=0.0)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other_authority"))


@pytest.fixture(scope="module")
def worker(ours: Authority) -> tuple[Path, Path]:
    return ours.sign("worker")


@pytest.fixture(scope="module")
def rabbitmq(ours: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQWithTls]:
    certificate, key = ours.sign("rabbitmq", host="localhost")
    config = f"""
    management.ssl.ip = {LOOPBACK}
    management.ssl.port = {free_ports(["management"])["management"]}
    management.ssl.certfile = {certificate}
    management.ssl.keyfile = {key}
    """
    folder, tls = tmp_path_factory.mktemp("mq"), Tls(ours.certificate, certificate, key)
    with needed(lambda: RabbitMQWithTls(folder, tls, config, ["management"])) as node:
        yield node


@pytest.fixture(scope="module")
def redis(ours: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisWithTls]:
    tls = Tls(ours.certificate, *ours.sign("redis", host="localhost"))
    with needed(lambda: RedisWithTls(tmp_path_factory.mktemp("redis"), tls)) as service:
        yield service


# RabbitMQ


def amqps(node: RabbitMQWithTls, authority: Authority, worker: tuple[Path, Path] | None) -> str:
    own = f"&certfile={worker[0]}&keyfile={worker[1]}" if worker else ""
    return f"{node.tls_url}?cafile={authority.certificate}{own}"


def test_messages_of_any_size_are_sent_over_tls(
    rabbitmq: RabbitMQWithTls, ours: Authority, worker: tuple[Path, Path]
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
    rabbitmq: RabbitMQWithTls, other_authority: Authority, worker: tuple[Path, Path]
) -> None:
    with pytest.raises(
        BrokerRefused, match=r"certificate .* not to be trusted \(.+\): name the right authority"
    ):
        connect_transport(amqps(rabbitmq, other_authority, worker))


def test_a_rabbitmq_with_another_host_name_is_not_trusted(
    rabbitmq: RabbitMQWithTls, ours: Authority, worker: tuple[Path, Path]
) -> None:
    url = amqps(rabbitmq, ours, worker).replace("localhost", LOOPBACK)
    with pytest.raises(BrokerRefused, match=r"not to be trusted \(IP address mismatch"):
        connect_transport(url)


@pytest.mark.parametrize("shown", [None, "of another authority"])
def test_rabbitmq_refuses_a_worker_without_a_certificate_of_its_authority(
    rabbitmq: RabbitMQWithTls, ours: Authority, other_authority: Authority, shown: str | None
) -> None:
    certificate = other_authority.sign("impostor") if shown else None
    with pytest.raises((BrokerRefused, BrokerUnavailable), match="certfile"):
        connect_transport(amqps(rabbitmq, ours, certificate))


def test_amqp_at_the_port_of_amqps_is_an_error_that_names_both(rabbitmq: RabbitMQWithTls) -> None:
    url = f"amqp://guest:guest@{LOOPBACK}:{rabbitmq.ports['amqps']}/%2F"
    with pytest.raises(BrokerUnavailable, match="amqp:// against amqps://"):
        connect_transport(url)


def test_amqps_at_the_port_of_amqp_is_an_error_that_names_both(
    rabbitmq: RabbitMQWithTls, ours: Authority
) -> None:
    url = f"amqps://guest:guest@localhost:{rabbitmq.port}/%2F?cafile={ours.certificate}"
    with pytest.raises(BrokerUnavailable, match="amqp:// against amqps://"):
        connect_transport(url)


def https(node: RabbitMQWithTls, authority: Authority) -> str:
    port = read_settings((node.directory / "rabbitmq.conf").read_text())["management.ssl.port"]
    return f"https://guest:guest@localhost:{port}?cafile={authority.certificate}"


def test_the_management_api_works_over_tls(rabbitmq: RabbitMQWithTls, ours: Authority) -> None:
    assert Management(https(rabbitmq, ours)).get("whoami")["name"] == "guest"


def test_a_management_api_of_an_unknown_authority_is_not_trusted(
    rabbitmq: RabbitMQWithTls, other_authority: Authority
) -> None:
    with pytest.raises(BrokerRefused, match=r"certificate .* is not trusted \(.+\): name its authority with"):
        Management(https(rabbitmq, other_authority)).get("whoami")


def test_a_missing_cafile_is_named() -> None:
    with pytest.raises(FedILError, match=r"cannot use cafile=/nowhere/ca\.pem: No such file"):
        Management("https://host?cafile=/nowhere/ca.pem")


# Redis


def rediss(service: RedisWithTls, authority: Authority, worker: tuple[Path, Path] | None) -> str:
    own = f"&ssl_certfile={worker[0]}&ssl_keyfile={worker[1]}" if worker else ""
    return f"{service.tls_url}?ssl_ca_certs={authority.certificate}{own}"


def test_ledgers_are_committed_and_read_over_tls(
    redis: RedisWithTls, ours: Authority, worker: tuple[Path, Path]
) -> None:
    with closing(connect_store(rediss(redis, ours, worker))) as store:
        assert store.commit("run", 7, 1, b"ledger")
        assert store.read("run", 7, 2) == b"ledger"


def test_a_redis_of_an_unknown_authority_is_not_trusted(
    redis: RedisWithTls, other_authority: Authority, worker: tuple[Path, Path]
) -> None:
    with pytest.raises(BrokerRefused, match=r"certificate verify failed.*check ssl_ca_certs"):
        connect_store(rediss(redis, other_authority, worker))


def test_a_redis_with_another_host_name_is_not_trusted(
    redis: RedisWithTls, ours: Authority, worker: tuple[Path, Path]
) -> None:
    with pytest.raises(BrokerRefused, match=r"IP address mismatch.*check ssl_ca_certs"):
        connect_store(rediss(redis, ours, worker).replace("localhost", LOOPBACK))


@pytest.mark.parametrize("shown", [None, "of another authority"])
def test_redis_refuses_a_worker_without_a_certificate_of_its_authority(
    redis: RedisWithTls, ours: Authority, other_authority: Authority, shown: str | None
) -> None:
    certificate = other_authority.sign("impostor") if shown else None
    with pytest.raises((BrokerRefused, BrokerUnavailable), match="ssl_certfile"):
        connect_store(rediss(redis, ours, certificate), retry=AT_ONCE)


def test_redis_at_the_port_of_rediss_is_an_error_that_names_rediss(redis: RedisWithTls) -> None:
    with pytest.raises(FedILError, match="rediss://"):
        connect_store(f"redis://{LOOPBACK}:{redis.ports['tls']}/0", retry=AT_ONCE)


def test_rediss_at_the_port_of_redis_is_an_error_that_names_tls(redis: RedisWithTls, ours: Authority) -> None:
    brief = f"ssl_ca_certs={ours.certificate}&socket_timeout=1&socket_connect_timeout=1"
    with pytest.raises(FedILError, match="speaks TLS"):
        connect_store(f"rediss://localhost:{redis.port}/0?{brief}", retry=AT_ONCE)
