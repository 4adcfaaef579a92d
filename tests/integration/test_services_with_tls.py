"""Private services with TLS accept only clients with a certificate."""

import socket
import ssl
from pathlib import Path

import pytest

from ops.local.services import process
from tests.certificates import Authority
from tests.services import needed, private_rabbitmq
from tests.tls_services import RabbitMQWithTls, RedisWithTls, Tls


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls_of(authority: Authority) -> Tls:
    return Tls(authority.certificate, *authority.sign("server", host="localhost"))


def ask_over_tls(request: bytes, port: int, authority: Authority, *, client: str = "") -> bytes:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if client:
        context.load_cert_chain(*authority.sign(client))
    with (
        socket.create_connection((process.LOOPBACK, port), timeout=10.0) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        secure.sendall(request)
        return secure.recv(64)


def test_rabbitmq_accepts_only_clients_with_a_certificate(authority: Authority, tmp_path: Path) -> None:
    with needed(lambda: RabbitMQWithTls(tmp_path / "node", tls_of(authority))) as node:
        port, hello = node.ports["amqps"], b"AMQP\0\0\x09\x01"
        assert node.tls_url == f"amqps://guest:guest@localhost:{port}/%2F"
        assert ask_over_tls(hello, port, authority, client="north")[:1] == b"\x01"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask_over_tls(hello, port, authority)


def test_redis_accepts_only_clients_with_a_certificate(authority: Authority, tmp_path: Path) -> None:
    with needed(lambda: RedisWithTls(tmp_path / "redis", tls_of(authority))) as redis:
        port, hello = redis.ports["tls"], b"PING\r\n"
        assert redis.tls_url == f"rediss://localhost:{port}/0"
        assert ask_over_tls(hello, port, authority, client="north") == b"+PONG\r\n"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask_over_tls(hello, port, authority)


def test_a_rabbitmq_is_ready_when_its_tls_listeners_are(tmp_path: Path) -> None:
    with needed(lambda: private_rabbitmq(tmp_path)) as node:
        assert node._answers()
        node._settings["listeners.ssl.1"] = f"{process.LOOPBACK}:{process.free_ports(['amqps'])['amqps']}"
        with pytest.raises(ConnectionRefusedError):
            node._answers()
