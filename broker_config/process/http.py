"""A small, read-only web server inside a process: metrics, health, pages."""

import gzip
import logging
import re
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from broker_config.process.addresses import WebAddress
from broker_config.protocol.errors import PortTaken

_log = logging.getLogger(__name__)
_ALL_INTERFACES = ("0.0.0.0", "::", "")
_COMPRESS_FROM_BYTES = 1000
_TIMEOUT_SECONDS = 30.0
_MOST_PARAMETERS = 20
_IP_ADDRESS = re.compile(r"[0-9.]+|[0-9a-f:.]*:[0-9a-f:.]*")
MOST_CONNECTIONS = 64
_SHARE_OF_A_CORE = 0.1
_BURST_SECONDS = 2.0
_ACCEPTS_GZIP = re.compile(r"(^|[,\s])gzip(?!\s*;\s*q=0(\.0*)?\s*(,|$))", re.IGNORECASE)
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Only our own files run as scripts, whatever names and details contain.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


@dataclass(frozen=True)
class Reply:
    body: bytes
    kind: str = "text/plain; charset=utf-8"
    status: int = 200


Route = Callable[[Mapping[str, str]], Reply]
"""From the query's parameters to a reply; called in threads of the web server. Raises ValueError for bad parameters."""


class WebServer:
    """Serves as soon as it is constructed. A path in `routes` that ends with / stands for all paths below it; the rest
    of the path is the parameter "rest"."""

    def __init__(self, address: WebAddress, routes: Mapping[str, Route]) -> None:
        self._server = _listen(address, routes)
        self._host = address.host
        self._thread = threading.Thread(target=self._server.serve_until_closed, name="fedil-web", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def place(self) -> str:
        """HOST:PORT for other machines"""
        host = socket.gethostname() if self._host in _ALL_INTERFACES else self._host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.place}/"

    def close(self) -> None:
        """Closes open connections too: clients that keep one would otherwise still get replies."""
        self._server.closing = True
        with suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)  # ends accept()
        self._thread.join()
        self._server.server_close()
        self._server.close_connections()

    def __enter__(self) -> "WebServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_free(address: WebAddress) -> None:
    """Raises PortTaken early, before a long start. Another process may still take the port afterwards."""
    if address.fixed and address.port:
        _listen(address, {}).server_close()


def _listen(address: WebAddress, routes: Mapping[str, Route]) -> "_Server":
    try:
        return _Server((address.host, address.port), _handler(routes, _names_of(address.host)))
    except (OSError, UnicodeError, TypeError) as error:  # the last two for impossible host names
        if not address.fixed and address.port:
            return _listen(replace(address, port=0), routes)
        reason = getattr(error, "strerror", None) or error
        raise PortTaken(
            f"cannot serve pages at {address} ({reason}): choose another with --web HOST:PORT, or --web off"
        ) from error


class _CpuShare:
    """Threads together get at most a share of one core, so that a flood of requests leaves the time to the run. What
    was unused in the last seconds may be used at once: a page asks for all of its files."""

    def __init__(self) -> None:
        self._free_at = 0.0
        self._charging, self._turn = threading.Lock(), threading.Lock()

    def wait(self) -> None:
        """Until earlier work is paid for, one thread after the other"""
        with self._turn:
            time.sleep(max(0.0, self._free_at - time.monotonic()))

    def charge(self, cpu_seconds: float) -> None:
        with self._charging:
            start = max(self._free_at, time.monotonic() - _BURST_SECONDS)
            self._free_at = start + cpu_seconds / _SHARE_OF_A_CORE


class _Server(ThreadingHTTPServer):
    """At most MOST_CONNECTIONS connections. A new one replaces the one that has not asked anything yet, or not for the
    longest time, so that idle connections keep no client out."""

    daemon_threads = True
    block_on_close = False  # a browser may keep its connection for as long as it likes
    request_queue_size = MOST_CONNECTIONS
    timeout = 1.0
    closing = False

    def __init__(self, place: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._open: OrderedDict[socket.socket, bool] = OrderedDict()
        """Connection → has had a reply; the last one that had comes last"""
        self._lock = threading.Lock()
        self.cpu_share = _CpuShare()
        super().__init__(place, handler)

    def serve_until_closed(self) -> None:
        """Unlike `serve_forever`, without polling many times a second."""
        charged = time.thread_time()
        while not self.closing:
            self.cpu_share.wait()
            self.handle_request()
            used = time.thread_time()
            self.cpu_share.charge(used - charged)
            charged = used

    def server_bind(self) -> None:
        # HTTPServer's own looks up the host name, which takes seconds where DNS is slow.
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        with self._lock:
            if len(self._open) >= MOST_CONNECTIONS:
                self._disconnect(min(self._open, key=lambda other: self._open[other]))
            self._open[connection] = False
        return connection, address

    def answered(self, connection: socket.socket) -> None:
        with self._lock:
            if self._open.pop(connection, None) is not None:
                self._open[connection] = True

    def close_connections(self) -> None:
        with self._lock:
            for connection in list(self._open):
                self._disconnect(connection)

    def _disconnect(self, connection: socket.socket) -> None:
        del self._open[connection]
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # its thread ends, and closes it

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, *_: object) -> None:
        """A client that has disconnected is not worth a log line."""
        if not isinstance(sys.exception(), OSError):
            _log.warning("a request got no reply", exc_info=True)


