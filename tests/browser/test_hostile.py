"""Names and details that sites write are shown as text and break neither page nor charts."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from broker_config.process.http import WebServer
from server_worker.run.folder import RunDir
from server_worker.watch.events import ClientOutcome
from server_worker.watch.notices import Notice
from server_worker.watch.survey import Survey
from server_worker.watch.watching import Watching
from tests.browser import synthetic
from tests.browser.checks import chart_texts, open_page, overlapping, scrolls_sideways, wider_than_the_window
from tests.browser.chromium import complaints, new_page, wait_until
from tests.federation import blobs_recipe
from tests.unit.ops.records import make_record

IMAGE = "<img src=x onerror=window.hurt=1>"
SCRIPT = "</bdi></td><script>window.hurt=1</script>"
REVERSED = "\u202eevil\u2066\u202d abc"
LONG = "W" * 10_000
HOSTILE = (
    IMAGE,
    SCRIPT,
    REVERSED,
    LONG,
    "'\"><svg onload=window.hurt=1>",
    "\x00\x07\ud800 ☠ नमस्ते",
    " ",
    "javascript:1",
)


def hostile_watch(directory: Path) -> Watching:
    """Hostile text in every field that a site, a recipe or a class name can fill."""
    recipe = blobs_recipe(description=IMAGE + LONG)
    watch = Watching(IMAGE, recipe, RunDir(directory))
    watch.leading(HOSTILE, lambda: ({}, {}))
    watch.watcher.run_started(1, 30)
    for number in range(1, 4):
        outcomes = [ClientOutcome(c, "refused", detail=text) for c, text in enumerate(HOSTILE)]
        outcomes += [
            ClientOutcome(90, IMAGE, IMAGE, values={"cosine": 0.2}),
            ClientOutcome(91, "accepted", values={"cosine": float("nan")}),
        ]
        record = make_record(
            number,
            outcomes=tuple(outcomes),
            verdict=IMAGE,
            series=dict.fromkeys(HOSTILE, 0.3) | {"loss_server": float("nan"), "credible": 7.0},
            refused=dict.fromkeys(HOSTILE, 2),
            per_class=(0.5, None, 0.7, 0.9, 1.0, 0.0, 0.4, 0.3),
            accuracy={"global": 0.5, IMAGE: 0.4, "server": float("inf")},
            delta_norm=float("inf") if number == 2 else 0.0 if number == 3 else 1.0,
            seconds={IMAGE: 1.0, "total": 1.0, "wait": 0.9},
        )
        synthetic.append_record(RunDir(directory).history, record)
        watch.watcher.round_closed(record)
    for text in HOSTILE:
        watch.watcher.note(Notice(text))
    watch.survey(hostile_survey())
    watch.watcher.phase(4, IMAGE)
    return watch


def hostile_survey() -> Survey:
    keys = (
        "name",
        "site",
        "device",
        "state",
        "version",
        "round",
        "client",
        "tasks_done",
        "images_per_second",
        "since",
    )
    workers: list[dict[str, Any]] = [dict.fromkeys(keys, text) for text in HOSTILE]
    workers.append(
        {"name": ["a"], "site": {"b": 1}, "tasks_done": 10**400, "images_per_second": float("nan")}
    )
    return Survey(
        at=1.0, workers=tuple(workers), depths={IMAGE: 1}, store={IMAGE: 2.0, LONG: 3.0}, trouble=IMAGE + LONG
    )


@pytest.mark.parametrize("width", [360, 1280])
def test_no_text_from_a_site_becomes_markup(browser: Browser, tmp_path: Path, width: int) -> None:
    watch = hostile_watch(tmp_path)
    with WebServer(synthetic.ANY_PORT, watch.routes()) as server, new_page(browser, width) as page:
        open_page(page, server.url, 3)
        wait_until(page, "document.querySelectorAll('#round-body tbody tr').length > 5")
        assert page.inner_text("#run") == IMAGE
        for selector in ("#notes", "#fleet-body", "#round-body"):
            assert IMAGE in page.inner_text(selector)
            assert SCRIPT in page.inner_text(selector)
        show_all_tables(page)
        assert page.evaluate("document.querySelectorAll('body img').length") == 1  # the logo
        assert page.evaluate("document.querySelectorAll('body script').length") == 0
        assert not page.evaluate("'hurt' in window")
        assert not scrolls_sideways(page)
        assert wider_than_the_window(page) == []
        assert complaints(page) == []


def show_all_tables(page: Page) -> None:
    page.evaluate(
        """[...document.querySelectorAll('#panels button')].filter((button) => button.textContent === 'table')
           .forEach((button) => button.click())"""
    )
    assert page.evaluate("document.querySelectorAll('#panels tbody tr').length") > 10


@pytest.mark.parametrize("width", [360, 1280])
def test_hostile_names_break_no_chart(browser: Browser, tmp_path: Path, width: int) -> None:
    watch = hostile_watch(tmp_path)
    with WebServer(synthetic.ANY_PORT, watch.routes()) as server, new_page(browser, width) as page:
        open_page(page, server.url, 3)
        texts = chart_texts(page)
        assert overlapping(texts) == []
        assert [text["text"] for text in texts if not text["inside"]] == []
        assert page.evaluate("document.querySelector('.top').getBoundingClientRect().height") < 900
        zero = "document.querySelectorAll('#delta .floor').length"
        assert page.evaluate(zero) > 0, (
            "a step of 0, which a logarithmic axis cannot hold, is drawn at its floor"
        )
