"""The small web server, over real sockets."""

import gzip
import http.client
import logging
import re
import socket
import threading
import time
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from broker_config.process.addresses import LOOPBACK, WebAddress, parse_address
from broker_config.process.http import MOST_CONNECTIONS, Reply, Route, WebServer, check_free
from broker_config.protocol.errors import PortTaken

PATIENCE = 60.0
LARGE = b"many words " * 1000
ANY = WebAddress()


def fail(_: Mapping[str, str]) -> Reply:
    raise RuntimeError("out of order")


def no_sense(_: Mapping[str, str]) -> Reply:
    raise ValueError("after wants a number, got '<script>\udc80'")


ROUTES: dict[str, Route] = {
    "/": lambda _: Reply(b"<html>", "text/html; charset=utf-8"),
    "/small": lambda _: Reply(b"few words"),
    "/large": lambda _: Reply(LARGE),
    "/echo": lambda query: Reply(repr(sorted(query.items())).encode()),
    "/file/": lambda query: Reply(f"file {query['rest']}".encode()),
    "/broken": fail,
    "/no-sense": no_sense,
}


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer(ANY, ROUTES) as server:
        yield server


def connected(server: WebServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(LOOPBACK, server.port, timeout=PATIENCE)


def ask(
    server: WebServer, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = connected(server)
    try:
        connection.request(method, path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def raw(server: WebServer, question: bytes) -> bytes:
    """All that comes back until the server disconnects"""
    with socket.create_connection((LOOPBACK, server.port), PATIENCE) as connection:
        connection.sendall(question)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def disconnected(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"GET /small HTTP/1.1\r\n\r\n")
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_a_reply_has_its_content_type_and_security_headers(server: WebServer) -> None:
    answer, body = ask(server, "/")
    assert (answer.status, body) == (200, b"<html>")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"
    assert "Python" not in str(answer.headers)


def test_head_has_the_headers_of_get_and_no_body(server: WebServer) -> None:
    connection = connected(server)
    for _ in range(2):  # a body here would be taken for the next reply
        connection.request("HEAD", "/large")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"")
        assert int(answer.headers["Content-Length"]) == len(LARGE)
    connection.close()


def test_an_unknown_path_lists_the_known_ones(server: WebServer) -> None:
    answer, body = ask(server, "/nothing")
    assert answer.status == 404
    assert b"/echo" in body


@pytest.mark.parametrize(
    ("path", "rest"), [("/file/a.js", "a.js"), ("/file/", ""), ("/file/..%2Fsecret", "..%2Fsecret")]
)
def test_a_folder_gets_the_rest_of_the_path(server: WebServer, path: str, rest: str) -> None:
    assert ask(server, f"{path}?rest=forged")[1] == f"file {rest}".encode()


@pytest.mark.parametrize(
    "path", ["/file", "/file/../small", "/file/a/b", "/small/", "/%73mall", "/small%00", "*"]
)
def test_similar_paths_are_unknown(server: WebServer, path: str) -> None:
    assert ask(server, path)[0].status == 404


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:80", "localhost.evil.example:9000", "a@evil.example"]
)
def test_a_page_from_elsewhere_cannot_read_a_loopback_server(server: WebServer, name: str) -> None:
    """DNS rebinding: the browser believes that evil.example is at 127.0.0.1."""
    answer, body = ask(server, "/small", headers={"Host": name})
    assert (answer.status, body) == (
        421,
        f"not served as {name!r}, only as 127.0.0.1 or localhost\n".encode(),
    )


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:9", "127.0.0.1:80", "[::1]:9000", "192.0.2.7", ""])
def test_a_loopback_server_is_read_by_the_names_of_this_machine(server: WebServer, name: str) -> None:
    assert ask(server, "/small", headers={"Host": name})[0].status == 200


def test_a_server_on_all_interfaces_has_any_name() -> None:
    with WebServer(WebAddress("0.0.0.0"), ROUTES) as server:
        assert ask(server, "/small", headers={"Host": "fedil.svc.cluster.local:9100"})[0].status == 200


@pytest.mark.parametrize("path", ["http://[", "/echo?" + "&".join(f"a{i}=1" for i in range(1000))])
def test_a_malformed_target_is_a_bad_request(server: WebServer, path: str) -> None:
    answer = raw(server, f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("question", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"505"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"431"),
        (b"POST /small HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"501"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
    ],
)
def test_hostile_requests_get_an_error_and_others_a_reply(
    server: WebServer, question: bytes, status: bytes
) -> None:
    assert status in raw(server, question)[:200]
    assert ask(server, "/small")[0].status == 200


def test_parameters_are_decoded_and_markup_stays_text(server: WebServer) -> None:
    answer, body = ask(server, "/echo?run=%3Cscript%3E&b=2&b=3&empty=&%ff=%ff")
    assert body == repr([("b", "3"), ("run", "<script>"), ("�", "�")]).encode()
    assert answer.headers["Content-Type"].startswith("text/plain")


def test_a_request_body_is_not_taken_for_the_next_request(server: WebServer) -> None:
    smuggled = b"GET /large HTTP/1.1\r\n\r\n"
    head = f"GET /small HTTP/1.1\r\nContent-Length: {len(smuggled)}\r\n\r\n".encode()
    answer = raw(server, head + smuggled)
    assert answer.endswith(b"few words")
    assert answer.count(b"HTTP/1.1") == 1


def test_a_route_that_fails_is_reported_and_logged(
    server: WebServer, caplog: pytest.LogCaptureFixture
) -> None:
    answer, body = ask(server, "/broken")
    assert (answer.status, body) == (500, b"RuntimeError: out of order\n")
    assert "no reply to '/broken'" in caplog.text
    assert ask(server, "/small")[0].status == 200


def test_bad_parameters_are_reported_and_not_logged(
    server: WebServer, caplog: pytest.LogCaptureFixture
) -> None:
    answer, body = ask(server, "/no-sense")
    assert (answer.status, body) == (400, b"after wants a number, got '<script>?'\n")
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [
        ("gzip, deflate", True),
        ("deflate;q=1.0, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, identity", False),
        ("x-gzip", False),
        ("identity", False),
        ("", False),
    ],
)
def test_a_large_reply_is_compressed_for_clients_that_accept_it(
    server: WebServer, accepted: str, compressed: bool
) -> None:
    answer, body = ask(server, "/large", headers={"Accept-Encoding": accepted})
    assert (answer.headers["Content-Encoding"] == "gzip") is compressed
    assert int(answer.headers["Content-Length"]) == len(body)
    assert (gzip.decompress(body) if compressed else body) == LARGE
    small, _ = ask(server, "/small", headers={"Accept-Encoding": accepted})
    assert small.headers["Content-Encoding"] is None


