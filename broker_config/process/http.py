"""A small, read-only web server inside a process: metrics, health, pages."""

import gzip
import logging
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Self
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


class _CpuShare:
    """Threads together get at most a share of one core, so that a flood of requests leaves the time to the run. What
    was unused in the last seconds may be used at once: a page asks for all of its files."""

    def __init__(self) -> None:
        self._free_at = 0.0
        self._charging, self._turn = threading.Lock(), threading.Lock()
        self._thread = threading.local()
        self.closing = threading.Event()

    def wait(self) -> None:
        """Until earlier work is paid for, one thread after the other"""
        with self._turn:
            self.closing.wait(max(0.0, self._free_at - time.monotonic()))

    def charge(self) -> None:
        """What this thread has used since the last time"""
        before, self._thread.used = getattr(self._thread, "used", 0.0), time.thread_time()
        with self._charging:
            start = max(self._free_at, time.monotonic() - _BURST_SECONDS)
            self._free_at = start + (self._thread.used - before) / _SHARE_OF_A_CORE


class WebServer(ThreadingMixIn, TCPServer):
    """Serves within its context. At most MOST_CONNECTIONS connections: a new one replaces the one that has not asked
    anything yet, or not for the longest time, so that idle connections keep no client out."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False  # a browser may keep its connection for as long as it likes
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, address: WebAddress, routes: Mapping[str, Route]) -> None:
        """A path in `routes` that ends with / stands for all paths below it; the rest of the path is the parameter
        "rest"."""
        self.routes, self._host = routes, address.host
        self.names = {address.host, "localhost"} if is_loopback(address.host) else set()
        """Host names of a server that only its own machine can reach; empty: any name"""
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._open: dict[socket.socket, bool] = {}
        """Connection → has had a reply; the last one that had comes last"""
        self._lock = threading.Lock()
        self.cpu_share = _CpuShare()
        try:
            self._listen(address)
        except (OSError, UnicodeError, TypeError) as error:  # the last two for impossible host names
            reason = getattr(error, "strerror", None) or error
            raise PortTaken(
                f"cannot serve pages at {address} ({reason}): choose another with --web HOST:PORT, or --web off"
            ) from error

    def _listen(self, address: WebAddress) -> None:
        try:
            super().__init__((address.host, address.port), _Handler)
        except OSError:
            if address.fixed:
                raise
            super().__init__((address.host, 0), _Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def place(self) -> str:
        """HOST:PORT for other machines"""
        host = socket.gethostname() if self._host in _ALL_INTERFACES else self._host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.place}/"

    def __enter__(self) -> Self:
        # It looks once a second whether it shall end.
        threading.Thread(target=self.serve_forever, args=(1.0,), name="fedil-web", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Closes open connections too: clients that keep one would otherwise still get replies."""
        self.cpu_share.closing.set()
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # it looks now
        self.shutdown()
        self.server_close()
        with self._lock:
            for connection in list(self._open):
                self._disconnect(connection)

    def service_actions(self) -> None:
        """After each connection that was accepted"""
        self.cpu_share.charge()
        self.cpu_share.wait()

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


def check_free(address: WebAddress) -> None:
    """Raises PortTaken early, before a long start. Another process may still take the port afterwards."""
    if address.fixed and address.port:
        WebServer(address, {}).server_close()


def is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


class _Handler(BaseHTTPRequestHandler):
    server: WebServer
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_SECONDS
    # Headers and body are written separately: the second packet would wait for an acknowledgement.
    disable_nagle_algorithm = True
    server_version = "fedil"
    sys_version = ""

    def parse_request(self) -> bool:
        self.server.cpu_share.wait()
        is_request = super().parse_request()
        self.server.cpu_share.charge()
        return is_request

    def do_GET(self) -> None:
        self._send(self._reply())
        self.server.cpu_share.charge()
        self.server.answered(self.connection)

    do_HEAD = do_GET

    def _reply(self) -> Reply:
        """A request must not disturb the run, and always gets a reply."""
        path = self.path
        try:
            host, names = self.headers.get("Host", ""), self.server.names
            if _is_misdirected(host, names):
                said = f"not served as {host!r:.100}, only as {' or '.join(sorted(names))}"
                return _refusal(HTTPStatus.MISDIRECTED_REQUEST, said)
            _, _, path, query, _ = urlsplit(path)
            parameters = dict(parse_qsl(query, max_num_fields=_MOST_PARAMETERS))
            return _call_route(self.server.routes, path, parameters)
        except ValueError as error:
            return _refusal(HTTPStatus.BAD_REQUEST, error)
        except Exception as error:
            _log.warning("no reply to %.200r", path, exc_info=True)
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")

    def _send(self, reply: Reply) -> None:
        body, headers = reply.body, dict(_HEADERS)
        accepted = self.headers.get("Accept-Encoding", "")
        if len(body) >= _COMPRESS_FROM_BYTES and _ACCEPTS_GZIP.search(accepted):
            body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
            # The body is not read, and must not be taken for the next request.
            headers["Connection"] = "close"
        headers |= {"Content-Type": reply.kind, "Content-Length": str(len(body))}
        self.send_response(reply.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """No log line per request: Prometheus asks every few seconds."""


def _is_misdirected(host: str, names: Collection[str]) -> bool:
    """DNS rebinding: a web page from elsewhere whose name now resolves to a loopback address."""
    name = urlsplit(f"//{host}").hostname or ""
    return bool(names) and bool(name) and name not in names and not _IP_ADDRESS.fullmatch(name)


def _refusal(status: HTTPStatus, said: object) -> Reply:
    return Reply(f"{said}\n".encode(errors="replace"), status=status)


def _call_route(routes: Mapping[str, Route], path: str, query: dict[str, str]) -> Reply:
    folder = path[: path.rfind("/") + 1]
    if path in routes and (path == "/" or path != folder):
        return routes[path](query)
    if folder != "/" and folder in routes:
        return routes[folder]({**query, "rest": path.removeprefix(folder)})
    return _refusal(HTTPStatus.NOT_FOUND, f"nothing here; there is {' '.join(sorted(routes))}")
