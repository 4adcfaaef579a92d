"""The embedded broker across processes: killed clients, killed brokers, malformed requests."""

import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import broker_config
from broker_config.embedded import client as embedded_client
from broker_config.embedded.client import RpcClient
from broker_config.embedded.frames import receive_frame, send_frame, url_of
from broker_config.embedded.server import BrokerServer
from broker_config.process.retry import RetryPolicy
from broker_config.protocol.errors import BrokerUnavailable, FedILError, LedgerFenced, MessageRejected
from broker_config.stores import connect_store
from broker_config.stores.memory.store import MemoryStore
from broker_config.transports import connect_transport
from broker_config.transports.interface import DELIVERY_LIMIT
from broker_config.transports.memory.broker import EmbeddedBroker
from tests.memory_store import new_store

QUEUE = "fedil.tasks.a"
SOON = 60.0

CLIENT = """
import sys, time
from broker_config.transports import connect_transport
transport = connect_transport(sys.argv[1])
delivery = transport.receive("fedil.tasks.a", 60)
print(bytes(delivery.body).decode(), flush=True)
time.sleep(60)
"""
SERVER = """
import sys, time
from pathlib import Path
from broker_config.embedded.server import BrokerServer
from broker_config.stores.memory.store import MemoryStore
from tests.memory_store import new_store
from broker_config.transports.memory.broker import EmbeddedBroker
server = BrokerServer(EmbeddedBroker(), MemoryStore(Path(sys.argv[2])), Path(sys.argv[1]))
print("serving", flush=True)
time.sleep(60)
"""


@pytest.fixture
def socket_path() -> Iterator[Path]:
    # Not tmp_path: socket paths may have no more than about 100 characters.
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory) / "broker.sock"


@pytest.fixture
def server(socket_path: Path) -> Iterator[BrokerServer]:
    with BrokerServer(EmbeddedBroker(), new_store(), socket_path) as server:
        yield server


