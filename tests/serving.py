"""A server's loop in a thread of its own, and what happens to it at a test's word: silence, lost sites, lost time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from broker_config.protocol.messages import TrainTask
from server_worker.coordinator import Stopped
from server_worker.round.dead_letters import DeadTasks
from server_worker.run.progress import Progress
from tests.federation import SITE, SOON, Federation, Hands

if TYPE_CHECKING:
    import pytest

THERE = "there"


class Server:
    """A coordinator in a thread of its own."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self.transport = federation.connect()
        self._thread = threading.Thread(target=self._run)
        self._error: BaseException | None = None
        self.progress: Progress | None = None

    def _run(self) -> None:
        try:
            self.progress = self._federation.coordinator(self.transport).run()
        except Stopped:
            pass
        except Exception as error:
            self._error = error
        finally:
            self.transport.close()

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> None:
        self._thread.join(SOON)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> Progress | None:
        """How far it has come; None if it was stopped."""
        self.wait()
        assert not self.is_alive
        if self._error is not None:
            raise self._error
        return self.progress

    def die(self) -> None:
        self._federation.stop.set()
        assert self.end() is None


@contextmanager
def serving(federation: Federation) -> Iterator[Server]:
    """Ends with the context, however far it has come."""
    server = Server(federation)
    server.start()
    try:
        yield server
    finally:
        federation.stop.set()
        server.wait()


@contextmanager
def served(federation: Federation) -> Iterator[tuple[Server, Hands]]:
    """And its clients"""
    hands = Hands(federation)
    with closing(hands.transport), serving(federation) as server:
        yield server, hands


class Looks:
    """How often servers have looked through the dead letters, which they do at every pause now."""

    def __init__(self, patch: "pytest.MonkeyPatch") -> None:
        for module in ("round", "buffered"):
            patch.setattr(f"server_worker.{module}.loop.QUIET_SECONDS", 0.0)
        patch.setattr("server_worker.round.dead_letters._LOOKING_SHARE", 1.0)
        patch.setattr("server_worker.round.dead_letters._LOOK_ANYWAY_SECONDS", 0.0)
        self._done, look = threading.Semaphore(0), DeadTasks.look

        def counted(dead_tasks: DeadTasks, on_task: Callable[[TrainTask, str], None]) -> None:
            look(dead_tasks, on_task)
            self._done.release()

        patch.setattr(DeadTasks, "look", counted)

    def until_the_next(self) -> None:
        while self._done.acquire(blocking=False):
            pass
        for _ in range(2):  # the first may have begun before
            assert self._done.acquire(timeout=SOON)


class TwoSites:
    """The first half of the clients belongs to one site and the rest to the other; either may go, and come back."""

    def __init__(self, gone: str | None = None, num_clients: int = 6) -> None:
        self._half = num_clients // 2
        self.gone = gone

    def names(self) -> tuple[str, ...]:
        return (SITE, THERE)

    def site_of(self, client: int) -> str:
        return SITE if client < self._half else THERE

    def wrong_sender(self, sender: str | None, client: int) -> str:
        return ""

    min_sites = 1

    def are_enough(self) -> bool:
        return len(self.present()) >= self.min_sites

    def present(self) -> tuple[str, ...]:
        return tuple(site for site in self.names() if site != self.gone)


class Clock:
    """Stands still, but for jumps."""

    def __init__(self) -> None:
        self.now = 0.0
        self._reads = 0

    def __call__(self) -> float:
        self._reads += 1
        return self.now

    def until_it_was_read(self, times: int = 20) -> None:
        """So often that whoever goes by this clock has drawn its conclusions."""
        enough = self._reads + times
        until(lambda: self._reads >= enough)


def until(
    condition: Callable[[], object], said: Callable[[], object] = lambda: "", seconds: float = SOON
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"nothing happened; {said()}"
        time.sleep(0.01)
