"""The live page while a run continues, while its server is down, and over a slow network."""

import time
from pathlib import Path

from playwright.sync_api import Page, expect

from broker_config.process.addresses import LOOPBACK, WebAddress
from broker_config.process.http import WebServer
from server_worker.run.folder import RunDir
from server_worker.run.history import read_records
from server_worker.watch.survey import Survey
from server_worker.watch.watching import Watching
from tests.browser import synthetic
from tests.browser.checks import ROUNDS_DRAWN, count_dots, count_points, open_page, wait_for_rounds
from tests.browser.chromium import complaints, wait_until
from tests.browser.watched import watched
from tests.federation import SOON, blobs_recipe


def test_the_page_follows_a_run_without_a_reload(page: Page, tmp_path: Path) -> None:
    federation = watched(blobs_recipe(rounds=6), tmp_path)
    with federation.served() as watch, federation.playing() as played:
        assert watch.url
        page.goto(watch.url)
        page.evaluate("window.sameDocument = true")
        # The gate is closed: all three clients have answered, and the round cannot close.
        wait_until(page, "document.querySelector('#answers').ariaLabel === '3 of 3 clients have answered'")
        wait_until(page, "document.querySelectorAll('#value-cosine .unfinished').length > 0")
        wait_until(page, "document.querySelector('#now-phase').textContent.startsWith('round closes')")
        assert page.evaluate(ROUNDS_DRAWN) == 0
        assert page.inner_text("#now-round") == "Round 1"
        for rounds in (2, 3):
            # A round is published when the next one begins, which then waits at the gate.
            federation.gate.let(rounds - len(list(read_records(federation.where.history))))
            wait_for_rounds(page, rounds)
            assert page.evaluate(ROUNDS_DRAWN) == rounds
            assert count_points(page, "accuracy", "s-1") == rounds
            assert page.inner_text("#now-round") == f"Round {rounds + 1}"
        expect(page.locator("#fleet-body")).to_contain_text("tasks waiting")
        federation.gate.let(6)
        assert played.result(SOON) is not None
        expect(page.locator("#state")).to_have_text("done")
        wait_for_rounds(page, 6)
        assert page.evaluate("window.sameDocument")
        assert complaints(page) == []
    accepted = sum(record.accepted for record in read_records(federation.where.history))
    assert count_dots(page, "accepted") == accepted


def test_the_page_survives_a_server_restart(page: Page, tmp_path: Path) -> None:
    """The server stops in round 3 and a second one resumes the run at the same address."""
    federation = watched(blobs_recipe(rounds=5), tmp_path)
    with federation.served() as watch:
        assert watch.url
        with federation.playing():
            federation.gate.let(2)
            open_page(page, watch.url, 2)
            page.evaluate("window.sameDocument = true")
        port = int(watch.url.rstrip("/").rpartition(":")[2])
    expect(page.locator("#trouble")).to_contain_text("ast seen")

    second = federation.again()
    with second.served(WebAddress(LOOPBACK, port)) as watch, second.playing() as played:
        wait_for_rounds(page, 2)
        expect(page.locator("#state")).to_have_text("running")
        assert not page.evaluate("document.querySelector('#trouble').checkVisibility()")
        second.gate.let(5)
        assert played.result(SOON) is not None
        wait_for_rounds(page, 5)
        expect(page.locator("#state")).to_have_text("done")
        records = list(read_records(second.where.history))
        assert [record.round for record in records] == [1, 2, 3, 4, 5]
        assert count_points(page, "accuracy", "s-1") == 5
        assert count_dots(page, "accepted") == sum(record.accepted for record in records)
        assert page.evaluate("window.sameDocument")


def test_repeated_rounds_replace_the_earlier_ones(page: Page, tmp_path: Path) -> None:
    """A restarted server may repeat rounds that the page has shown."""
    watch = synthetic.watching_of(tmp_path, 20, 5)
    with WebServer(synthetic.ANY_PORT, watch.routes()) as server:
        open_page(page, server.url, 20)
        repeated = list(synthetic.round_records(18, 5))
        watch.watcher.run_started(15, 30)
        for record in repeated[14:17]:
            watch.watcher.round_closed(record)
        wait_until(page, f"{ROUNDS_DRAWN} === 17")
        assert count_points(page, "accuracy", "s-1") == 17


def test_another_run_at_the_same_address_replaces_the_first(page: Page, tmp_path: Path) -> None:
    watch = synthetic.watching_of(tmp_path, 20, 5)
    with WebServer(synthetic.ANY_PORT, watch.routes()) as server:
        open_page(page, server.url, 20)
        port = server.port
    (tmp_path / "other").mkdir()
    other = Watching("other-run", blobs_recipe(), RunDir(tmp_path / "other"))
    with WebServer(WebAddress(LOOPBACK, port), other.routes()):
        expect(page.locator("#run")).to_have_text("other-run")
        wait_until(page, "document.querySelector('#nothing').checkVisibility()")
        assert page.evaluate('[...document.querySelectorAll("#panels > section")].every((one) => one.hidden)')


