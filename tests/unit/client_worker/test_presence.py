import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import broker_config.stores.presence
from broker_config.brokers.topology import workers_topic
from broker_config.protocol.errors import BrokerUnavailable
from broker_config.stores.memory.store import MemoryStore
from client_worker.worker import worker_presence
from tests.memory_store import new_store

TOPIC = workers_topic("here")
PATIENCE = 60.0


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_config.stores.presence, "_AT_MOST_EVERY_SECONDS", 0.001)
    monkeypatch.setattr(broker_config.stores.presence, "EVERY_SECONDS", 0.01)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.001)


def test_a_worker_is_on_the_board_while_it_lives_with_what_it_is_doing() -> None:
    store = new_store()
    presence = worker_presence(lambda: store, "here", "cuda:1")

    def facts() -> dict[str, Any]:
        return store.notices(TOPIC).get(presence.name, {})

    with presence:
        until(facts)
        before = facts()
        assert before["state"] == "starting"
        assert before["device"] == "cuda:1"
        assert presence.name.startswith(f"{before['host']}-{before['pid']}-")
        presence.update(state="training", run="r", round=3, client=7)
        until(lambda: facts()["state"] == "training")
        assert (facts()["run"], facts()["round"], facts()["client"]) == ("r", 3, 7)
        assert facts()["since"] >= before["since"]
        presence.update(state="idle", tasks_done=1, images_per_second=12.5)
        until(lambda: facts()["tasks_done"] == 1)
        assert facts()["images_per_second"] == 12.5
    until(lambda: store.notices(TOPIC) == {})


def test_since_begins_with_a_state_and_not_with_every_fact() -> None:
    presence = worker_presence(new_store, "here", "cpu")
    began = presence._facts["since"]
    presence.update(state="starting", tasks_done=4)
    assert presence._facts["since"] == began
    presence.update(state="training")
    assert presence._facts["since"] != began


class Flaky(MemoryStore):
    """Out of order until it is repaired."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.attempts = 0
        self.repaired = threading.Event()

    def announce(self, topic: str, name: str, facts: Mapping[str, object], ttl_seconds: float) -> None:
        self.attempts += 1
        if not self.repaired.is_set():
            raise BrokerUnavailable("no board")
        super().announce(topic, name, facts, ttl_seconds)


def test_a_board_that_fails_is_mentioned_once_and_used_again_when_it_works(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.WARNING)
    store = Flaky(tmp_path)
    with worker_presence(lambda: store, "here", "cpu") as presence:
        until(lambda: store.attempts >= 3)
        assert caplog.text.count(f"cannot update the status of {presence.name}: no board") == 1
        store.repaired.set()
        until(lambda: presence.name in store.notices(TOPIC))


def test_a_board_that_is_not_there_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    tried = threading.Event()

    def connect() -> MemoryStore:
        tried.set()
        raise BrokerUnavailable("no store")

    with worker_presence(connect, "here", "cpu") as presence:
        assert tried.wait(PATIENCE)
        presence.update(state="training")
    until(lambda: "no store" in caplog.text)
