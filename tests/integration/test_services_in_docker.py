"""Containers are used if a Docker engine answers. The engine here is a stub of the Docker API with one image, a Redis
that answers PING."""

import importlib
import json
import re
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ops.local.services import Redis, ServiceMissing, process
from tests.containers import ContainedService, engine_answers
from tests.services import needed, redis_service, uses_docker


class Pong(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(64)
        self.request.sendall(b"+PONG\r\n")


class Engine(ThreadingHTTPServer):
    """A Docker engine that records its requests in `requests`, without the API's version."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__((process.LOOPBACK, 0), RequestHandler)
        self.requests: list[str] = []
        self.created: dict[str, Any] = {}
        self.container: socketserver.TCPServer | None = None

    @property
    def host_port(self) -> int:
        ((binding,),) = self.bindings.values()
        return int(binding["HostPort"])

    @property
    def bindings(self) -> dict[str, list[dict[str, str]]]:
        found: dict[str, list[dict[str, str]]] = self.created["HostConfig"]["PortBindings"]
        return found

    def run_container(self) -> None:
        socketserver.TCPServer.allow_reuse_address = True
        self.container = socketserver.ThreadingTCPServer((process.LOOPBACK, self.host_port), Pong)
        threading.Thread(target=self.container.serve_forever, daemon=True).start()

    def end_container(self) -> None:
        if self.container:
            self.container.shutdown()
            self.container.server_close()
            self.container = None


class RequestHandler(BaseHTTPRequestHandler):
    server: Engine

    def answer(self) -> None:
        path = re.sub(r"^/v[\d.]+|\?.*$", "", self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(f"{self.command} {path}")
        code, reply = self.reply_to(path, body)
        payload = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    do_GET = do_POST = do_DELETE = do_HEAD = answer

    def reply_to(self, path: str, body: bytes) -> tuple[int, Any]:
        engine = self.server
        if path == "/containers/create":
            engine.created = json.loads(body)
            return 201, {"Id": "c1", "Warnings": []}
        if path == "/containers/c1/start":
            engine.run_container()
            return 204, b""
        if path in ("/containers/c1/kill", "/containers/c1/stop", "/containers/c1"):
            engine.end_container()
            return 204, b""
        return 200, {
            "/_ping": b"OK",
            "/version": {"ApiVersion": "1.43", "MinAPIVersion": "1.24"},
            "/images/redis:7/json": {"Id": "i1"},
            "/containers/c1/json": {"Id": "c1", "State": {"Status": "running"}, "Image": "i1"}
            | ({"NetworkSettings": {"Ports": engine.bindings}} if engine.created else {}),
        }.get(path, {})

    def log_message(self, *_: object) -> None:
        """Keeps requests out of the output of pytest."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.delenv("FEDIL_SERVICES", raising=False)
    monkeypatch.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
    # In a container, testcontainers would look for the engine at the gateway.
    config = importlib.import_module("testcontainers.core.config")
    monkeypatch.setattr(
        config.testcontainers_config, "connection_mode_override", config.ConnectionMode.docker_host
    )
    with Engine() as server:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://{process.LOOPBACK}:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.end_container()
        server.shutdown()


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDIL_SERVICES", raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")


def test_containers_are_used_where_an_engine_answers(engine: Engine, tmp_path: Path) -> None:
    with redis_service(tmp_path) as service:
        assert isinstance(service, ContainedService)
        assert service.url == f"redis://{process.LOOPBACK}:{engine.host_port}/0"
        assert engine.created["Image"] == "redis:7"
        assert engine.created["Cmd"][:3] == ["redis-server", "--appendonly", "yes"]
        assert process.ask(b"PING\r\n", engine.host_port) == b"+PONG\r\n"
    assert engine.requests[-1] == "DELETE /containers/c1"


def test_a_killed_container_restarts_on_the_same_port(engine: Engine, tmp_path: Path) -> None:
    with redis_service(tmp_path) as service:
        url = service.url
        service.kill()
        with pytest.raises(ConnectionRefusedError):
            process.ask(b"PING\r\n", engine.host_port)
        service.start()
        assert service.url == url
        assert process.ask(b"PING\r\n", engine.host_port) == b"+PONG\r\n"
        service.stop()
        assert [request for request in engine.requests if re.search("start|kill|stop", request)] == [
            f"POST /containers/c1/{action}" for action in ("start", "kill", "start", "stop")
        ]


@pytest.mark.usefixtures("no_engine")
def test_programs_of_this_machine_are_used_without_an_engine(tmp_path: Path) -> None:
    with needed(lambda: redis_service(tmp_path)) as service:
        assert isinstance(service, Redis)


def test_native_takes_precedence_over_an_engine(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_answers()
    monkeypatch.setenv("FEDIL_SERVICES", "native")
    assert not uses_docker()


@pytest.mark.usefixtures("no_engine")
def test_docker_without_an_engine_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDIL_SERVICES", "docker")
    with pytest.raises(ServiceMissing, match=r"no engine answers: .* start Docker"):
        uses_docker()


def test_an_unknown_choice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDIL_SERVICES", "podman")
    with pytest.raises(ServiceMissing, match="FEDIL_SERVICES=podman: it may be docker or native"):
        uses_docker()
