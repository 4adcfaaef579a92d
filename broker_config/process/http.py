"""A small web server beside a process's work: metrics, health, and pages. It only answers questions."""

import gzip
import logging
import re
import socket
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from broker_config.process.addresses import WebAddress
from broker_config.protocol.errors import PortTaken

_log = logging.getLogger(__name__)
_ANYWHERE = ("0.0.0.0", "::", "")
_WORTH_PACKING_BYTES = 1000
_PATIENCE_SECONDS = 30.0
_MOST_PARAMETERS = 20
MOST_CONNECTIONS = 64
_TAKES_GZIP = re.compile(r"(^|[,\s])gzip(?!\s*;\s*q=0(\.0*)?\s*(,|$))", re.IGNORECASE)
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Whatever a name or a detail holds, it is text: no script but our own files, and nothing from elsewhere.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


@dataclass(frozen=True)
class Reply:
    body: bytes
    kind: str = "text/plain; charset=utf-8"
    status: int = 200


Route = Callable[[Mapping[str, str]], Reply]
"""From the query's parameters to an answer; called in threads of the web server. Raises ValueError for a question
that makes no sense."""


class WebServer:
    """Serves from the moment it is made. A path that ends with / in `routes` stands for all that begins with it; the
    rest comes as the parameter "rest"."""

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
        """HOST:PORT as others may reach it"""
        host = socket.gethostname() if self._host in _ANYWHERE else self._host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.place}/"

    def close(self) -> None:
        """Also to those who keep a connection: else they would go on talking to who is gone."""
        self._server.closing = True
        with suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes it up
        self._thread.join()
        self._server.server_close()
        self._server.hang_up_on_all()

    def __enter__(self) -> "WebServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def check_free(address: WebAddress) -> None:
    """Raises PortTaken, early, where it would take a while to come to serving. Somebody may still be faster."""
    if address.fixed and address.port:
        _listen(address, {}).server_close()


def _listen(address: WebAddress, routes: Mapping[str, Route]) -> "_Server":
    try:
        return _Server((address.host, address.port), _handler(routes))
    except (OSError, UnicodeError, TypeError) as error:  # the latter for names that no host can have
        if not address.fixed and address.port:
            return _listen(replace(address, port=0), routes)
        reason = getattr(error, "strerror", None) or error
        raise PortTaken(
            f"cannot serve pages at {address} ({reason}): choose another with --web HOST:PORT, or --web off"
        ) from error


class _Server(ThreadingHTTPServer):
    """At most so many connections. For new ones those make room that have asked nothing yet, or not for longest: so
    whoever opens many and says little keeps nobody out."""

    daemon_threads = True
    block_on_close = False  # a browser may keep its connection for as long as it likes
    request_queue_size = MOST_CONNECTIONS
    timeout = 1.0
    closing = False

    def __init__(self, place: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._open: OrderedDict[socket.socket, bool] = OrderedDict()
        """Connection → has it ever been answered; who was answered last comes last"""
        self._lock = threading.Lock()
        super().__init__(place, handler)

    def serve_until_closed(self) -> None:
        """Unlike `serve_forever` it does not look many times a second whether it should stop."""
        while not self.closing:
            self.handle_request()

    def server_bind(self) -> None:
        # Not HTTPServer's, which looks up our own name: that may take seconds where DNS is slow.
        socket.socket.setsockopt(self.socket, socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        with self._lock:
            if len(self._open) >= MOST_CONNECTIONS:
                self._hang_up(min(self._open, key=lambda other: self._open[other]))
            self._open[connection] = False
        return connection, address

    def answered(self, connection: socket.socket) -> None:
        with self._lock:
            if self._open.pop(connection, None) is not None:
                self._open[connection] = True

    def hang_up_on_all(self) -> None:
        with self._lock:
            for connection in list(self._open):
                self._hang_up(connection)

    def _hang_up(self, connection: socket.socket) -> None:
        del self._open[connection]
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # its thread wakes up, and closes it

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, *_: object) -> None:
        """That whoever asked has gone away need nobody read of."""
        if not isinstance(sys.exception(), OSError):
            _log.warning("a question was not answered", exc_info=True)


def _handler(routes: Mapping[str, Route]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server: _Server
        protocol_version = "HTTP/1.1"
        timeout = _PATIENCE_SECONDS
        disable_nagle_algorithm = (
            True  # headers and body are written apart: the second would wait for an answer
        )
        server_version = "fedil"
        sys_version = ""

        def do_GET(self) -> None:
            try:
                asked = urlsplit(self.path)
                query = dict(parse_qsl(asked.query, max_num_fields=_MOST_PARAMETERS))
            except ValueError as error:
                reply = _no_question(error)
            else:
                reply = _answer_whatever_happens(routes, asked.path, query)
            self._send(reply)
            self.server.answered(self.connection)

        do_HEAD = do_GET

        def _send(self, reply: Reply) -> None:
            body, packed = reply.body, False
            accepted = self.headers.get("Accept-Encoding", "")
            if len(body) >= _WORTH_PACKING_BYTES and _TAKES_GZIP.search(accepted):
                body, packed = gzip.compress(body, 1), True
            self.send_response(reply.status)
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            if packed:
                self.send_header("Content-Encoding", "gzip")
            if "Content-Length" in self.headers or "Transfer-Encoding" in self.headers:
                self.send_header("Connection", "close")  # nobody reads a body, and it is no next question
            self.send_header("Content-Type", reply.kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Prometheus asks every few seconds."""

    return Handler


def _answer_whatever_happens(routes: Mapping[str, Route], path: str, query: dict[str, str]) -> Reply:
    """A question must never hurt the run, nor end without an answer."""
    try:
        return _answer(routes, path, query)
    except ValueError as error:
        return _no_question(error)
    except Exception as error:
        _log.warning("%.200r cannot be answered", path, exc_info=True)
        said = f"{type(error).__name__}: {error}\n"
        return Reply(said.encode(errors="replace"), status=HTTPStatus.INTERNAL_SERVER_ERROR)


def _no_question(error: ValueError) -> Reply:
    return Reply(f"{error}\n".encode(errors="replace"), status=HTTPStatus.BAD_REQUEST)


def _answer(routes: Mapping[str, Route], path: str, query: dict[str, str]) -> Reply:
    folder = path[: path.rfind("/") + 1]
    if path in routes and (path == "/" or path != folder):
        return routes[path](query)
    if folder != "/" and folder in routes:
        return routes[folder]({**query, "rest": path.removeprefix(folder)})
    known = " ".join(sorted(routes))
    return Reply(f"nothing here; there is {known}\n".encode(), status=HTTPStatus.NOT_FOUND)