def test_a_page_opened_late_shows_all_rounds(page: Page, tmp_path: Path) -> None:
    watch = synthetic.watching_of(tmp_path, 900, 3)
    with WebServer(synthetic.ANY_PORT, watch.routes()) as server:
        open_page(page, server.url, 900)
        assert count_points(page, "accuracy", "s-1") == 900
        page.evaluate("document.querySelector('#range input[value=\"30\"]').click()")
        wait_until(page, "document.querySelectorAll('#accuracy .dots').length > 0")
        assert count_points(page, "accuracy", "s-1") == 30


# Divides the page's long time-outs by four, so that the test is not slow, and records every state that it shows.
SHORTER_TIMEOUTS = """
  const later = window.setTimeout;
  window.setTimeout = (run, ms, ...more) => later(run, ms >= 5000 ? ms / 4 : ms, ...more);
  const timeout = AbortSignal.timeout.bind(AbortSignal);
  AbortSignal.timeout = (ms) => timeout(ms / 4);
  window.shown = [];
  document.addEventListener("DOMContentLoaded", () => {
    const state = document.getElementById("state"), nothing = document.getElementById("nothing");
    const record = () => shown.push(nothing.checkVisibility() ? "nothing" : state.textContent);
    new MutationObserver(record).observe(document.body, {subtree: true, childList: true, attributes: true});
  });
"""


def test_over_a_slow_network_the_page_loads_and_shows_no_wrong_state(page: Page, tmp_path: Path) -> None:
    watch = synthetic.watching_of(tmp_path, count=160, clients=100)
    with WebServer(synthetic.ANY_PORT, watch.routes()) as server:
        page.add_init_script(SHORTER_TIMEOUTS)
        slow = {"offline": False, "latency": 50, "downloadThroughput": 12_000, "uploadThroughput": 12_000}
        page.context.new_cdp_session(page).send("Network.emulateNetworkConditions", slow)
        page.goto(server.url)
        wait_for_rounds(page, 160)
        assert page.inner_text("#state") == "running"
        assert set(page.evaluate("shown")) <= {"connecting", "running"}
        assert complaints(page) == []


def test_a_server_that_waits_for_a_broker_shows_the_reason(page: Page, tmp_path: Path) -> None:
    watch = Watching("r", blobs_recipe(), RunDir(tmp_path))
    with WebServer(synthetic.ANY_PORT, watch.routes()) as server:
        page.goto(server.url)
        expect(page.locator("#now-phase")).to_have_text("starting")
        watch.waiting_for("Redis at h:1 is away (Connection refused)")
        wait_until(page, "document.querySelector('#now-phase').textContent.startsWith('waiting since')")
        assert page.inner_text("#now-phase").endswith(": Redis at h:1 is away (Connection refused)")
        watch.leading_again()
        expect(page.locator("#now-phase")).to_have_text("starting")
        assert complaints(page) == []


def test_trouble_is_at_the_top_and_the_run_is_not_called_running_meanwhile(
    page: Page, tmp_path: Path
) -> None:
    watch = synthetic.watching_of(tmp_path, 3, 5)
    watch.watcher.phase(4, "wait")
    with WebServer(synthetic.ANY_PORT, watch.routes()) as server:
        open_page(page, server.url, 3)
        expect(page.locator("#now-left")).to_contain_text("left")
        now = time.time()
        for at in (now - 56.0, now - 51.0):
            watch.survey(Survey(at, absent=("south", "north"), num_sites=2))
        expect(page.locator("#trouble")).to_contain_text("site south has no worker, waiting for 5")
        assert page.inner_text("#state") == "waiting"
        assert page.inner_text("#now-left") == ""
        box, charts = (page.locator(name).bounding_box() for name in ("#trouble", ".now"))
        assert box
        assert charts
        assert box["y"] < charts["y"]
        watch.survey(Survey(now, num_sites=2))
        expect(page.locator("#state")).to_have_text("running")
        assert not page.evaluate("document.querySelector('#trouble').checkVisibility()")
        assert complaints(page) == []


def test_a_failed_survey_of_the_brokers_is_shown(page: Page, tmp_path: Path) -> None:
    watch = synthetic.watching_of(tmp_path, 3, 5)
    with WebServer(synthetic.ANY_PORT, watch.routes()) as server:
        open_page(page, server.url, 3)
        watch.survey(synthetic.failed_survey("connection refused"))
        expect(page.locator("#trouble")).to_contain_text("connection refused")
        assert "Sites without a worker: default" in page.inner_text("#fleet-body")