def _names_of(host: str) -> Collection[str]:
    """Host names of a server that only its own machine can reach; empty: any name"""
    return {host, "localhost"} if is_loopback(host) else ()


def is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _is_misdirected(host: str, names: Collection[str]) -> bool:
    """DNS rebinding: a web page from elsewhere whose name now resolves to a loopback address."""
    name = urlsplit(f"//{host}").hostname or ""
    return bool(names) and bool(name) and name not in names and not _IP_ADDRESS.fullmatch(name)


def _handler(routes: Mapping[str, Route], names: Collection[str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server: _Server
        protocol_version = "HTTP/1.1"
        timeout = _TIMEOUT_SECONDS
        # Headers and body are written separately: the second packet would wait for an acknowledgement.
        disable_nagle_algorithm = True
        server_version = "fedil"
        sys_version = ""
        _charged = 0.0  # of the CPU seconds of this connection's thread

        def do_GET(self) -> None:
            self.server.cpu_share.wait()
            self._send(self._reply())
            used = time.thread_time()
            self.server.cpu_share.charge(used - self._charged)
            self._charged = used
            self.server.answered(self.connection)

        do_HEAD = do_GET

        def _reply(self) -> Reply:
            try:
                host, asked = self.headers.get("Host", ""), urlsplit(self.path)
                if _is_misdirected(host, names):
                    said = f"not served as {host!r:.100}, only as {' or '.join(sorted(names))}\n"
                    return Reply(said.encode(errors="replace"), status=HTTPStatus.MISDIRECTED_REQUEST)
                query = dict(parse_qsl(asked.query, max_num_fields=_MOST_PARAMETERS))
            except ValueError as error:
                return _bad_request(error)
            return _reply_or_error(routes, asked.path, query)

        def _send(self, reply: Reply) -> None:
            body, compressed = reply.body, False
            accepted = self.headers.get("Accept-Encoding", "")
            if len(body) >= _COMPRESS_FROM_BYTES and _ACCEPTS_GZIP.search(accepted):
                body, compressed = gzip.compress(body, 1), True
            self.send_response(reply.status)
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            if compressed:
                self.send_header("Content-Encoding", "gzip")
            if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
                self.send_header(
                    "Connection", "close"
                )  # the body is not read, and must not be taken for the next request
            self.send_header("Content-Type", reply.kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """No log line per request: Prometheus asks every few seconds."""

    return Handler


def _reply_or_error(routes: Mapping[str, Route], path: str, query: dict[str, str]) -> Reply:
    """A request must not disturb the run, and always gets a reply."""
    try:
        return _call_route(routes, path, query)
    except ValueError as error:
        return _bad_request(error)
    except Exception as error:
        _log.warning("no reply to %.200r", path, exc_info=True)
        said = f"{type(error).__name__}: {error}\n"
        return Reply(said.encode(errors="replace"), status=HTTPStatus.INTERNAL_SERVER_ERROR)


def _bad_request(error: ValueError) -> Reply:
    return Reply(f"{error}\n".encode(errors="replace"), status=HTTPStatus.BAD_REQUEST)


def _call_route(routes: Mapping[str, Route], path: str, query: dict[str, str]) -> Reply:
    folder = path[: path.rfind("/") + 1]
    if path in routes and (path == "/" or path != folder):
        return routes[path](query)
    if folder != "/" and folder in routes:
        return routes[folder]({**query, "rest": path.removeprefix(folder)})
    known = " ".join(sorted(routes))
    return Reply(f"nothing here; there is {known}\n".encode(), status=HTTPStatus.NOT_FOUND)
