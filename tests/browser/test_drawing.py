"""The page of a real run in a real browser: what it draws, and that it can be read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_config.process.http import WebServer
from server_worker.run.history import read_records
from server_worker.watch.events import ClientOutcome, RoundRecord
from tests.browser import made_up
from tests.browser.chromium import Chromium, Page
from tests.browser.looking import (
    chart_texts,
    dots,
    faint_texts,
    open_page,
    overlapping,
    points,
    scrolls_sideways,
    wider_than_the_window,
)
from tests.browser.watched import watched
from tests.federation import SOON, blobs_recipe
from tests.unit.ops.records import make_record

ROUNDS = 12
EVERY_PANEL = {"accuracy", "delta", "cosines", "labels", "classes", "losses", "seconds"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[RoundRecord]]]:
    """A real federation's whole run, served: its address, and its rounds."""
    federation = watched(blobs_recipe(rounds=ROUNDS), tmp_path_factory.mktemp("run"))
    federation.gate.let(ROUNDS)
    with federation.served() as watch:
        with federation.playing() as played:
            assert played.result(SOON) is not None
        assert watch.url
        yield watch.url, list(read_records(federation.where.history))


def test_every_round_and_every_update_is_drawn(page: Page, run: tuple[str, list[RoundRecord]]) -> None:
    url, records = run
    open_page(page, url, ROUNDS)
    shown = page.evaluate(
        '[...document.querySelectorAll("#panels > section:not([hidden])")].map((one) => one.id)'
    )
    assert set(shown) == EVERY_PANEL
    assert points(page, "accuracy", "s-1") == points(page, "accuracy", "s-2") == ROUNDS
    assert points(page, "delta", "s-1") == ROUNDS
    outcomes = [outcome for record in records for outcome in record.outcomes]
    accepted = sum(outcome.outcome == "accepted" for outcome in outcomes)
    rejected = sum(outcome.outcome == "rejected_cosine" for outcome in outcomes)
    assert dots(page, "accepted") == accepted > 0
    assert dots(page, "rejected") == 2 * rejected  # a cross has two strokes
    bars = page.evaluate(
        'document.querySelector("#seconds .chart .f-1").getAttribute("d").match(/M/g).length'
    )
    assert bars == ROUNDS
    names = page.evaluate(
        '[...document.querySelectorAll("#classes .class-name")].map((one) => one.textContent)'
    )
    assert names == ["a", "b", "c", "d"]


def test_the_header_says_how_the_run_is(page: Page, run: tuple[str, list[RoundRecord]]) -> None:
    url, records = run
    open_page(page, url, ROUNDS)
    assert page.text("#run") == "blobs"
    assert page.text("#state") == "done"
    assert page.text(".now-round") == f"Round {ROUNDS} of {ROUNDS}"
    share = records[-1].accuracy["global"]
    assert f"{100 * share:.2f} %" in page.text("#figures")
    gain = "points(0.0391) + '; ' + points(-0.0391)"
    said = page.evaluate(f"import('/page/numbers.js').then(({{ points }}) => {gain})")
    assert said == "3.9 points over; 3.9 points under"
    assert page.evaluate("document.querySelector('#verdict-why').hidden")
    page.evaluate("document.querySelector('#verdict').click()")
    assert "never prove convergence" in page.text("#verdict-why")


def test_nothing_overlaps_and_nothing_complains(page: Page, run: tuple[str, list[RoundRecord]]) -> None:
    open_page(page, run[0], ROUNDS)
    texts = chart_texts(page)
    assert len(texts) > 40
    assert overlapping(texts) == []
    assert [text["said"] for text in texts if not text["inside"]] == []
    assert page.complaints == []


def test_a_round_is_opened_from_a_chart_and_explained(page: Page, run: tuple[str, list[RoundRecord]]) -> None:
    url, records = run
    open_page(page, url, ROUNDS)
    box = page.evaluate(
        """(() => {
          document.querySelector("#accuracy").scrollIntoView({block: "center"});
          const {left, top} = document.querySelector("#accuracy .chart").getBoundingClientRect();
          const label = [...document.querySelectorAll("#accuracy .tick")].find((one) => one.textContent === "4");
          const at = label.getBoundingClientRect();
          return {x: (at.left + at.right) / 2, y: top + 60};
        })()"""
    )
    page.click(box["x"], box["y"])
    page.wait("document.querySelector('#round-title').textContent === 'Round 4'")
    assert page.text("#tip").startswith("Round 4")
    page.wait("document.querySelector('#round-body').dataset.round === '4'")
    assert f"{records[3].accepted} of {records[3].selected}" in page.text("#round-body")
    page.evaluate("[...document.querySelectorAll('#round-body button')].at(0).click()")
    rows = page.evaluate(
        "[...document.querySelectorAll('#round-body tbody tr')].map((row) => Number(row.cells[0].textContent))"
    )
    assert rows == [outcome.client for outcome in records[3].outcomes]
    assert page.complaints == []


