"""The page while its run goes on, and while its server does not."""

from pathlib import Path

from broker_config.process.addresses import LOOPBACK, WebAddress
from broker_config.process.http import WebServer
from server_worker.run.folder import RunDir
from server_worker.run.history import read_records
from server_worker.watch.watching import Watching
from tests.browser import made_up
from tests.browser.chromium import Page
from tests.browser.looking import DRAWN, dots, open_page, points, see_rounds
from tests.browser.watched import watched
from tests.federation import SOON, blobs_recipe


def test_it_follows_a_run_without_being_loaded_again(page: Page, tmp_path: Path) -> None:
    federation = watched(blobs_recipe(rounds=6), tmp_path)
    with federation.served() as watch, federation.playing() as played:
        assert watch.url
        page.open(watch.url)
        page.evaluate("window.sameDocument = true")
        # The gate is shut: all three have answered, and the round cannot close.
        page.wait("document.querySelector('#answers').ariaLabel === '3 of 3 clients have answered'")
        page.wait("document.querySelectorAll('#cosines .unfinished').length > 0")
        page.wait("document.querySelector('#now-phase').textContent.startsWith('the round closes')")
        assert page.evaluate(DRAWN) == 0
        assert page.text("#now-round") == "Round 1"
        for rounds in (2, 3):
            # A round is told of when the next one begins, and that one waits at the gate.
            federation.gate.let(rounds - len(list(read_records(federation.where.history))))
            see_rounds(page, rounds)
            assert page.evaluate(DRAWN) == rounds
            assert points(page, "accuracy", "s-1") == rounds
            assert page.text("#now-round") == f"Round {rounds + 1}"
        page.wait("document.querySelector('#fleet-body').innerText.includes('tasks waiting')")
        federation.gate.let(6)
        assert played.result(SOON) is not None
        page.wait("document.querySelector('#state').textContent === 'done'")
        see_rounds(page, 6)
        assert page.evaluate("window.sameDocument")
        assert page.complaints == []
    accepted = sum(record.accepted for record in read_records(federation.where.history))
    assert dots(page, "accepted") == accepted


def test_it_survives_its_server(page: Page, tmp_path: Path) -> None:
    """Stopped in round 3 and served again at the same address, the run goes on; so does the page."""
    federation = watched(blobs_recipe(rounds=5), tmp_path)
    with federation.served() as watch:
        assert watch.url
        with federation.playing():
            federation.gate.let(2)
            open_page(page, watch.url, 2)
            page.evaluate("window.sameDocument = true")
        port = int(watch.url.rstrip("/").rpartition(":")[2])
    page.wait("document.querySelector('#trouble').textContent.includes('ast seen')")

    second = federation.again()
    with second.served(WebAddress(LOOPBACK, port)) as watch, second.playing() as played:
        see_rounds(page, 2)
        page.wait("document.querySelector('#state').textContent === 'running'")
        assert not page.evaluate("document.querySelector('#trouble').checkVisibility()")
        second.gate.let(5)
        assert played.result(SOON) is not None
        see_rounds(page, 5)
        page.wait("document.querySelector('#state').textContent === 'done'")
        records = list(read_records(second.where.history))
        assert [record.round for record in records] == [1, 2, 3, 4, 5]
        assert points(page, "accuracy", "s-1") == 5
        assert dots(page, "accepted") == sum(record.accepted for record in records)
        assert page.evaluate("window.sameDocument")


def test_rounds_that_are_played_again_replace_the_old_ones(page: Page, tmp_path: Path) -> None:
    """A server that comes back may have lost rounds that the page has seen."""
    watch = made_up.watching_of(tmp_path, 20, 5)
    with WebServer(made_up.ANYWHERE_HERE, watch.routes()) as server:
        open_page(page, server.url, 20)
        again = list(made_up.made_up_rounds(18, 5))
        watch.watcher.run_started(15, 30)
        for record in again[14:17]:
            watch.watcher.round_closed(record)
        page.wait(f"{DRAWN} === 17")
        assert points(page, "accuracy", "s-1") == 17


