"""`fedil report` end to end: a real run, the command in its own process, the page in Chromium."""

import json
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from broker_config.stores.memory.store import MemoryStore
from broker_config.stores.redis.store import RedisStore
from ops.local.services import Redis
from server_worker.run.lock import sole_use
from tests.browser.chromium import chromium, complaints, new_page, wait_until
from tests.integration.test_cli import ROOT, complaint, environment, fedil, heavy_modules_loaded_by
from tests.services import Service, needed

ROUNDS = 4
SETTINGS = {
    **{"rounds": ROUNDS, "split.clients": 5, "network.width": 8, "baseline_epochs": 5},
    **{"client.epochs": 2, "server.epochs": 2, "server.pretrain_epochs": 10},
    **{
        "client.lr_schedule": "constant",
        "server.lr_schedule": "constant",
    },  # with it, rounds make another recipe
    **{"method.credibility": 2, "method.threshold": 0.3},  # low enough that some promoted labels are wrong
}
DRAWINGS, COMPARED = 14, 19
HOSTILE = "<img src=x onerror=alert(1)><script>document.title='owned'</script>"


def simulate(folder: Path, **more: object) -> Path:
    changes = [f"{key.replace('__', '.')}={value}" for key, value in {**SETTINGS, **more}.items()]
    words = [word for change in changes for word in ("--set", change)]
    done = fedil(
        "simulate", "digits", "--run-dir", folder, "--workers", "1", "--web", "off", "--quiet", *words
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run for all tests here; a test that changes files takes `own`, a copy."""
    return simulate(tmp_path_factory.mktemp("report") / "finished")


@pytest.fixture
def own(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "own", ignore=shutil.ignore_patterns("report.html")))


@pytest.fixture(scope="module")
def its_page(finished: Path) -> Path:
    (page,) = report(finished)
    return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with ExitStack() as stack:
        yield needed(lambda: stack.enter_context(chromium()))


def report(*arguments: str | Path, **variables: str) -> list[Path]:
    """The files that the command prints."""
    done = fedil("report", *arguments, cwd=ROOT, **variables)
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stdout.splitlines()]


def text_of(page: Path) -> str:
    plain = re.sub(r"<style.*?</style>|<svg.*?</svg>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", plain).split())


# ---- a run


def test_a_run_gives_a_complete_page_in_its_folder(finished: Path, its_page: Path) -> None:
    assert its_page == finished / "report.html"
    text = text_of(its_page)
    assert f"finished, {ROUNDS} rounds" in text
    assert "server-only baseline" in text
    assert f"The global model of round {ROUNDS} is right on" in text
    assert "samples carry a label in the set “credible”" in text
    assert "50 labelled samples (stratified) at the server; 1,388 unlabelled ones at 5 clients" in text
    assert "Nothing to draw" not in text
    assert "Nothing to show" not in text


def test_the_page_agrees_with_the_run(finished: Path, its_page: Path) -> None:
    """Accuracy and purity from the checkpoint and the ledgers are those that the run itself measured."""
    last = json.loads((finished / "history.jsonl").read_text().splitlines()[-1])
    text = text_of(its_page)
    assert f"is right on {100 * last['accuracy']['global']:.2f} %" in text
    assert f"{last['series']['credible']:,.0f} samples carry a label in the set “credible”" in text
    assert f"{100 * last['series']['purity_credible']:.2f} % of those labels are right" in text
    shown = fedil("simulate", "--run-dir", finished, "--resume", "--json", "--quiet", "--web", "off").stdout
    summary = json.loads(shown.splitlines()[-1])
    for digest in (summary["model_digest"], summary["ledger_digest"], summary["split_digest"]):
        assert digest in text


def test_plots_go_into_files_in_the_format_asked_for(own: Path) -> None:
    page, *plots = report(own, "--png")
    assert page == own / "report.html"
    assert {"accuracy.png", "delta_norm.png", "cosine.png", "confusion.png"} <= {plot.name for plot in plots}
    assert all(plot.parent == own / "plots" and plot.read_bytes()[1:4] == b"PNG" for plot in plots)
    _, *drawings = report(own, "--png", own / "drawn", "--format", "svg")
    assert {plot.suffix for plot in drawings} == {".svg"}
    assert {plot.parent for plot in drawings} == {own / "drawn"}


def test_a_history_is_converted_for_tensorboard(own: Path, tmp_path: Path) -> None:
    for _ in range(2):  # the second time replaces the first
        events, _ = report(own, "--tensorboard", tmp_path / "events")
    assert events == tmp_path / "events" / "own"
    accumulator = EventAccumulator(str(events))
    accumulator.Reload()
    written = [(event.step, event.value) for event in accumulator.Scalars("accuracy/global")]
    lines = [json.loads(line) for line in (own / "history.jsonl").read_text().splitlines()]
    assert written == [(line["round"], pytest.approx(line["accuracy"]["global"])) for line in lines]


def move_ledgers(folder: Path, url: str) -> None:
    """Move the ledgers of a simulation into Redis, where a deployment has them."""
    store = RedisStore(url)
    simulated = json.loads((folder / "run.json").read_text())["run"]
    for client, (activation, body) in MemoryStore(folder / "ledgers").latest(simulated).items():
        store.commit("report-test", client, activation, body)
    store.close()
    (folder / "run.json").write_text('{"run": "report-test"}')
    shutil.rmtree(folder / "ledgers")


def promoted_in(page: Path) -> str:
    sentence = re.search(
        r"[\d,]+ samples carry a label in the set “credible”; [\d.]+ % of those", text_of(page)
    )
    assert sentence
    return sentence[0]


def test_ledgers_of_a_deployment_are_read_from_its_redis(own: Path, its_page: Path, redis: Service) -> None:
    move_ledgers(own, redis.url)
    assert "name it with --store URL" in text_of(report(own)[0])
    for found in (report(own, "--store", redis.url), report(own, FEDIL_STORE_URL=redis.url)):
        assert promoted_in(found[0]) == promoted_in(its_page)


def test_ledgers_of_a_finished_cluster_are_read_from_its_redis_files(own: Path, its_page: Path) -> None:
    with needed(lambda: Redis(own / "services" / "redis")) as redis:
        move_ledgers(own, redis.url)
        redis.stop()
    assert promoted_in(report(own)[0]) == promoted_in(its_page)
    with sole_use(own), sole_use(own / "services"):  # the locks that a running cluster holds
        assert "the cluster goes on and has the ledgers in its Redis" in text_of(report(own)[0])


def test_a_running_run_is_shown_up_to_its_last_round(own: Path) -> None:
    lines = (own / "history.jsonl").read_text().splitlines(keepends=True)
    (own / "history.jsonl").write_text("".join(lines[:2]) + lines[2][:50])
    with sole_use(own):
        assert f"round 2 of {ROUNDS}, still running" in text_of(report(own)[0])


def test_a_run_before_its_first_round_makes_a_page(own: Path) -> None:
    (own / "history.jsonl").write_text("")
    shutil.rmtree(own / "checkpoints")
    text = text_of(report(own)[0])
    assert "no round has closed yet" in text
    assert "Confusion matrix No curve: the model or its test data cannot be read" in text


# ---- several runs


def test_seeds_of_a_recipe_are_grouped_and_compared_with_other_recipes(
    finished: Path, tmp_path: Path
) -> None:
    more = simulate(tmp_path / "seed-1", seed=1, rounds=ROUNDS - 1)
    other = simulate(tmp_path / "other", client__lr=0.01, evaluate_every=2)
    out = tmp_path / "comparison.html"
    assert report(finished, more, other, finished, "--out", out) == [out]
    text = text_of(out)
    assert "3 runs of 2 recipes" in text
    assert re.search(r"A digits 2 0, 1 [\d.]+ ± [\d.]+ \([\d.]+ to [\d.]+\)", text)
    assert "B lr=0.01 1 0" in text
    assert "accuracy at round 2, %" in text
    assert "client.lr 0.05 0.01" in text


# ---- mistakes


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["not/a/run"], "there is no folder not/a/run"),
        (["RUN", "ops"], "ops is not the folder of a run"),
        (["RUN", "--png", "RUN"], "put --png after the runs"),
        (["RUN", "--out", "no/such/report.html"], "there is no folder no/such"),
        (["RUN", "--out", "ops"], "ops is a folder"),
        (["RUN", "--format", "gif"], "invalid choice: 'gif'"),
        (["RUN", "--store", "memory://"], "must begin with redis://"),
        ([], "required: RUN"),
    ],
)
def test_a_mistake_is_named_in_one_line_before_anything_heavy_is_loaded(
    finished: Path, arguments: list[str], says: str
) -> None:
    words = ["report", *(str(finished) if word == "RUN" else word for word in arguments)]
    assert says in complaint(fedil(*words), 2)
    assert heavy_modules_loaded_by(*words) == set()


def test_a_damaged_history_is_named_by_its_line_and_nothing_is_written(own: Path) -> None:
    lines = (own / "history.jsonl").read_text().splitlines()
    (own / "history.jsonl").write_text("\n".join([lines[0], "{oops", *lines[2:]]) + "\n")
    assert "history.jsonl, line 2 is damaged" in complaint(fedil("report", own), 1)
    assert not (own / "report.html").exists()


def test_without_matplotlib_the_error_says_what_to_install(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ImportError('not here')")
    without = fedil("report", finished, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert "pip install 'fedil[report]'" in complaint(without, 1)


def test_a_full_disk_leaves_the_earlier_report_whole(own: Path) -> None:
    (own / "report.html").write_text("earlier")

    def limit_file_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    done = subprocess.run(
        [sys.executable, "-m", "ops.cli", "report", str(own)],
        capture_output=True,
        encoding="utf-8",
        env=environment(),
        cwd=ROOT,
        timeout=300,
        check=False,
        preexec_fn=limit_file_size,
    )
    assert "report.html: File too large" in complaint(done, 1)
    assert (own / "report.html").read_text() == "earlier"
    assert not list(own.glob("*.tmp"))


# ---- in Chromium


def problems_of(page: Page, file: Path) -> list[str]:
    page.goto(file.as_uri())
    fetched: list[str] = page.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)")
    return [*complaints(page), *(name for name in fetched if not name.startswith("data:"))]


def test_the_page_opens_offline_requests_nothing_and_fits(its_page: Path, browser: Browser) -> None:
    for width, dark in ((1280, False), (390, True)):
        with new_page(browser, width, 900, dark=dark) as page:
            assert problems_of(page, its_page) == []
            assert page.evaluate("document.querySelectorAll('svg').length") == DRAWINGS
            assert page.evaluate("[...document.images].every((image) => image.naturalWidth > 0)")
            assert page.evaluate("document.images.length") > 5
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            smallest = "Math.min(...[...document.querySelectorAll('svg')].map((svg) => svg.clientHeight))"
            assert page.evaluate(smallest) > 100
            paper, ink = page.evaluate(
                "[getComputedStyle(document.body).backgroundColor, getComputedStyle("
                "document.querySelector('svg [style*=\"fill: var(--text)\"]')).fill]"
            )
            assert (lightness(paper) < lightness(ink)) == dark


def lightness(colour: str) -> int:
    return sum(map(int, re.findall(r"\d+", colour)[:3]))


def test_a_blocked_request_would_be_reported(tmp_path: Path, browser: Browser) -> None:
    """Proves that the tests beside this one would notice a request."""
    policy = "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'\">"
    (tmp_path / "bad.html").write_text(f"<!doctype html>{policy}<img src='http://127.0.0.1:9/x.png'>")
    with new_page(browser) as page:
        page.goto((tmp_path / "bad.html").as_uri())
        wait_until(page, "document.images[0].complete")
        assert complaints(page)


def test_hostile_names_stay_text_in_the_browser(own: Path, tmp_path: Path, browser: Browser) -> None:
    lines = [json.loads(line) for line in (own / "history.jsonl").read_text().splitlines()]
    for line in lines:
        line["outcomes"][0] |= {"outcome": "refused", "detail": HOSTILE}
        line["series"][f"loss_{HOSTILE}"] = 0.5
        line["verdict"] = HOSTILE
    (own / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe = json.loads((own / "recipe.json").read_text()) | {"description": HOSTILE}
    (own / "recipe.json").write_text(json.dumps(recipe))
    hostile = tmp_path / "<script>document.title='owned'<"
    own.rename(hostile)
    (file,) = report(hostile)
    with new_page(browser) as page:
        assert problems_of(page, file) == []
        assert page.evaluate("document.title") == f"digits: {hostile.name}"
        assert page.evaluate("document.scripts.length") == 0
        assert HOSTILE in page.inner_text("header")
        assert HOSTILE in page.inner_text(".verdict")
        assert HOSTILE in page.evaluate("document.body.textContent")


def test_a_comparison_opens_offline_too(finished: Path, own: Path, tmp_path: Path, browser: Browser) -> None:
    recipe = json.loads((own / "recipe.json").read_text())
    (own / "recipe.json").write_text(json.dumps(recipe | {"seed": 5}))
    (file,) = report(finished, own, "--out", tmp_path / "both.html")
    with new_page(browser, 390) as page:
        assert problems_of(page, file) == []
        assert page.evaluate("document.querySelectorAll('svg').length") == COMPARED
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