def test_a_dot_says_whose_it_is(page: Page, run: tuple[str, list[RoundRecord]]) -> None:
    url, records = run
    open_page(page, url, ROUNDS)
    spot = page.evaluate(
        """(() => {
          const svg = document.querySelector("#cosines .chart svg");
          svg.scrollIntoView({block: "center"});
          const {left, top} = svg.getBoundingClientRect();
          const [, x, y] = svg.querySelector(".mark-accepted").getAttribute("d").match(/^M([\\d.]+),([\\d.]+)/);
          return {x: left + Number(x) + 3, y: top + Number(y)};
        })()"""
    )
    page.mouse("mouseMoved", spot["x"], spot["y"])
    first = next(outcome for outcome in records[0].outcomes if outcome.outcome == "accepted")
    assert first.cosine is not None
    said = page.text("#tip").split("\n")
    assert said[0] == f"Round 1, client {first.client}"
    assert "accepted" in said
    assert f"{first.cosine:.4f}" in said
    assert page.complaints == []


def test_all_that_can_be_used_has_a_name(page: Page, run: tuple[str, list[RoundRecord]]) -> None:
    """As a screen reader finds it"""
    open_page(page, run[0], ROUNDS)
    used = {"button", "slider", "spinbutton", "combobox", "radio", "link", "region", "progressbar", "table"}
    nodes = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in page.call("Accessibility.getFullAXTree")["nodes"]
        if not node["ignored"] and node["role"]["value"] in used
    ]
    assert {"button", "slider", "spinbutton", "combobox", "radio", "region", "progressbar"} <= {
        role for role, _ in nodes
    }
    assert [role for role, name in nodes if not name.strip()] == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)")
    assert len(ids) == len(set(ids))


def test_the_keyboard_reaches_every_round(page: Page, run: tuple[str, list[RoundRecord]]) -> None:
    url, records = run
    open_page(page, url, ROUNDS)
    page.evaluate("document.querySelector('#delta .chart').focus()")
    for key in ("Home", "ArrowRight", "ArrowRight", "Enter"):
        page.press(key)
    page.wait("document.querySelector('#round-title').textContent === 'Round 3'")
    said = page.evaluate("document.querySelector('#delta .chart').getAttribute('aria-valuetext')")
    assert said.startswith("Round 3, ‖Δθ‖ ")
    assert float(said.split()[3].rstrip(",")) == pytest.approx(records[2].delta_norm, rel=0.01)


def test_a_chart_is_also_a_table(page: Page, run: tuple[str, list[RoundRecord]]) -> None:
    url, records = run
    open_page(page, url, ROUNDS)
    page.evaluate("document.querySelector('#accuracy .panel-head button').click()")
    cells = page.evaluate(
        """[...document.querySelectorAll('#accuracy tbody tr')].map((row) =>
           [...row.cells].map((cell) => Number.parseFloat(cell.textContent)))"""
    )
    assert [row[0] for row in cells] == list(range(ROUNDS, 0, -1))
    for row, record in zip(cells, reversed(records), strict=True):
        assert row[1:] == pytest.approx(
            [100 * record.accuracy["global"], 100 * record.accuracy["server"]], abs=0.051
        )


@pytest.mark.parametrize("width", [360, 700, 1280, 2200])
def test_it_fits_the_window(browser: Chromium, run: tuple[str, list[RoundRecord]], width: int) -> None:
    with browser.page(width, 760) as page:
        open_page(page, run[0], ROUNDS)
        assert not scrolls_sideways(page)
        assert wider_than_the_window(page) == []
        texts = chart_texts(page)
        assert overlapping(texts) == []
        assert [text["said"] for text in texts if not text["inside"]] == []


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_contrast(browser: Chromium, run: tuple[str, list[RoundRecord]], dark: bool) -> None:
    with browser.page(dark=dark) as page:
        open_page(page, run[0], ROUNDS)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) < 150) == dark
        assert faint_texts(page) == []