@contextmanager
def process(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    root = Path(broker_config.__file__).parents[1]
    command = [sys.executable, "-c", script, *arguments]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_messages_held_by_a_killed_process_are_redelivered(server: BrokerServer) -> None:
    transport = connect_transport(server.url)
    transport.declare(QUEUE)
    transport.publish(QUEUE, [b"task"])
    with process(CLIENT, server.url) as client:
        assert line_of(client) == "task"
        assert transport.receive(QUEUE, 0) is None
        client.send_signal(signal.SIGKILL)
        back = transport.receive(QUEUE, SOON)
    assert back is not None
    assert (bytes(back.body), back.redelivered) == (b"task", True)
    transport.close()


def test_clients_that_died_while_waiting_do_not_count_as_deliveries(
    server: BrokerServer, socket_path: Path
) -> None:
    transport = connect_transport(server.url)
    transport.declare(QUEUE)
    for _ in range(DELIVERY_LIMIT):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as doomed:
            doomed.connect(str(socket_path))
            send_frame(doomed, {"method": "receive", "arguments": {"queue": QUEUE, "timeout_seconds": SOON}})
    time.sleep(0.3)  # until the broker waits for all of them
    transport.publish(QUEUE, [b"task"])
    time.sleep(0.3)  # until it has tried all of them
    taken = transport.receive(QUEUE, SOON)
    assert taken is not None
    assert bytes(taken.body) == b"task"
    transport.close()


def test_a_signal_while_a_body_is_received_does_no_harm() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frame = struct.pack("<IQ", 1, 6) + b"\x80" + b"abcdef"
        theirs.sendall(frame[:-3])
        before = signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        rest = threading.Timer(0.3, theirs.sendall, (frame[-3:],))
        rest.start()
        _, body = receive_frame(ours)
        rest.join()
        signal.signal(signal.SIGALRM, before)
    assert bytes(body) == b"abcdef"


def test_a_killed_broker_is_unavailable_and_its_successor_has_the_ledgers(
    socket_path: Path, tmp_path: Path
) -> None:
    url = url_of(socket_path)
    with process(SERVER, str(socket_path), str(tmp_path)) as broker:
        assert line_of(broker) == "serving"
        transport, store = connect_transport(url), connect_store(url)
        transport.declare(QUEUE)
        assert store.commit("run", 7, 1, b"ledger")
        killer = threading.Timer(0.2, broker.kill)
        killer.start()
        with pytest.raises(BrokerUnavailable, match=r"broker\.sock"):
            transport.receive(QUEUE, SOON)
        with pytest.raises(BrokerUnavailable):
            store.latest("run")
        for broken in (transport, store):
            broken.close()
    # The killed broker's socket file still exists and is replaced.
    assert socket_path.exists()
    with BrokerServer(EmbeddedBroker(), MemoryStore(tmp_path), socket_path):
        store = connect_store(url)
        assert store.latest("run") == {7: (1, b"ledger")}
        store.close()


def test_a_store_with_patience_waits_for_its_server_and_connects_again(
    socket_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def serve_again() -> BrokerServer:
        return BrokerServer(EmbeddedBroker(), MemoryStore(tmp_path), socket_path)

    caplog.set_level("INFO")
    servers = [serve_again()]
    store = connect_store(servers[0].url, retry=RetryPolicy(seconds=SOON))
    assert store.commit("run", 7, 1, b"first")
    servers.pop().close()
    later = threading.Timer(0.5, lambda: servers.append(serve_again()))
    later.start()
    assert store.read("run", 7, 2) == b"first"
    assert not store.commit("run", 7, 1, b"again")
    later.join()
    assert store.outage_seconds > 0
    warnings = [record.message for record in caplog.records if "trying again" in record.message]
    assert warnings
    assert len(set(warnings)) == len(warnings)
    assert caplog.text.count("the store is back") == 1
    store.open_activation("run", 7, 5)
    with pytest.raises(LedgerFenced):
        store.commit("run", 7, 2, b"late")
    servers.pop().close()
    store.close()


def test_a_socket_with_a_running_broker_is_not_taken_over(server: BrokerServer, socket_path: Path) -> None:
    with pytest.raises(FedILError, match="another broker answers"):
        BrokerServer(EmbeddedBroker(), new_store(), socket_path)
    connect_transport(server.url).close()


def test_a_file_that_is_no_socket_is_not_deleted(socket_path: Path) -> None:
    socket_path.write_text("precious")
    with pytest.raises(FedILError, match="cannot serve"):
        BrokerServer(EmbeddedBroker(), new_store(), socket_path)
    assert socket_path.read_text() == "precious"


def test_only_the_owner_may_connect(server: BrokerServer, socket_path: Path) -> None:
    assert server.url == url_of(socket_path)
    assert socket_path.stat().st_mode & 0o777 == 0o600


def test_closing_the_server_ends_waiting_calls_at_once(server: BrokerServer) -> None:
    transport = connect_transport(server.url)
    transport.declare(QUEUE)
    closer = threading.Timer(0.2, server.close)
    closer.start()
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        transport.receive(QUEUE, 2 * SOON)
    assert time.monotonic() - started < SOON
    closer.join()
    transport.close()


def test_a_client_that_violates_the_protocol_loses_only_its_own_connection(
    server: BrokerServer, socket_path: Path
) -> None:
    transport = connect_transport(server.url)
    transport.declare(QUEUE)
    for nonsense in (
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<IQ", 1, 0) + b"\xc1",
        struct.pack("<IQ", 0, 2**63),
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.connect(str(socket_path))
            stranger.sendall(nonsense)
            with suppress(ConnectionResetError):  # unread bytes make the kernel reset the connection
                assert stranger.recv(100) == b""
    transport.publish(QUEUE, [b"task"])
    transport.close()


def test_an_unknown_method_is_rejected(server: BrokerServer, socket_path: Path) -> None:
    assert server.url
    stranger = RpcClient(socket_path)
    with pytest.raises(MessageRejected, match="delete_everything"):
        stranger.call("delete_everything")
    stranger.close()


def test_a_broker_that_does_not_reply_is_unavailable(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_client, "_TIMEOUT_SECONDS", 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(socket_path))
        silent.listen()
        transport = connect_transport(url_of(socket_path))
        with pytest.raises(BrokerUnavailable):
            transport.declare(QUEUE)
        transport.close()


def test_a_delivery_can_be_settled_once(server: BrokerServer) -> None:
    transport = connect_transport(server.url)
    transport.declare(QUEUE)
    transport.publish(QUEUE, [b"task"])
    delivery = transport.receive(QUEUE, SOON)
    assert delivery is not None
    delivery.acknowledge()
    with pytest.raises(BrokerUnavailable, match="once"):
        delivery.requeue()
    assert transport.receive(QUEUE, 0) is None
    transport.close()