def test_a_connection_serves_many_requests(server: WebServer) -> None:
    connection = connected(server)
    places = set()
    for _ in range(5):
        connection.request("GET", "/small")
        assert connection.getresponse().read() == b"few words"
        places.add(connection.sock.getsockname())
    assert len(places) == 1
    connection.close()


def test_idle_connections_keep_no_client_out(server: WebServer) -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        slow = []
        for _ in range(4 * MOST_CONNECTIONS):
            connection = stack.enter_context(socket.create_connection((LOOPBACK, server.port), PATIENCE))
            connection.sendall(b"GET /sma")
            slow.append(connection)
        assert ask(server, "/small")[1] == b"few words"
        assert disconnected(slow[0]), "the longest idle connection is closed"
        deadline = time.monotonic() + PATIENCE
        while threading.active_count() > before + MOST_CONNECTIONS + 5:
            assert time.monotonic() < deadline, "their threads stay"
            time.sleep(0.01)


def test_an_active_connection_is_kept_before_idle_ones(server: WebServer) -> None:
    connection = connected(server)
    with ExitStack() as stack:
        for number in range(2 * MOST_CONNECTIONS):
            stack.enter_context(socket.create_connection((LOOPBACK, server.port), PATIENCE))
            if number % 10 == 0:
                connection.request("GET", "/small")
                if number == 0:
                    own = connection.sock.getsockname()
                assert connection.getresponse().read() == b"few words"
        assert connection.sock.getsockname() == own
    connection.close()


def test_a_client_that_disconnects_during_a_reply_is_not_logged(
    server: WebServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for _ in range(5):
        with socket.create_connection((LOOPBACK, server.port), PATIENCE) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # with a reset
            connection.sendall(b"GET /large HTTP/1.1\r\n\r\n" * 50)
    assert ask(server, "/small")[0].status == 200
    assert caplog.text == ""


def test_a_closed_server_gives_no_replies_on_open_connections_either() -> None:
    with WebServer(ANY, ROUTES) as server:
        connection = connected(server)
        connection.request("GET", "/small")
        connection.getresponse().read()
    kept = connection.sock
    assert disconnected(kept)
    connection.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, server.port), PATIENCE)


