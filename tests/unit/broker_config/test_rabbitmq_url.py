"""What a RabbitMQ address may say."""

import pika
import pytest

from broker_config.protocol.errors import AddressWrong
from broker_config.transports.rabbitmq.url import HEARTBEAT_SECONDS, account_of


def test_an_address_names_user_place_and_virtual_host() -> None:
    account = account_of("amqp://site-a:p%40ss@broker:1234/my%2Fhost?heartbeat=7")
    assert (account.user, account.place, account.heartbeat_seconds) == ("site-a", "broker:1234", 7)
    assert account.parameters.virtual_host == "my/host"
    assert account.parameters.credentials.password == "p@ss"


@pytest.mark.parametrize("path", ["", "/", "/%2F"])
def test_without_a_virtual_host_it_is_the_first_one(path: str) -> None:
    assert account_of(f"amqp://user:password@broker{path}").parameters.virtual_host == "/"


def test_what_is_not_said_is_as_brokers_have_it_at_first() -> None:
    account = account_of("amqp://")
    assert (account.user, account.place, account.heartbeat_seconds) == (
        "guest",
        "localhost:5672",
        HEARTBEAT_SECONDS,
    )
    assert account_of("amqps://broker").place == "broker:5671"


def test_the_password_is_not_shown() -> None:
    assert "hush" not in repr(account_of("amqp://user:hush@broker"))


def test_amqps_checks_certificate_and_name() -> None:
    options = account_of("amqps://user:password@broker").parameters.ssl_options
    assert options.context.check_hostname
    assert options.server_hostname == "broker"


@pytest.mark.parametrize(
    ("url", "says"),
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
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(url: str, says: str) -> None:
    with pytest.raises(AddressWrong) as refused:
        account_of(url)
    assert says in str(refused.value)
    assert "hush" not in str(refused.value)


def test_a_certificate_without_a_password_speaks_for_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssl.SSLContext.load_cert_chain", lambda *_: None)
    account = account_of("amqps://site-a@broker/?certfile=site-a.pem&keyfile=site-a.key")
    assert account.user == "site-a"
    assert isinstance(account.parameters.credentials, pika.credentials.ExternalCredentials)
