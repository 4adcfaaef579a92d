"""A server's web pages at one address: metrics, live page, health."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import resources

from broker_config.process.addresses import WebAddress
from broker_config.process.http import Reply, Route, WebServer
from broker_config.process.metrics import EXPOSITION, Bytes
from server_worker.run.folder import RunDir
from server_worker.run.history import read_records
from server_worker.run.recipe import Recipe
from server_worker.watch import palette
from server_worker.watch.events import Watcher
from server_worker.watch.live import LiveRun
from server_worker.watch.metrics import ServerMetrics
from server_worker.watch.notices import Notice
from server_worker.watch.page_rows import shown_classes
from server_worker.watch.survey import Survey
from server_worker.watch.targets import Targets, allowed_addresses
from server_worker.watch.trouble import TroubleWatch

_LINGER_SECONDS = 20.0
_ASKED_LATELY_SECONDS = 60.0
_ROUNDS_SHOWN_AGAIN = (3, 100)
"""At least, at most: an alert counts up to three rounds in which no update was accepted."""
_KINDS = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


class Watching:
    def __init__(self, run: str, recipe: Recipe, where: RunDir, address: WebAddress | None = None) -> None:
        self.metrics = ServerMetrics(run, recipe)
        self.live = LiveRun(run, recipe, where.history)
        self.troubles = TroubleWatch(recipe.min_sites)
        self.watcher = Watcher(self.metrics, self.live, self.troubles)
        self.troubles.on_change = self.watcher.troubles
        self._history = where.history
        self._evaluated_every = recipe.evaluate_every
        self._unready = "starting"
        self._targets = Targets(allowed_addresses(recipe, address))
        self._workers: tuple[Mapping[str, object], ...] = ()
        self._asked: dict[str, float] = {}
        self._led, self._waits_for = False, ""
        self._trouble = ""
        self.url: str | None = None

    def tell_address(self, note: Callable[[Notice], None]) -> None:
        if self.url:
            note(Notice(f"watch it at {self.url}", is_trouble=False))

    def waiting_for(self, what: str) -> None:
        """A broker is unreachable. Once this server leads, a survey tells when it is reachable again."""
        self.troubles.brokers_away(what)
        if self._led:
            self._trouble = what
        if self._led or what == self._waits_for:
            return
        self._waits_for = what
        self._unready = f"waiting: {what}"
        self.live.enter("starting", what)
        self.metrics.fleet.reachable = False

    def standing_by(self) -> None:
        self._waits_for, self._unready = "", "standby: another server leads this run"
        self.live.enter("standby")
        self.metrics.fleet.reachable = None  # the leader reports it
        self.metrics.last.running = False

    def leading(self, class_names: tuple[str, ...], traffic: Bytes) -> None:
        self._led, self._unready = True, ""
        self.live.enter("running")
        self.live.learn(class_names=shown_classes(class_names))
        self.metrics.traffic.source = traffic
        self._show_again()

    def leading_again(self) -> None:
        """The broker is reachable again, or this server leads again. A server that has never led is still starting."""
        self.metrics.fleet.reachable = True
        self.troubles.brokers_back()
        if self._led:
            self._unready = ""
            self.live.enter("running")
            self.metrics.last.running = True
        elif self._waits_for:
            self._waits_for, self._unready = "", "starting"
            self.live.enter("starting")

    def _show_again(self) -> None:
        """Rounds from before a restart, back to the last one whose accuracy was measured."""
        fewest, most = _ROUNDS_SHOWN_AGAIN
        rounds = min(max(self._evaluated_every, fewest), most)
        for record in deque(read_records(self._history), maxlen=rounds):
            self.metrics.restore(record)

    def survey(self, survey: Survey) -> None:
        self._workers, self._trouble = survey.workers, survey.trouble
        self.troubles.survey(survey)
        self.metrics.survey(survey)
        self.live.survey(survey)

    def ended(self, state: str, reason: str = "") -> None:
        """`state`: done, stopped or failed"""
        self._unready = state
        self.troubles.over()
        self.live.enter(state, reason)
        if state != "failed":  # alerts shall miss a server that failed
            self.metrics.last.running = False

    def linger(self, stop: threading.Event) -> None:
        """Keeps serving until Prometheus and pages that asked lately have asked once more, and have seen the end. A
        server that is asked to stop waits for Prometheus only."""
        ended = time.monotonic()
        asked = dict(self._asked)
        waiting = {reader for reader, at in asked.items() if ended - at < _ASKED_LATELY_SECONDS}
        while waiting and time.monotonic() - ended < _LINGER_SECONDS:
            time.sleep(0.1)
            waiting = {reader for reader in waiting if self._asked[reader] <= ended}
            waiting -= {"page"} if stop.is_set() else set()

    def _noting(self, reader: str, route: Route) -> Route:
        def noted(query: Mapping[str, str]) -> Reply:
            asked = time.monotonic()  # before: a reply made while the run ends may not show its end
            reply = route(query)
            self._asked[reader] = asked
            return reply

        return noted

    def routes(self) -> dict[str, Route]:
        return {
            "/": lambda _: _page_file("index.html"),
            "/page/": lambda query: _page_file(query["rest"]),
            "/api/state": self._noting("page", lambda query: _json(self.live.state(query))),
            "/api/round": lambda query: _json(self.live.round(query)),
            "/metrics": self._noting("metrics", lambda _: Reply(self.metrics.render(), EXPOSITION)),
            "/healthz": lambda _: Reply(b"ok\n"),
            "/readyz": lambda _: self._ready(),
            "/targets": lambda _: _json(self._targets.of(self._workers)),
        }

    def _ready(self) -> Reply:
        why = self._unready or (self._trouble and f"waiting: {self._trouble}")
        return Reply(f"{why}\n".encode(), status=503) if why else Reply(b"ready\n")


@contextmanager
def watching(
    run: str, recipe: Recipe, where: RunDir, address: WebAddress | None, stop: threading.Event
) -> Iterator[Watching]:
    """Raises PortTaken before anything else begins."""
    with ExitStack() as stack:
        watch = Watching(run, recipe, where, address)
        if address is not None:
            watch.url = stack.enter_context(WebServer(address, watch.routes())).url
        try:
            yield watch
        except Exception as error:
            watch.ended("failed", str(error))
            raise
        finally:
            watch.linger(stop)


def _json(value: object) -> Reply:
    return Reply(json.dumps(value, separators=(",", ":")).encode(), "application/json")


def _page_file(name: str) -> Reply:
    if name == "palette.css":
        return Reply(palette.css().encode(), _KINDS["css"])
    file = resources.files("server_worker.watch") / "page" / name
    if "/" in name or not file.is_file():
        return Reply(b"there is no such file\n", status=404)
    return Reply(file.read_bytes(), _KINDS.get(name.rpartition(".")[2], "application/octet-stream"))
