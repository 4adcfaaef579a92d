"""RabbitMQ URLs: what they contain, their defaults, and errors."""

import pika
import pytest

from broker_config.protocol.errors import AddressWrong
from broker_config.transports.rabbitmq.url import HEARTBEAT_SECONDS, BrokerAddress, parse_url


def parse_one(url: str) -> BrokerAddress:
    (address,) = parse_url(url)
    return address


def test_a_url_has_user_endpoint_virtual_host_and_heartbeat() -> None:
    address = parse_one("amqp://site-a:p%40ss@broker:1234/my%2Fhost?heartbeat=7")
    assert (address.user, address.endpoint, address.heartbeat_seconds) == ("site-a", "broker:1234", 7)
    assert address.parameters.virtual_host == "my/host"
    assert address.parameters.credentials.password == "p@ss"


@pytest.mark.parametrize("path", ["", "/", "/%2F"])
def test_the_default_virtual_host_is_slash(path: str) -> None:
    assert parse_one(f"amqp://user:password@broker{path}").parameters.virtual_host == "/"


def test_the_defaults_are_those_of_a_fresh_rabbitmq() -> None:
    address = parse_one("amqp://")
    assert (address.user, address.endpoint, address.heartbeat_seconds) == (
        "guest",
        "localhost:5672",
        HEARTBEAT_SECONDS,
    )
    assert parse_one("amqps://broker").endpoint == "broker:5671"


def test_the_password_is_not_in_the_repr() -> None:
    assert "hush" not in repr(parse_one("amqp://user:hush@broker"))


def test_amqps_checks_certificate_and_name() -> None:
    options = parse_one("amqps://user:password@broker").parameters.ssl_options
    assert options.context.check_hostname
    assert options.server_hostname == "broker"


def test_a_url_may_name_several_nodes_of_a_cluster() -> None:
    addresses = parse_url("amqps://user:p,w%40@a:1,[::1]:2,c/v?heartbeat=7")
    assert [address.endpoint for address in addresses] == ["a:1", "::1:2", "c:5671"]
    assert {address.parameters.credentials.password for address in addresses} == {"p,w@"}
    assert {(address.parameters.virtual_host, address.heartbeat_seconds) for address in addresses} == {
        ("v", 7)
    }
    assert [address.parameters.ssl_options.server_hostname for address in addresses] == ["a", "::1", "c"]


@pytest.mark.parametrize(
    ("url", "replicated"),
    [
        ("amqp://a", None),
        ("amqp://a?queues=auto", None),
        ("amqp://a?queues=replicated", True),
        ("amqp://a,b", True),
        ("amqp://a,b?queues=single", False),
    ],
)
def test_queues_are_replicated_if_the_url_says_so_or_names_several_nodes(
    url: str, replicated: bool | None
) -> None:
    assert {address.replicated for address in parse_url(url)} == {replicated}


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("amqp://broker/?hearbeat=5", "'hearbeat'"),
        ("amqp://broker/?heartbeat=0", "heartbeat='0'"),
        ("amqp://broker/?heartbeat=soon", "heartbeat='soon'"),
        ("amqp://broker/?cafile=ca.pem", "cafile needs TLS"),
        ("amqps://broker/?keyfile=client.key", "certfile"),
        ("amqps://user:hush@broker/?cafile=nowhere.pem", "cannot use cafile=nowhere.pem: No such file"),
        ("amqp://user:hush@broker:port/", "port"),
        ("amqp://user:hush@broker:0/", "port"),
        ("amqp://user:hu/sh@broker/", "%2F"),
        ("amqp://user:hush@[::1/", "cannot be read"),
        ("amqp://user:hush@one..two/", "cannot be read"),
        ("amqps://user:hush@broker/?cafile=%00", "cannot use cafile="),
        ("amqp://user:hush@broker:99999/", "port"),
        ("amqp://user:hush@a,/", "a comma without a host"),
        ("amqp://user:hush@,", "a comma without a host"),
        ("amqp://user:hush@a:5672;b:5672/", "port"),
        ("amqp://user:hush@a:5672,b:port/", "port"),
        ("amqp://user:hush@a,one..two/", "cannot be read"),
        ("amqp://user:hush@a/?queues=mirrored", "queues='mirrored'"),
    ],
)
def test_a_wrong_url_is_refused_with_the_cause_and_without_the_password(url: str, cause: str) -> None:
    with pytest.raises(AddressWrong) as refused:
        parse_url(url)
    assert cause in str(refused.value)
    assert "hush" not in str(refused.value)


def test_a_certificate_without_a_password_authenticates_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssl.SSLContext.load_cert_chain", lambda *_: None)
    address = parse_one("amqps://site-a@broker/?certfile=site-a.pem&keyfile=site-a.key")
    assert address.user == "site-a"
    assert isinstance(address.parameters.credentials, pika.credentials.ExternalCredentials)
