"""A standby server beside one that has lost its connection and not its life, over real RabbitMQ and Redis."""

import dataclasses
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from broker_config.process.addresses import LOOPBACK, WebAddress
from broker_config.protocol.messages import TrainTask
from server_worker.deployment import Deployment, serve
from server_worker.run.digests import Outcome
from server_worker.run.lock import FolderInUse, sole_use
from tests.federation import SOON, Diary, Federation, Hands, Over, OverBrokers, blobs_recipe
from tests.integration.lossy_proxy import Proxy
from tests.serving import until


class Fence(Proxy):
    """A wire that lets nobody through for a while."""

    def __init__(self, host: str, port: int) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        super().__init__(host, port)

    def cut(self) -> None:
        self._is_open.clear()
        for each in self._sockets:
            if each is not self._listener:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._is_open.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                if not self._is_open.is_set():
                    near.close()
                    continue
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                self._start(self._forward, near, far)


@contextmanager
def fence_before(url: str) -> Iterator[tuple[Fence, str]]:
    """And the URL that leads through it."""
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    fence = Fence(parts.hostname, parts.port)
    try:
        yield fence, url.replace(f":{parts.port}", f":{fence.port}")
    finally:
        fence.close()


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[FolderInUse]:
    """How often a server found the folder of its run in use"""
    found: list[FolderInUse] = []

    @contextmanager
    def noting(run_dir: Path) -> Iterator[None]:
        try:
            with sole_use(run_dir):
                yield
        except FolderInUse as error:
            found.append(error)
            raise

    monkeypatch.setattr("server_worker.deployment.sole_use", noting)
    return found


@contextmanager
def standby_of(federation: OverBrokers) -> Iterator[tuple["Future[Outcome]", Diary]]:
    """Another server of the same run and folder, once it waits for the first."""
    words = (federation.recipe, federation.directory, federation.broker_url, federation.store_url)
    web = WebAddress(LOOPBACK, 0)
    standing_by = Deployment(*words, federation.recipe.name, "cpu", standby=True, web=web)
    stop, diary = threading.Event(), Diary()
    with ThreadPoolExecutor(1) as thread:
        try:
            standby = thread.submit(serve, standing_by, diary, stop)
            until(lambda: any("another server leads run" in note for note in diary.notes))
            until(lambda: diary.notes[-1].startswith("watch it at"))
            yield standby, diary
        finally:
            stop.set()


def play(hands: Hands, tasks: list[TrainTask], rounds: int) -> None:
    for number in range(rounds):
        for task in tasks:
            hands.answer(task)
        if number + 1 < rounds:
            tasks = hands.take(3)


def shown_at(diary: Diary) -> tuple[str, list[int]]:
    """By the live page of a server: its state, and the rounds"""
    places = [note.removeprefix("watch it at ") for note in diary.notes if note.startswith("watch it at ")]
    (url,) = set(places)
    with urlopen(f"{url}api/state", timeout=SOON) as reply:
        told = json.load(reply)
    return told["state"], [row["round"] for row in told["rounds"]]


def test_the_page_of_a_standby_shows_rounds_that_closed_while_it_waits_and_each_once_when_it_leads(
    over: Over,
) -> None:
    federation = over(blobs_recipe())
    hands, server = Hands(federation), federation.serve()
    tasks = hands.take(3)
    with standby_of(federation) as (standby, diary):
        assert shown_at(diary) == ("standby", [])
        play(hands, tasks, 1)
        tasks = hands.take(3)
        until(lambda: shown_at(diary) == ("standby", [1]), lambda: shown_at(diary))
        federation.stop.set()
        assert server.result(SOON).rounds_done == 1
        until(lambda: shown_at(diary)[0] == "running", lambda: diary.notes)
        play(hands, tasks, 1)
        hands.take(3)
        until(lambda: len(shown_at(diary)[1]) > 1)
        assert shown_at(diary) == ("running", [1, 2])
    assert standby.result(SOON).stopped


def test_a_standby_gives_the_lead_back_to_a_server_that_has_lost_its_connection_and_not_its_life(
    over: Over, tmp_path: Path, refusals: list[FolderInUse]
) -> None:
    undisturbed = Federation(blobs_recipe(), tmp_path / "undisturbed")
    undisturbed.play()
    federation = over(blobs_recipe())
    with (
        fence_before(federation.broker_url) as (fence, url),
        dataclasses.replace(federation, broker_url=url) as cut_off,
    ):
        hands, server = Hands(federation), cut_off.serve()
        tasks = hands.take(3)
        with standby_of(federation) as (standby, diary):
            fence.cut()
            until(lambda: refusals, lambda: diary.notes)
            fence.mend()
            play(hands, tasks, 2)
            last = hands.take(3)
            assert not standby.done()
        assert standby.result(SOON).stopped
        play(hands, last, 1)
        outcome = server.result(SOON)
    assert (outcome.model_digest, outcome.ledger_digest) == undisturbed.digests()


def test_a_standby_that_waits_until_the_run_is_over_finds_it_done(over: Over) -> None:
    federation = over(blobs_recipe())
    hands, server = Hands(federation), federation.serve()
    tasks = hands.take(3)
    with standby_of(federation) as (standby, _):
        play(hands, tasks, 3)
        outcome = server.result(SOON)
        after = standby.result(SOON)
    assert (after.rounds_done, after.model_digest) == (3, outcome.model_digest)
    assert not after.stopped
