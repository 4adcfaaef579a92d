"""What a cluster does about brokers that die, with a broker that dies on demand."""

import threading

import pytest

import ops.local.cluster
from broker_config.process.addresses import LOOPBACK, WebAddress
from broker_config.process.http import WebServer
from broker_config.protocol.errors import PortTaken
from ops.local.cluster import kept_running, with_a_port
from ops.local.services import ServiceFailed

SOON = 30.0


class Mortal:
    name = "Mortal"

    def __init__(self, *failures: Exception) -> None:
        self.running, self._failures = True, list(failures)
        self.back = threading.Event()

    def start(self) -> None:
        if self._failures:
            raise self._failures.pop(0)
        self.running = True
        self.back.set()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops.local.cluster, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(ops.local.cluster, "_RETRY_SECONDS", 0.001)


def test_a_broker_that_dies_is_started_again_each_time() -> None:
    said: list[str] = []
    service = Mortal()
    with kept_running(service, said.append):  # type: ignore[arg-type]
        for _ in range(2):
            service.back.clear()
            service.running = False
            assert service.back.wait(SOON)
    assert said == ["Mortal has died; starting it again", "Mortal is back"] * 2


def test_one_that_does_not_come_up_is_tried_again_and_the_reason_is_one_line() -> None:
    said: list[str] = []
    service = Mortal(ServiceFailed("Mortal ended while starting:\n  a lot\n  more"), OSError("no room"))
    service.running = False
    with kept_running(service, said.append):  # type: ignore[arg-type]
        assert service.back.wait(SOON)
    assert said[1] == "Mortal ended while starting; trying again in 0 s"
    assert said[3] == "no room; trying again in 0 s"
    assert said[-1] == "Mortal is back"


def test_one_that_is_stopped_on_purpose_afterwards_stays_so() -> None:
    said: list[str] = []
    service = Mortal()
    with kept_running(service, said.append):  # type: ignore[arg-type]
        pass
    service.running = False
    assert not any(thread.name == "fedil-Mortal" for thread in threading.enumerate())
    assert said == []


def test_a_port_that_is_taken_is_told_before_any_broker_is_started() -> None:
    with WebServer(WebAddress(LOOPBACK, 0), {}) as other, pytest.raises(PortTaken, match=str(other.port)):
        with_a_port(WebAddress(LOOPBACK, other.port))