def test_another_run_at_the_same_address_is_shown_as_such(page: Page, tmp_path: Path) -> None:
    watch = made_up.watching_of(tmp_path, 20, 5)
    with WebServer(made_up.ANYWHERE_HERE, watch.routes()) as server:
        open_page(page, server.url, 20)
        port = server.port
    (tmp_path / "other").mkdir()
    other = Watching("other-run", blobs_recipe(), RunDir(tmp_path / "other"))
    with WebServer(WebAddress(LOOPBACK, port), other.routes()):
        page.wait("document.querySelector('#run').textContent === 'other-run'")
        page.wait("document.querySelector('#nothing').checkVisibility()")
        assert page.evaluate('[...document.querySelectorAll("#panels > section")].every((one) => one.hidden)')


def test_a_page_that_comes_late_gets_all_rounds(page: Page, tmp_path: Path) -> None:
    watch = made_up.watching_of(tmp_path, 900, 3)
    with WebServer(made_up.ANYWHERE_HERE, watch.routes()) as server:
        open_page(page, server.url, 900)
        assert points(page, "accuracy", "s-1") == 900
        page.evaluate("document.querySelector('#range input[value=\"30\"]').click()")
        page.wait("document.querySelectorAll('#accuracy .dots').length > 0")
        assert points(page, "accuracy", "s-1") == 30


# A page that is patient for a quarter of the time, so that a test need not be slow itself.
HURRIED = """
  const later = window.setTimeout;
  window.setTimeout = (run, ms, ...more) => later(run, ms >= 5000 ? ms / 4 : ms, ...more);
  const timeout = AbortSignal.timeout.bind(AbortSignal);
  AbortSignal.timeout = (ms) => timeout(ms / 4);
  window.said = [];
  document.addEventListener("DOMContentLoaded", () => {
    const state = document.getElementById("state"), nothing = document.getElementById("nothing");
    const look = () => said.push(nothing.checkVisibility() ? "nothing" : state.textContent);
    new MutationObserver(look).observe(document.body, {subtree: true, childList: true, attributes: true});
  });
"""


def test_a_slow_link_is_waited_for_and_nothing_untrue_is_said_meanwhile(page: Page, tmp_path: Path) -> None:
    watch = made_up.watching_of(tmp_path, count=160, clients=100)
    with WebServer(made_up.ANYWHERE_HERE, watch.routes()) as server:
        page.call("Page.addScriptToEvaluateOnNewDocument", source=HURRIED)
        page.call(
            "Network.emulateNetworkConditions",
            offline=False,
            latency=50,
            downloadThroughput=12_000,
            uploadThroughput=12_000,
        )
        page.open(server.url)
        see_rounds(page, 160)
        assert page.text("#state") == "running"
        assert set(page.evaluate("said")) <= {"connecting", "running"}
        assert page.complaints == []


def test_what_a_server_waits_for_before_it_leads_is_told(page: Page, tmp_path: Path) -> None:
    watch = Watching("r", blobs_recipe(), RunDir(tmp_path))
    with WebServer(made_up.ANYWHERE_HERE, watch.routes()) as server:
        page.open(server.url)
        page.wait("document.querySelector('#now-phase').textContent === 'starting'")
        watch.waiting_for("Redis at h:1 is away (Connection refused)")
        page.wait("document.querySelector('#now-phase').textContent.startsWith('waiting since')")
        assert page.text("#now-phase").endswith(": Redis at h:1 is away (Connection refused)")
        watch.leading_again()
        page.wait("document.querySelector('#now-phase').textContent === 'starting'")
        assert page.complaints == []


def test_trouble_with_the_brokers_is_told(page: Page, tmp_path: Path) -> None:
    watch = made_up.watching_of(tmp_path, 3, 5)
    with WebServer(made_up.ANYWHERE_HERE, watch.routes()) as server:
        open_page(page, server.url, 3)
        watch.survey(made_up.troubled_survey("connection refused"))
        page.wait("document.querySelector('#trouble').textContent.includes('connection refused')")
        assert "Sites without a worker: default" in page.text("#fleet-body")
