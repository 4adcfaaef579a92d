"""What is served at a server's address, and for how long."""

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

import server_worker.watch.watching
from broker_config.brokers.topology import DEFAULT_SITE
from broker_config.process.addresses import LOOPBACK, WebAddress
from broker_config.protocol.errors import PortTaken
from server_worker.run.folder import RunDir
from server_worker.run.recipe import Recipe
from server_worker.watch.survey import Survey
from server_worker.watch.targets import MOST_PER_SITE
from server_worker.watch.watching import Watching, watching
from tests.exposition import value
from tests.federation import blobs_recipe

ANY = WebAddress(LOOPBACK, 0)


LONG, SOON = 120.0, 60.0


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_worker.watch.watching, "_LINGER_SECONDS", 0.0)


@contextmanager
def lingering_long() -> Iterator[None]:
    """Lingering that ends inside has seen what it waits for; outside there is none."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(server_worker.watch.watching, "_LINGER_SECONDS", LONG)
        yield


def ask(watch: Watching, path: str) -> tuple[int, str]:
    assert watch.url
    try:
        with urlopen(watch.url + path, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_server_is_ready_only_while_it_leads(tmp_path: Path) -> None:
    with watching("r", blobs_recipe(), RunDir(tmp_path), ANY, threading.Event()) as watch:
        assert ask(watch, "readyz") == (503, "starting\n")
        watch.standing_by()
        assert ask(watch, "readyz") == (503, "standby: another server leads this run\n")
        watch.leading(("a", "b"), lambda: ({}, {}))
        assert ask(watch, "readyz") == (200, "ready\n")
        assert ask(watch, "healthz") == (200, "ok\n")
        watch.ended("done")
        assert ask(watch, "readyz") == (503, "done\n")
        assert json.loads(ask(watch, "api/state")[1])["state"] == "done"


def test_a_server_that_waits_for_its_brokers_is_not_ready(tmp_path: Path) -> None:
    """Alerts see it in its metrics: it may have been restarted during a run."""

    def states() -> tuple[float | None, str, str]:
        metrics = ask(watch, "metrics")[1].encode()
        assert value(metrics, "fedil_running") == 1
        state = json.loads(ask(watch, "api/state")[1])
        page = f"{state['state']}: {state['reason']}"
        return value(metrics, "fedil_brokers_reachable"), ask(watch, "readyz")[1], page

    with watching("r", blobs_recipe(), RunDir(tmp_path), ANY, threading.Event()) as watch:
        assert states() == (None, "starting\n", "starting: ")
        watch.waiting_for("Redis at h:1 is away")
        assert states() == (0, "waiting: Redis at h:1 is away\n", "starting: Redis at h:1 is away")
        watch.leading_again()
        assert states() == (1, "starting\n", "starting: ")
        watch.leading(("a", "b"), lambda: ({}, {}))
        assert states() == (1, "ready\n", "running: ")
        watch.waiting_for("Redis at h:1 is away")
        assert states() == (1, "waiting: Redis at h:1 is away\n", "running: ")
        watch.survey(Survey(trouble="no RabbitMQ answers"))
        assert states() == (0, "waiting: no RabbitMQ answers\n", "running: ")
        watch.survey(Survey())
        assert states() == (1, "ready\n", "running: ")


def test_a_standby_whose_brokers_are_away_is_waiting(tmp_path: Path) -> None:
    with watching("r", blobs_recipe(), RunDir(tmp_path), ANY, threading.Event()) as watch:
        for _ in range(2):
            watch.standing_by()
            assert ask(watch, "readyz")[1].startswith("standby")
            # The leader reports it.
            assert value(ask(watch, "metrics")[1].encode(), "fedil_brokers_reachable") is None
            watch.waiting_for("no RabbitMQ answers at h:1")
            assert ask(watch, "readyz")[1] == "waiting: no RabbitMQ answers at h:1\n"
            assert value(ask(watch, "metrics")[1].encode(), "fedil_running") == 0


def test_a_server_that_lost_the_lead_is_not_running(tmp_path: Path) -> None:
    with watching("r", blobs_recipe(), RunDir(tmp_path), ANY, threading.Event()) as watch:
        watch.leading(("a", "b"), lambda: ({}, {}))
        watch.watcher.run_started(1, 3)
        works = 'fedil_running{run="r"} 1'
        assert works in ask(watch, "metrics")[1]
        watch.standing_by()
        assert works not in ask(watch, "metrics")[1]
        watch.leading_again()
        assert works in ask(watch, "metrics")[1]


def targets(folder: Path, recipe: Recipe, *workers: tuple[str, object], at: str = LOOPBACK) -> list[str]:
    """What a server tells Prometheus, whose workers report these (site, address)."""
    facts = tuple(
        {"site": site, "name": "w", "host": socket.gethostname(), "metrics": place} for site, place in workers
    )
    watch = Watching("r", recipe, RunDir(folder), WebAddress(at))
    watch.survey(Survey(workers=facts))
    found = json.loads(watch.routes()["/targets"]({}).body)
    assert all(set(one) == {"targets", "labels"} for one in found)
    return [f"{one['labels']['site']} {one['targets'][0]}" for one in found]


SPECIAL = [
    "127.0.0.1:9000",
    "localhost:9000",
    "[::1]:9000",
    "169.254.169.254:80",
    "[fe80::1]:80",
    "0.0.0.0:80",
]
SPECIAL += ["[::ffff:169.254.169.254]:80", "[::ffff:127.0.0.1]:80", "metadata.google.internal:80", "127.1:80"]


def two_sites(**addresses: list[str]) -> Recipe:
    return blobs_recipe(federation={"sites": {"north": 3, "south": 3}, "addresses": addresses})


def test_targets_are_the_addresses_that_the_recipe_allows_a_site(tmp_path: Path) -> None:
    recipe = two_sites(north=["10.1.0.0/16", "fd00::/8", "*.north.example", "gpu-3"], south=["192.0.2.7"])
    hers = ["10.1.2.3:9000", "[fd00::7]:9000", "a.north.example:9000", "GPU-3:9000"]
    others = ["10.2.0.1:9000", "192.0.2.7:9000", "north.example.evil:9000", "gpu-4:9000", "[fe80::1]:9000"]
    bad: list[object] = [None, 7, "nonsense", "host:port", "a b:1", "x:1/../", "gpu-3:1\n", ["gpu-3:1"]]
    claimed = [("north", place) for place in (*hers, *others, *bad)]
    assert targets(tmp_path, recipe, *claimed, ("south", "192.0.2.7:80"), at="0.0.0.0") == [
        *(f"north {place}" for place in hers),
        "south 192.0.2.7:80",
    ]


@pytest.mark.parametrize("place", SPECIAL)
def test_a_site_cannot_send_prometheus_to_loopback_or_a_clouds_metadata(tmp_path: Path, place: str) -> None:
    wide = two_sites(north=["0.0.0.0/0", "::/0", "*.north.example"])
    assert targets(tmp_path, wide, ("north", place), ("south", place)) == []
    assert targets(tmp_path, blobs_recipe(), (DEFAULT_SITE, place), at="0.0.0.0") == []


def test_loopback_is_allowed_by_name_or_where_all_is_on_one_machine(tmp_path: Path) -> None:
    claimed = [(DEFAULT_SITE, place) for place in (*SPECIAL[:6], "10.1.0.1:9000")]
    assert targets(tmp_path, blobs_recipe(), *claimed) == [f"default {place}" for place in SPECIAL[:3]]
    here = ("north", "127.0.0.1:9000")
    assert targets(tmp_path, two_sites(north=["127.0.0.1"]), here, at="0.0.0.0") == ["north 127.0.0.1:9000"]


def test_a_site_has_a_bounded_number_of_targets_and_the_rest_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    many = [("north", f"10.1.{n // 250}.{n % 250}:9000") for n in range(2 * MOST_PER_SITE)]
    recipe = two_sites(north=["10.1.0.0/16"], south=["10.2.0.0/16"])
    found = targets(tmp_path, recipe, *many, *many, ("south", "10.2.0.1:9000"))
    assert len(found) == MOST_PER_SITE + 1
    assert found[-1] == "south 10.2.0.1:9000"
    (record,) = caplog.records
    assert "10.1.2.0:9000, which a worker of site north reports: allow" in record.getMessage()


def test_only_files_of_the_page_are_served(tmp_path: Path) -> None:
    with watching("r", blobs_recipe(), RunDir(tmp_path), ANY, threading.Event()) as watch:
        status, page = ask(watch, "")
        assert status == 200
        assert "<html" in page
        for path in ("page/nothing.js", "page/../watching.py", "page/..%2Fwatching.py", "page/", "events.py"):
            assert ask(watch, path)[0] == 404, path


def test_a_taken_port_is_an_error_before_anything_begins(tmp_path: Path) -> None:
    with watching("r", blobs_recipe(), RunDir(tmp_path), ANY, threading.Event()) as first:
        assert first.url
        port = int(first.url.rstrip("/").rpartition(":")[2])
        with pytest.raises(PortTaken, match=f"{port}.*--web"):
            watching(
                "r", blobs_recipe(), RunDir(tmp_path), WebAddress(LOOPBACK, port), threading.Event()
            ).__enter__()
        # A default port is not asked for: another is taken.
        usual = WebAddress(LOOPBACK, port, fixed=False)
        with watching("r", blobs_recipe(), RunDir(tmp_path), usual, threading.Event()) as second:
            assert second.url not in (None, first.url)
    assert list(tmp_path.iterdir()) == []


def test_a_server_without_readers_does_not_linger(tmp_path: Path) -> None:
    with watching("r", blobs_recipe(), RunDir(tmp_path), ANY, threading.Event()) as watch:
        ask(watch, "healthz")
        with lingering_long():
            began = time.monotonic()
            watch.linger(threading.Event())
            assert time.monotonic() - began < SOON


def test_a_server_lingers_until_its_readers_have_seen_the_end(tmp_path: Path) -> None:
    with watching("r", blobs_recipe(), RunDir(tmp_path), ANY, threading.Event()) as watch:
        ask(watch, "metrics")
        ask(watch, "api/state")
        watch.ended("done")
        with lingering_long():
            lingering = threading.Thread(target=watch.linger, args=(threading.Event(),))
            lingering.start()
            lingering.join(0.5)
            ask(watch, "metrics")
            lingering.join(0.5)
            assert lingering.is_alive(), "the page has not seen the end"
            assert json.loads(ask(watch, "api/state")[1])["state"] == "done"
            lingering.join(SOON)
            assert not lingering.is_alive(), "all have seen the end"


def test_a_reader_that_asked_just_before_the_end_has_not_seen_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watching("r", blobs_recipe(), RunDir(tmp_path), ANY, threading.Event()) as watch:
        read, may_answer, state = threading.Event(), threading.Event(), watch.live.state

        def slow(query: Mapping[str, str]) -> object:
            found = state(query)
            read.set()
            assert may_answer.wait(SOON)
            return found

        ask(watch, "api/state")
        monkeypatch.setattr(watch.live, "state", slow)
        asking = threading.Thread(target=ask, args=(watch, "api/state"))
        asking.start()
        assert read.wait(SOON)
        watch.ended("done")
        with lingering_long():
            lingering = threading.Thread(target=watch.linger, args=(threading.Event(),))
            lingering.start()
            may_answer.set()
            asking.join(SOON)
            lingering.join(1.0)
            assert lingering.is_alive(), "the page has not seen the end"
            monkeypatch.setattr(watch.live, "state", state)
            ask(watch, "api/state")
            lingering.join(SOON)
            assert not lingering.is_alive()


def test_a_stopped_server_lingers_for_prometheus_and_not_for_pages(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with watching("r", blobs_recipe(), RunDir(tmp_path), ANY, stop) as watch:
        ask(watch, "api/state")
        ask(watch, "metrics")
        watch.ended("stopped")
        with lingering_long():
            lingering = threading.Thread(target=watch.linger, args=(stop,))
            lingering.start()
            lingering.join(0.5)
            assert lingering.is_alive()
            assert "fedil_running" in ask(watch, "metrics")[1]
            lingering.join(SOON)
            assert not lingering.is_alive(), "it waits for the page"


def test_a_failed_run_stays_running_in_its_metrics_and_gives_its_reason(tmp_path: Path) -> None:
    replies = list[str]()

    def fail() -> None:
        with watching("r", blobs_recipe(), RunDir(tmp_path), ANY, threading.Event()) as watch:
            watch.leading(("a",), lambda: ({}, {}))
            watch.watcher.run_started(1, 3)
            ended = watch.ended

            def remember(state: str, reason: str = "") -> None:
                ended(state, reason)
                replies.extend((ask(watch, "metrics")[1], ask(watch, "api/state")[1]))

            watch.ended = remember  # type: ignore[method-assign]
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        fail()
    assert 'fedil_running{run="r"} 1.0' in replies[0]
    state = json.loads(replies[1])
    assert (state["state"], state["reason"]) == ("failed", "the disk is full")


def test_a_server_that_leads_again_is_ready_again(tmp_path: Path) -> None:
    with watching("r", blobs_recipe(), RunDir(tmp_path), ANY, threading.Event()) as watch:
        watch.leading_again()
        assert ask(watch, "readyz") == (503, "starting\n")
        watch.leading(("a",), lambda: ({}, {}))
        watch.standing_by()
        watch.leading_again()
        assert ask(watch, "readyz") == (200, "ready\n")
        assert json.loads(ask(watch, "api/state")[1])["state"] == "running"