def test_a_taken_port_is_named_with_a_remedy(server: WebServer) -> None:
    taken = WebAddress(LOOPBACK, server.port)
    said = re.escape(
        f"cannot serve pages at 127.0.0.1:{server.port} (Address already in use): "
        "choose another with --web HOST:PORT, or --web off"
    )
    with pytest.raises(PortTaken, match=f"^{said}$"):
        WebServer(taken, ROUTES)
    with pytest.raises(PortTaken, match=f"^{said}$"):
        check_free(taken)
    usual = WebAddress(LOOPBACK, server.port, fixed=False)
    check_free(usual)
    with WebServer(usual, ROUTES) as other:
        assert other.port != server.port
        assert ask(other, "/small")[0].status == 200


def test_a_port_is_free_again_at_once() -> None:
    with WebServer(ANY, ROUTES) as server:
        ask(server, "/small")
        port = server.port
    check_free(WebAddress(LOOPBACK, port))
    with WebServer(WebAddress(LOOPBACK, port), ROUTES) as again:
        assert ask(again, "/small")[0].status == 200


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1", "a" * 70, "..", "münchen..de"])
def test_a_host_of_another_machine_is_named(host: str) -> None:
    with pytest.raises(PortTaken, match=f"cannot serve pages at {re.escape(host)}:0 .*--web HOST:PORT"):
        WebServer(WebAddress(host), ROUTES)


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize(("text", "host"), [("[::1]:0", "::1"), ("[::]:0", "::1")])
def test_ipv6_is_served_too(text: str, host: str) -> None:
    address = parse_address(text)
    assert address is not None
    assert str(address) == text
    with WebServer(address, ROUTES) as server:
        connection = http.client.HTTPConnection(host, server.port, timeout=PATIENCE)
        connection.request("GET", "/small")
        assert connection.getresponse().read() == b"few words"
        connection.close()
        if address.host == "::1":
            assert server.url == f"http://[::1]:{server.port}/"
            with pytest.raises(PortTaken, match=re.escape(f"at [::1]:{server.port} (")):
                WebServer(WebAddress("::1", server.port), ROUTES)


def test_on_all_interfaces_the_place_is_the_machines_name() -> None:
    address = parse_address(":0")
    assert address is not None
    with WebServer(address, ROUTES) as server:
        assert server.place == f"{socket.gethostname()}:{server.port}"
        assert ask(server, "/small")[0].status == 200


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("9000", LOOPBACK, 9000),
        (":9000", "0.0.0.0", 9000),
        ("gpu-3.example:9000", "gpu-3.example", 9000),
        ("[::1]:9000", "::1", 9000),
        ("0", LOOPBACK, 0),
    ],
)
def test_addresses_are_parsed(text: str, host: str, port: int) -> None:
    address = parse_address(text)
    assert address == WebAddress(host, port)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text", ["", "x", "65536", "-1", "host:", "::1:9000", "http://host:9000", "a b:9", "9000 "]
)
def test_a_bad_address_is_named(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"wants HOST:PORT, PORT or off, got {re.escape(repr(text))}"):
        parse_address(text)


def test_off_means_no_address() -> None:
    assert parse_address("off") is None


def test_a_flood_of_requests_gets_a_share_of_a_core_and_another_client_its_reply() -> None:
    calls: list[None] = []

    def work(_: Mapping[str, str]) -> Reply:
        calls.append(None)
        start = time.thread_time()
        while time.thread_time() - start < 0.01:
            pass
        return Reply(b"done")

    ended = threading.Event()

    def flood(server: WebServer) -> None:
        connection = connected(server)
        while not ended.is_set():
            connection.request("GET", "/work")
            connection.getresponse().read()
        connection.close()

    with WebServer(ANY, {**ROUTES, "/work": work}) as server:
        clients = [threading.Thread(target=flood, args=(server,)) for _ in range(4)]
        start = time.monotonic()
        for client in clients:
            client.start()
        time.sleep(4)
        assert ask(server, "/small")[1] == b"few words"
        ended.set()
        for client in clients:
            client.join()
        seconds = time.monotonic() - start
    assert 0.01 * len(calls) < 0.2 * seconds + 0.2  # without a bound: nearly all of the seconds