def test_the_chosen_colours_are_remembered(page: Page, run: tuple[str, list[RoundRecord]]) -> None:
    open_page(page, run[0], ROUNDS)
    for _ in range(2):
        page.evaluate("document.querySelector('#theme').click()")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    open_page(page, run[0], ROUNDS)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, ground[4:-1].split(","))) < 150


@pytest.mark.parametrize(
    ("rounds", "clients", "buffered", "width"),
    [
        (1, 5, False, 1280),
        (1, 5, False, 360),
        (500, 20, False, 1280),
        (500, 20, False, 360),
        (40, 8, True, 1280),
    ],
)
def test_runs_of_all_sizes_are_drawn(
    browser: Chromium, tmp_path: Path, rounds: int, clients: int, buffered: bool, width: int
) -> None:
    watch = made_up.watching_of(tmp_path, rounds, clients, buffered=buffered)
    with WebServer(made_up.ANYWHERE_HERE, watch.routes()) as server, browser.page(width) as page:
        open_page(page, server.url, rounds)
        texts = chart_texts(page)
        assert overlapping(texts) == []
        assert [text["said"] for text in texts if not text["inside"]] == []
        assert page.evaluate("document.querySelector('#staleness').hidden") == (not buffered)
        assert not scrolls_sideways(page)
        # Dots that would lie on one another are drawn once.
        assert dots(page, "accepted") > 0.5 * rounds * clients
        assert page.complaints == []


def test_before_the_first_round_it_says_what_happens(page: Page, tmp_path: Path) -> None:
    watch = made_up.watching_of(tmp_path, 0, 5)
    watch.live.phase(0, "pretrain")
    with WebServer(made_up.ANYWHERE_HERE, watch.routes()) as server:
        page.open(server.url)
        page.wait("document.querySelector('#now-phase').textContent.includes('learns from the labels first')")
        assert page.text("#now-round") == "Before round 1"
        assert "No round has closed yet" in page.text("#nothing")
        panels = '[...document.querySelectorAll("#panels > section")].every((one) => one.hidden)'
        assert page.evaluate(panels)
        assert page.complaints == []


def test_a_dot_that_does_not_count_says_why(page: Page, tmp_path: Path) -> None:
    watch = made_up.watching_of(tmp_path, 0, 5)
    outcomes = (ClientOutcome(41, "rejected_cosine", -0.25, "cosine -0.2500 is negative"),)
    record = make_record(1, outcomes=outcomes)
    made_up.keep(tmp_path / "history.jsonl", record)
    watch.watcher.round_closed(record)
    with WebServer(made_up.ANYWHERE_HERE, watch.routes()) as server:
        open_page(page, server.url, 1)
        box = page.evaluate(
            """(() => {
              const mark = document.querySelector("#cosines .chart .mark-rejected");
              mark.scrollIntoView({block: "center"});
              const {left, right, top, bottom} = mark.getBoundingClientRect();
              return {x: (left + right) / 2, y: (top + bottom) / 2};
            })()"""
        )
        page.mouse("mouseMoved", box["x"], box["y"])
        page.wait("document.querySelector('#tip').textContent.includes('cosine -0.2500 is negative')")
        assert page.text("#tip").startswith("Round 1, client 41")


@pytest.mark.parametrize("width", [320, 390])
def test_numbers_and_reasons_are_not_cut_off_on_a_phone(
    browser: Chromium, tmp_path: Path, width: int
) -> None:
    watch = made_up.watching_of(tmp_path, 0, 5)
    outcomes = (ClientOutcome(41, "rejected_cosine", -0.25, "cosine -0.2500 is negative"),)
    losses = {"loss_pseudo_weak": 0.00123456}
    record = make_record(1, outcomes=outcomes, losses=losses, purity={"credible": 0.998})
    made_up.keep(tmp_path / "history.jsonl", record)
    watch.watcher.round_closed(record)
    with WebServer(made_up.ANYWHERE_HERE, watch.routes()) as server, browser.page(width, 700) as page:
        open_page(page, server.url, 1)
        page.wait("document.querySelector('#round-body .tag')?.textContent === 'rejected by cosine'")
        assert page.evaluate(
            """(() => {
              const tag = document.querySelector("#round-body .tag");
              return tag.scrollWidth <= tag.clientWidth;
            })()"""
        )
        ends = [text["said"] for text in chart_texts(page)]
        assert [said for said in ends if "…" in said] == []
        assert any("99.8 %" in said for said in ends)
