"""Surveys of workers, queues and stores, also while brokers are away."""

import threading
from collections.abc import Callable
from pathlib import Path

from broker_config.brokers.topology import DEAD_LETTERS, tasks_queue, updates_queue, workers_topic
from broker_config.protocol.errors import BrokerUnavailable
from broker_config.stores.interface import Store
from broker_config.stores.memory.store import MemoryStore
from broker_config.transports.interface import Transport
from broker_config.transports.memory.broker import EmbeddedBroker
from broker_config.transports.memory.transport import MemoryTransport
from server_worker.watch.survey import Survey, Surveyor

SITES = {"north": range(0, 5), "south": range(5, 8), "west": range(8, 10)}


class Surveys:
    def __init__(self) -> None:
        self.taken: list[Survey] = []
        self._more = threading.Condition()

    def __call__(self, survey: Survey) -> None:
        with self._more:
            self.taken.append(survey)
            self._more.notify_all()

    def wait_for(self, expected: Callable[[Survey], bool]) -> Survey:
        with self._more:
            found = self._more.wait_for(lambda: [s for s in self.taken if expected(s)], timeout=30)
        assert found
        return found[-1]


def prepared(folder: Path) -> tuple[EmbeddedBroker, MemoryStore]:
    store, broker = MemoryStore(folder), EmbeddedBroker()
    store.announce(workers_topic("north"), "n-1", {"state": "idle"}, 60)
    store.announce(workers_topic("north"), "n-2", {"state": "training", "client": 3}, 60)
    store.announce(workers_topic("west"), "w-1", {"state": "idle", "site": "another"}, 60)
    transport = MemoryTransport(broker)
    transport.declare(updates_queue("r", "north"), DEAD_LETTERS, tasks_queue("north"), tasks_queue("west"))
    for queue, messages in ((tasks_queue("north"), 2), (tasks_queue("west"), 1), (DEAD_LETTERS, 4)):
        for _ in range(messages):
            transport.publish(queue, [b"x"])
    return broker, store


def test_workers_clients_and_queues_are_counted(tmp_path: Path) -> None:
    broker, store = prepared(tmp_path)
    surveys = Surveys()
    with Surveyor("r", SITES, lambda: (MemoryTransport(broker), store), surveys, every_seconds=0.05):
        survey = surveys.wait_for(lambda survey: bool(survey.workers))
    assert [(w["site"], w["name"]) for w in survey.workers] == [
        ("north", "n-1"),
        ("north", "n-2"),
        ("west", "w-1"),
    ]
    assert survey.workers[1]["client"] == 3
    assert survey.clients_alive == 7
    assert survey.absent == tuple(site for site in SITES if site not in ("north", "west"))
    assert survey.num_sites == len(SITES)
    assert survey.depths == {"tasks": 3, "updates": 0, "dead_letters": 4}
    assert survey.trouble == ""


def test_a_survey_reports_brokers_that_are_away_and_connects_again(tmp_path: Path) -> None:
    broker, store = prepared(tmp_path)
    surveys, connected = Surveys(), list[str]()
    there = threading.Event()
    there.set()

    def connect() -> tuple[Transport, Store]:
        if not there.is_set():
            raise BrokerUnavailable("no\nanswer")
        connected.append("once")
        return Failing(broker, there), store

    with Surveyor("r", SITES, connect, surveys, every_seconds=0.05):
        surveys.wait_for(lambda survey: bool(survey.workers))
        there.clear()
        away = surveys.wait_for(lambda survey: survey.trouble == "no answer")
        there.set()
        surveys.wait_for(lambda survey: survey.at > away.at and not survey.trouble)
    # The rest is from the survey before.
    assert away.clients_alive == 7
    assert away.depths["dead_letters"] == 4
    assert len(connected) == 2


def test_an_error_without_text_is_reported_by_its_type() -> None:
    def connect() -> tuple[Transport, Store]:
        raise TimeoutError

    surveys = Surveys()
    with Surveyor("r", SITES, connect, surveys, every_seconds=0.05):
        assert surveys.wait_for(lambda survey: survey.at > 0).trouble == "TimeoutError"


class Failing(MemoryTransport):
    def __init__(self, broker: EmbeddedBroker, there: threading.Event) -> None:
        super().__init__(broker)
        self._there = there

    def depth(self, queue: str) -> int | None:
        if not self._there.is_set():
            raise BrokerUnavailable("gone")
        return super().depth(queue)
