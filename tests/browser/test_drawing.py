"""The live page of a finished run in Chromium: its charts, tables, keyboard use and contrast."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from broker_config.process.http import WebServer
from fedil_model.methods import find_method
from fedil_model.methods.interface import Chart, ClientValue, Display, Model, Outcome, Series
from server_worker.run.history import read_records
from server_worker.watch.events import ClientOutcome, RoundRecord
from tests.browser import synthetic
from tests.browser.checks import (
    chart_texts,
    count_dots,
    count_points,
    low_contrast_texts,
    open_page,
    overlapping,
    scrolls_sideways,
    wider_than_the_window,
)
from tests.browser.chromium import complaints, new_page, wait_until
from tests.browser.watched import watched
from tests.federation import SOON, blobs_recipe
from tests.unit.ops.records import make_record

ROUNDS = 12
EVERY_PANEL = {"accuracy", "delta", "value-cosine", "classes", "seconds"} | {
    f"chart-{name}" for name in ("reference_norm", "pseudo_labels", "loss_server", "sure_share")
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[RoundRecord]]]:
    """The address and the rounds of a finished run, which is served."""
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
    assert count_points(page, "accuracy", "s-1") == count_points(page, "accuracy", "s-2") == ROUNDS
    assert count_points(page, "delta", "s-1") == ROUNDS
    outcomes = [outcome for record in records for outcome in record.outcomes]
    accepted = sum(outcome.outcome == "accepted" for outcome in outcomes)
    rejected = sum(outcome.outcome == "rejected_cosine" for outcome in outcomes)
    assert count_dots(page, "accepted") == accepted > 0
    assert count_dots(page, "rejected_cosine") == 2 * rejected  # a cross has two strokes
    bars = page.evaluate(
        'document.querySelector("#seconds .chart .f-1").getAttribute("d").match(/M/g).length'
    )
    assert bars == ROUNDS
    names = page.evaluate(
        '[...document.querySelectorAll("#classes .class-name")].map((one) => one.textContent)'
    )
    assert names == ["a", "b", "c", "d"]


def test_the_header_shows_the_state_of_the_run(page: Page, run: tuple[str, list[RoundRecord]]) -> None:
    url, records = run
    open_page(page, url, ROUNDS)
    assert page.inner_text("#run") == "blobs"
    assert page.inner_text("#state") == "done"
    assert page.inner_text(".now-round") == f"Round {ROUNDS} of {ROUNDS}"
    share = records[-1].accuracy["global"]
    assert f"{100 * share:.2f} %" in page.inner_text("#score")
    assert "global model θ′ after round 12" in page.inner_text("#score-of")
    gain = "points(0.0391) + '; ' + points(-0.0391)"
    gains = page.evaluate(f"import('/page/numbers.js').then(({{ points }}) => {gain})")
    assert gains == "3.9 points over; 3.9 points under"
    assert page.evaluate("document.querySelector('#verdict-why').hidden")
    page.evaluate("document.querySelector('#verdict').click()")
    assert "never prove convergence" in page.inner_text("#verdict-why")


def test_no_labels_overlap_and_no_error_is_logged(page: Page, run: tuple[str, list[RoundRecord]]) -> None:
    open_page(page, run[0], ROUNDS)
    texts = chart_texts(page)
    assert len(texts) > 40
    assert overlapping(texts) == []
    assert [text["text"] for text in texts if not text["inside"]] == []
    assert complaints(page) == []


def test_a_click_on_a_chart_opens_its_round(page: Page, run: tuple[str, list[RoundRecord]]) -> None:
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
    page.mouse.click(box["x"], box["y"])
    expect(page.locator("#round-title")).to_have_text("Round 4")
    assert page.inner_text("#tip").startswith("Round 4")
    wait_until(page, "document.querySelector('#round-body').dataset.round === '4'")
    assert f"{records[3].accepted} of {records[3].selected}" in page.inner_text("#round-body")
    page.evaluate("[...document.querySelectorAll('#round-body button')].at(0).click()")
    rows = page.evaluate(
        "[...document.querySelectorAll('#round-body tbody tr')].map((row) => Number(row.cells[0].textContent))"
    )
    assert rows == [outcome.client for outcome in records[3].outcomes]
    assert complaints(page) == []


def test_hovering_over_a_dot_shows_its_client(page: Page, run: tuple[str, list[RoundRecord]]) -> None:
    url, records = run
    open_page(page, url, ROUNDS)
    spot = page.evaluate(
        """(() => {
          const svg = document.querySelector("#value-cosine .chart svg");
          svg.scrollIntoView({block: "center"});
          const {left, top} = svg.getBoundingClientRect();
          const [, x, y] = svg.querySelector(".mark-accepted").getAttribute("d").match(/^M([\\d.]+),([\\d.]+)/);
          return {x: left + Number(x) + 3, y: top + Number(y)};
        })()"""
    )
    page.mouse.move(spot["x"], spot["y"])
    first = next(outcome for outcome in records[0].outcomes if outcome.outcome == "accepted")
    shown = page.inner_text("#tip").split("\n")
    assert shown[0] == f"Round 1, client {first.client}"
    assert "accepted" in shown
    assert f"{first.values['cosine']:.4f}" in shown
    assert complaints(page) == []


def test_every_control_has_an_accessible_name(page: Page, run: tuple[str, list[RoundRecord]]) -> None:
    open_page(page, run[0], ROUNDS)
    controls = {
        "button",
        "slider",
        "spinbutton",
        "combobox",
        "radio",
        "link",
        "region",
        "progressbar",
        "table",
    }
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")
    nodes = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree["nodes"]
        if not node["ignored"] and node["role"]["value"] in controls
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
        page.keyboard.press(key)
    expect(page.locator("#round-title")).to_have_text("Round 3")
    value_text = page.evaluate("document.querySelector('#delta .chart').getAttribute('aria-valuetext')")
    assert value_text.startswith("Round 3, update size ‖Δθ‖ ")
    assert float(value_text.split()[5].rstrip(",")) == pytest.approx(records[2].delta_norm, rel=0.01)


def test_a_chart_can_be_shown_as_a_table(page: Page, run: tuple[str, list[RoundRecord]]) -> None:
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
def test_the_page_fits_the_window(browser: Browser, run: tuple[str, list[RoundRecord]], width: int) -> None:
    with new_page(browser, width, 760) as page:
        open_page(page, run[0], ROUNDS)
        assert not scrolls_sideways(page)
        assert wider_than_the_window(page) == []
        texts = chart_texts(page)
        assert overlapping(texts) == []
        assert [text["text"] for text in texts if not text["inside"]] == []


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_contrast(browser: Browser, run: tuple[str, list[RoundRecord]], dark: bool) -> None:
    with new_page(browser, dark=dark) as page:
        open_page(page, run[0], ROUNDS)
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, background[4:-1].split(","))) < 150) == dark
        assert low_contrast_texts(page) == []


def test_the_chosen_colour_theme_survives_a_reload(page: Page, run: tuple[str, list[RoundRecord]]) -> None:
    open_page(page, run[0], ROUNDS)
    for _ in range(2):
        page.evaluate("document.querySelector('#theme').click()")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    open_page(page, run[0], ROUNDS)
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, background[4:-1].split(","))) < 150


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
    browser: Browser, tmp_path: Path, rounds: int, clients: int, buffered: bool, width: int
) -> None:
    watch = synthetic.watching_of(tmp_path, rounds, clients, buffered=buffered)
    with WebServer(synthetic.ANY_PORT, watch.routes()) as server, new_page(browser, width) as page:
        open_page(page, server.url, rounds)
        texts = chart_texts(page)
        assert overlapping(texts) == []
        assert [text["text"] for text in texts if not text["inside"]] == []
        assert page.evaluate("document.querySelector('#staleness').hidden") == (not buffered)
        assert not scrolls_sideways(page)
        # Dots in the same place are drawn once.
        assert count_dots(page, "accepted") > 0.5 * rounds * clients
        assert complaints(page) == []


def test_before_the_first_round_the_page_shows_the_current_phase(page: Page, tmp_path: Path) -> None:
    watch = synthetic.watching_of(tmp_path, 0, 5)
    watch.live.phase(0, "pretrain")
    watch.live.epochs(12, 60, 75.0)
    with WebServer(synthetic.ANY_PORT, watch.routes()) as server:
        page.goto(server.url)
        expect(page.locator("#now-phase")).to_have_text("server learns from the labels first: epoch 12 of 60")
        assert page.inner_text("#now-left").startswith("about 1 min 1")
        assert page.locator("#run-bar").get_attribute("aria-valuenow") == "12"
        assert page.inner_text("#now-round") == "Before round 1"
        assert "No round has closed yet" in page.inner_text("#nothing")
        panels = '[...document.querySelectorAll("#panels > section")].every((one) => one.hidden)'
        assert page.evaluate(panels)
        assert complaints(page) == []


def test_hovering_over_a_rejected_update_shows_the_reason(page: Page, tmp_path: Path) -> None:
    watch = synthetic.watching_of(tmp_path, 0, 5)
    outcomes = (ClientOutcome(41, "rejected_cosine", "cosine -0.2500 is negative", values={"cosine": -0.25}),)
    record = make_record(1, outcomes=outcomes)
    synthetic.append_record(tmp_path / "history.jsonl", record)
    watch.watcher.round_closed(record)
    with WebServer(synthetic.ANY_PORT, watch.routes()) as server:
        open_page(page, server.url, 1)
        box = page.evaluate(
            """(() => {
              const mark = document.querySelector("#value-cosine .chart [data-outcome=rejected_cosine]");
              mark.scrollIntoView({block: "center"});
              const {left, right, top, bottom} = mark.getBoundingClientRect();
              return {x: (left + right) / 2, y: (top + bottom) / 2};
            })()"""
        )
        page.mouse.move(box["x"], box["y"])
        expect(page.locator("#tip")).to_contain_text("cosine -0.2500 is negative")
        assert page.inner_text("#tip").startswith("Round 1, client 41")


@pytest.mark.parametrize("width", [320, 390])
def test_numbers_and_reasons_are_not_cut_off_on_a_phone(browser: Browser, tmp_path: Path, width: int) -> None:
    watch = synthetic.watching_of(tmp_path, 0, 5)
    outcomes = (ClientOutcome(41, "rejected_cosine", "cosine -0.2500 is negative", values={"cosine": -0.25}),)
    series = {"loss_pseudo_weak": 0.00123456, "purity_credible": 0.998}
    record = make_record(1, outcomes=outcomes, series=series)
    synthetic.append_record(tmp_path / "history.jsonl", record)
    watch.watcher.round_closed(record)
    with WebServer(synthetic.ANY_PORT, watch.routes()) as server, new_page(browser, width, 700) as page:
        open_page(page, server.url, 1)
        expect(page.locator("#round-body .tag")).to_have_text("rejected: cosine")
        assert page.evaluate(
            """(() => {
              const tag = document.querySelector("#round-body .tag");
              return tag.scrollWidth <= tag.clientWidth;
            })()"""
        )
        ends = [text["text"] for text in chart_texts(page)]
        assert [text for text in ends if "…" in text] == []
        assert any("99.8 %" in text for text in ends)


PLAIN = Display(models=(Model("global", "w", "the model"),))
DISTANCES = Display(
    models=PLAIN.models,
    charts=(Chart("Drift", "How far clients drift.", (Series("drift", "mean drift", "Mean drift."),)),),
    client_values=(
        ClientValue("distance", "distance", "Distance from the model.", low=0.0, high=50.0),
        ClientValue("angle", "angle", "Angle to the last step.", low=-180.0, high=180.0, threshold=90.0),
    ),
    outcomes=(Outcome("clipped", "clipped", "Counts with a shorter step."),),
)


@pytest.mark.parametrize(
    ("display", "panels"),
    [(PLAIN, {"outcomes"}), (DISTANCES, {"value-distance", "value-angle", "chart-drift"})],
    ids=["plain", "distances"],
)
def test_the_page_draws_what_another_method_declares(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, display: Display, panels: set[str]
) -> None:
    spec = replace(find_method("fedil"), display=display)
    monkeypatch.setattr("server_worker.run.recipe.find_method", lambda _: spec)
    watch = synthetic.watching_of(tmp_path, 0, 5)
    for number in range(1, 6):
        outcomes = (
            ClientOutcome(0, "accepted", counts=True, values={"distance": 3.0 * number, "angle": 20.0}),
            ClientOutcome(1, "clipped", counts=True, values={"distance": 1e9, "angle": 170.0}),
            ClientOutcome(2, "missing"),
        )
        record = make_record(number, outcomes=outcomes, series={"drift": 0.5 / number})
        synthetic.append_record(tmp_path / "history.jsonl", record)
        watch.watcher.round_closed(record)
    with WebServer(synthetic.ANY_PORT, watch.routes()) as server:
        open_page(page, server.url, 5)
        shown = page.evaluate(
            '[...document.querySelectorAll("#panels > section:not([hidden])")].map((one) => one.id)'
        )
        assert set(shown) == panels | {"accuracy", "delta", "seconds"}
        texts = chart_texts(page)
        assert overlapping(texts) == []
        assert [text["text"] for text in texts if not text["inside"]] == []
        words = page.inner_text("body").lower()
        assert [
            word for word in ("cosine", "pseudo", "credible", "purity", "θ₀", "θ′") if word in words
        ] == []
        if display is DISTANCES:
            assert count_points(page, "chart-drift", "s-1") == 5
            assert page.locator("#value-angle .threshold").count() == 2  # in the chart and in its legend
            clipped = "document.querySelector('#value-distance [data-outcome=clipped]').dataset.dots"
            assert page.evaluate(clipped) == "5", "outside of the declared range, drawn at its end"
        assert complaints(page) == []
