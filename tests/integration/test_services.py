"""Private services: they restart with their data, and no process of them outlives a test."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
import redis as redis_client

from ops.local.services import Prometheus, Redis, ServiceFailed, ServiceMissing, process
from ops.local.services.brokers_root import ROOT, broker_command
from ops.local.services.process import wait_until
from ops.local.services.redis import STORE
from tests.processes import alive, family
from tests.services import (
    RabbitMQ,
    Service,
    needed,
    private_rabbitmq,
    rabbitmq_service,
    redis_service,
    temporary_services,
)

PATIENCE_SECONDS = 30.0


@contextmanager
def channel_to(url: str) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        connection.close()


@contextmanager
def client_of(url: str) -> Iterator[Any]:
    client = redis_client.Redis.from_url(url)
    try:
        yield client
    finally:
        client.close()


def test_a_killed_rabbitmq_restarts_with_its_queue_and_message(own_rabbitmq: Service) -> None:
    url = own_rabbitmq.url
    with channel_to(url) as channel:
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True)
        channel.basic_publish("", "kept", b"precious", pika.BasicProperties(delivery_mode=2), mandatory=True)
    # RabbitMQ stores a confirmed message at once, but the queue's metadata some moments later.
    if isinstance(own_rabbitmq, RabbitMQ):
        own_rabbitmq.ctl("eval", "mnesia:sync_log().")
    own_rabbitmq.kill()
    with pytest.raises(pika.exceptions.AMQPConnectionError), channel_to(url):
        pass
    own_rabbitmq.start()
    assert own_rabbitmq.url == url
    with channel_to(url) as channel:
        assert channel.basic_get("kept", auto_ack=True)[2] == b"precious"


def test_a_killed_redis_restarts_with_its_confirmed_writes(own_redis: Service) -> None:
    url = own_redis.url
    with client_of(url) as client:
        client.set("kept", b"precious")
    own_redis.kill()
    own_redis.start()
    assert own_redis.url == url
    with client_of(url) as client:
        assert client.get("kept") == b"precious"


def test_data_does_not_depend_on_the_ports(tmp_path: Path) -> None:
    with needed(lambda: Redis(tmp_path)) as first, client_of(first.url) as client:
        client.set("kept", b"precious")
        first.stop()
    with Redis(tmp_path) as second, client_of(second.url) as client:
        assert second.url != first.url
        assert client.get("kept") == b"precious"


def test_a_new_rabbitmq_in_the_same_folder_keeps_the_data_and_has_its_own_settings(tmp_path: Path) -> None:
    with needed(lambda: private_rabbitmq(tmp_path)) as first:
        with channel_to(first.url) as channel:
            channel.queue_declare("kept", durable=True)
        first.stop()
    with private_rabbitmq(tmp_path, config="# ours is 20\nheartbeat = 7\n", management=True) as second:
        assert second.url != first.url
        with channel_to(second.url) as channel:
            assert channel.queue_declare("kept", passive=True).method.queue == "kept"
        assert second.ctl("eval", "application:get_env(rabbit, heartbeat).").strip() == "{ok,7}"
        page = process.ask(b"GET / HTTP/1.0\r\n\r\n", second.ports["management"])
        assert page.startswith(b"HTTP/1.1 200")
        with pytest.raises(ServiceFailed, match="rabbitmqctl no_such_command"):
            second.ctl("no_such_command")


def test_two_rabbitmq_nodes_are_independent(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        starting = [pool.submit(private_rabbitmq, tmp_path / name) for name in ("one", "two")]
        nodes = [needed(future.result) for future in starting]
    with nodes[0] as one, nodes[1] as two:
        with channel_to(one.url) as channel:
            channel.queue_declare("mine", durable=True)
        with (
            channel_to(two.url) as channel,
            pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"),
        ):
            channel.queue_declare("mine", passive=True)
        one.kill()
        assert two.running
        with channel_to(two.url) as channel:
            assert channel.is_open


def test_prometheus_answers_with_the_configuration_it_was_given(tmp_path: Path) -> None:
    config = "global: {scrape_interval: 7s}\n"
    with needed(lambda: Prometheus(tmp_path, config)) as prometheus:
        reply = process.ask(b"GET /-/healthy HTTP/1.0\r\n\r\n", prometheus.port)
        assert reply.startswith(b"HTTP/1.0 200")


@pytest.mark.parametrize("start", [Redis, private_rabbitmq])
def test_no_process_of_a_service_outlives_its_context(
    start: Callable[[Path], process.PrivateService], tmp_path: Path
) -> None:
    before = family(os.getpid())
    with needed(lambda: start(tmp_path)):
        started = family(os.getpid()) - before
        assert len(started) >= 2  # the program and its guard
    assert wait_until(lambda: not alive(started), PATIENCE_SECONDS)


@pytest.mark.parametrize("start", ["Redis", "RabbitMQ"])
def test_no_process_of_a_service_outlives_a_killed_parent(start: str, tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from ops.local.services import ServiceMissing, {start}
try:
    service = {start}(Path(sys.argv[1]))
except ServiceMissing as missing:
    sys.exit(f"missing:{{missing}}")
print("running", flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout
        assert parent.stderr
        if parent.stdout.readline() != "running\n":
            said = parent.stderr.read()
            needed(lambda: raise_missing(said.removeprefix("missing:")))
        started = family(parent.pid)
        assert len(started) >= 2
        parent.kill()
    assert wait_until(lambda: not alive(started), PATIENCE_SECONDS)


def raise_missing(text: str) -> None:
    raise ServiceMissing(text)


def test_a_service_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    started: list[process.PrivateService] = []
    thread = threading.Thread(target=lambda: started.append(needed(lambda: Redis(tmp_path))))
    thread.start()
    thread.join()
    with started[0] as service:
        assert service.running
        assert process.ask(b"PING\r\n", service.ports["redis"]) == b"+PONG\r\n"


def test_another_port_is_chosen_if_one_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = process.free_ports
    with socket.create_server((process.LOOPBACK, 0)) as occupant:
        busy = occupant.getsockname()[1]
        choices = iter([{"redis": busy}, choose(["redis"])])
        monkeypatch.setattr(process, "free_ports", lambda names: next(choices))
        with needed(lambda: Redis(tmp_path)) as service:
            assert service.port != busy
            assert next(choices, None) is None


def test_a_port_that_was_taken_meanwhile_is_named(tmp_path: Path) -> None:
    with needed(lambda: Redis(tmp_path)) as service:
        service.kill()
        with (
            socket.create_server((process.LOOPBACK, service.port)),
            pytest.raises(ServiceFailed, match=f"another program listens on port {service.port}"),
        ):
            service.start()
        service.start()
        assert service.running


def test_start_and_kill_may_be_repeated(tmp_path: Path) -> None:
    with needed(lambda: Redis(tmp_path)) as service:
        service.start()
        assert service.running
        service.kill()
        service.kill()
        service.stop()
        assert not service.running


def test_the_error_of_a_redis_that_does_not_start_has_its_output(tmp_path: Path) -> None:
    with pytest.raises(ServiceFailed, match=r"(?s)Redis ended while starting.*no-such-option"):
        needed(lambda: Redis(tmp_path, options=["--no-such-option", "1"]))


def test_the_error_of_a_rabbitmq_that_does_not_start_has_its_output(tmp_path: Path) -> None:
    with pytest.raises(ServiceFailed, match=r"(?s)RabbitMQ ended while starting.*no_such_key"):
        needed(lambda: private_rabbitmq(tmp_path, config="no_such_key = 1"))


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (private_rabbitmq, "RabbitMQ is not installed: apt install rabbitmq-server"),
        (Redis, "Redis is not installed: apt install redis-server"),
        (rabbitmq_service, "RabbitMQ is not installed: apt install rabbitmq-server, or start Docker"),
        (redis_service, "Redis is not installed: apt install redis-server, or start Docker"),
        (
            lambda folder: Prometheus(folder, ""),
            "Prometheus is not installed: apt install prometheus",
        ),
    ],
)
def test_a_missing_program_is_named_with_the_command_that_installs_it(
    start: Callable[[Path], object], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDIL_SERVICES", "native")
    for name in (ROOT, STORE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(ServiceMissing, match=f"^{text}$"):
        start(tmp_path)


def test_a_program_that_is_not_in_the_root_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROOT, str(tmp_path))
    with pytest.raises(ServiceMissing, match=f"^{ROOT}={tmp_path} has no rabbitmq-server: build it with"):
        private_rabbitmq(tmp_path)


def test_a_service_from_a_root_folder_runs_in_its_own_mount_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROOT, "/")
    monkeypatch.delenv(STORE, raising=False)
    if subprocess.run(broker_command("true"), check=False).returncode:
        needed(lambda: raise_missing("unshare and mount are not permitted: run the tests as root"))
    with needed(lambda: Redis(tmp_path)) as service, client_of(service.url) as client:
        namespace = os.readlink(f"/proc/{client.info()['process_id']}/ns/mnt")
        assert namespace != os.readlink("/proc/self/ns/mnt")
        client.set("kept", b"precious")
        service.kill()
        service.start()
        assert client.get("kept") == b"precious"


def test_an_unknown_store_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE, "memcached")
    with pytest.raises(ServiceMissing, match=f"^{STORE}=memcached: it may be redis or valkey, or not set$"):
        Redis(tmp_path)


@pytest.mark.parametrize(
    ("environment", "outcome"),
    [
        ({}, pytest.skip.Exception),
        ({"CI": "false", "FEDIL_REQUIRE_SERVICES": "0"}, pytest.skip.Exception),
        ({"CI": "true"}, pytest.fail.Exception),
        ({"FEDIL_REQUIRE_SERVICES": "1"}, pytest.fail.Exception),
    ],
)
def test_a_test_without_its_service_is_skipped_and_fails_in_ci(
    environment: dict[str, str], outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CI", "FEDIL_REQUIRE_SERVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(outcome, match="apt install it"):
        needed(lambda: raise_missing("apt install it"))


def test_temporary_services_work_outside_of_pytest() -> None:
    with needed(temporary_services) as both, client_of(both.redis.url) as client:
        with channel_to(both.rabbitmq.url) as channel:
            assert channel.is_open
        assert client.ping()
