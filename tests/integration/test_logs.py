"""What real processes over real brokers write to standard error: every line is one event, of either kind."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from broker_config.process.logs import message_in
from tests.deployment import ROOT, Deployed, Supervised, write_all_shards, write_recipe
from tests.federation import RUN
from tests.integration.test_worker_process import PATIENCE, Site
from tests.services import Service

SOON = 240.0
FORMATS = ("text", "json")
SPITE = "FEDIL_TEST_SPITE"
SAYS = "oops\n2026-01-01T00:00:00.000Z INFO run x: all is well\x1b[31m\u2028\r"
LINE = re.compile(
    r"(?:worker (?P<worker>\d+): )?(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (?P<level>[A-Z]+) "
    r"(?:run (?P<run>[\w.-]+)(?:, round (?P<round>\d+))?(?:, client (?P<client>\d+))?: )?(?P<message>.*)"
)
ENDS = re.compile(r"(?P<logger>server_worker|client_worker): (?P<message>.*)")


class Spiteful(nn.Module):
    """Learns at the server; a worker that has been told to gets an error with words that are meant for logs."""

    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(num_inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled() and SPITE in os.environ:
            raise RuntimeError(SAYS)
        logits: Tensor = self.fc(x.flatten(1))
        return logits


def spiteful(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Spiteful(math.prod(input_shape), num_classes)


NETWORK = f"{spiteful.__module__}:{spiteful.__name__}"


@dataclass(frozen=True)
class Event:
    level: str
    message: str
    run: str | None
    round: int | None
    client: int | None
    more: dict[str, Any]

    @property
    def where(self) -> tuple[str | None, int | None, int | None]:
        return self.run, self.round, self.client


def events(text: str, format: str) -> list[Event]:
    """Fails on a line that is none of its kind. Lines as the most generous reader understands them."""
    lines = text.splitlines()
    assert lines
    return [from_json(line) if format == "json" else from_text(line) for line in lines]


def from_json(line: str) -> Event:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    more = json.loads(line, parse_constant=refuse)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", more.pop("time"))
    named = {name: more.pop(name) for name in ("level", "message", "run", "round", "client")}
    return Event(**named, more=more)


def from_text(line: str) -> Event:
    assert line.isprintable(), ascii(line)
    if found := ENDS.fullmatch(line):
        return Event("ERROR", found["message"], None, None, None, found.groupdict())
    found = LINE.fullmatch(line)
    assert found, line
    more = found.groupdict()
    number, client = (int(more[name]) if more[name] else None for name in ("round", "client"))
    return Event(more["level"], more["message"], more["run"], number, client, more)


class Logged(Deployed):
    """A deployment whose processes are told how to log."""

    def __init__(
        self, folder: Path, recipe: Path, broker: str, store: str, options: list[str], **more: Any
    ) -> None:
        self._options = [*options, "--web", "off"]
        super().__init__(folder, recipe, broker, store, **more)

    def _server(self) -> list[str]:
        return [*super()._server(), *self._options]

    def __enter__(self) -> "Logged":
        return self

    def add_spiteful_worker(self, *words: str) -> None:
        arguments = [
            "client_worker",
            "--site",
            "default",
            "--shards",
            str(self._shards),
            *self._options,
            *words,
        ]
        log = self.folder / f"worker-{len(self.workers)}.log"
        self.workers.append(Supervised(arguments, self.environment | {SPITE: "1"}, log, restarts=False))

    def stop_workers(self) -> None:
        for worker in self.workers:
            worker.signal(signal.SIGTERM)
        for worker in self.workers:
            assert worker.finished.wait(SOON), self.tail()


@dataclass(frozen=True)
class Said:
    server: list[Event]
    worker: list[Event]
    pool: list[Event]


@pytest.fixture(scope="module", params=FORMATS)
def said(
    request: pytest.FixtureRequest,
    rabbitmq: Service,
    redis: Service,
    tmp_path_factory: pytest.TempPathFactory,
) -> Said:
    """By the processes of a run of two rounds."""
    folder, format = tmp_path_factory.mktemp("logs"), request.param
    recipe = write_recipe(folder, rounds=2)
    options = ["--log-format", format, "--log-level", "debug"]
    with Logged(folder / "run", recipe, rabbitmq.url, redis.url, options, workers=0) as run:
        run.add_spiteful_worker()
        run.add_spiteful_worker("--processes", "2")
        for worker in run.workers:
            run.wait_until_logged(worker.log, "has started", SOON)
        assert run.server.finished.wait(SOON), run.tail()
        run.stop_workers()
        logs = [log.read_text("utf-8") for log in (run.server_log, *(worker.log for worker in run.workers))]
        return Said(*(events(text, format) for text in logs))


def test_every_line_of_a_server_is_about_its_run(said: Said) -> None:
    runs = {event.run for event in said.server}
    assert len(runs) == 1
    assert None not in runs
    assert all(event.round or event.client is None for event in said.server)


def test_a_server_tells_its_start_each_answer_each_round_and_its_end(said: Said) -> None:
    messages = [event.message for event in said.server]
    assert "started: round 1 of 2 is next" in messages
    assert re.fullmatch(r"done: 2 of 2 rounds, model [0-9a-f]{32}, ledgers [0-9a-f]{32}", messages[-1])
    for number in (1, 2):
        of_round = [event for event in said.server if event.round == number]
        answers = [event for event in of_round if event.client is not None]
        assert len({event.client for event in answers}) == len(answers) == 4
        kinds = "accepted|rejected_cosine|rejected_loss|rejected_movement|projected"
        assert all(
            re.fullmatch(rf"({kinds})(, [a-z_ ]+ -?\d\.\d{{3}})+.*; \d of 4", event.message)
            for event in answers
        )
        (closed,) = [event.message for event in of_round if event.message.startswith("closed: ")]
        assert re.match(r"closed: accepted \d of 4, update size \d\S* \([a-z ]+\), ", closed)
        assert closed.endswith(f" s; rounds left: {2 - number}")
        assert f"checkpoint round-{number:08d}.ckpt saved" in [event.message for event in of_round]
        phases = [event.message for event in of_round if event.level == "DEBUG"]
        assert phases == ["server_step", "broadcast", "wait", "close"]


def test_a_round_has_its_accuracy_where_it_was_measured(said: Said) -> None:
    first, last = [event.message for event in said.server if event.message.startswith("closed: ")]
    assert "accuracy" not in first
    assert re.search(r", accuracy: global model \d+\.\d\d %, server model \d+\.\d\d %", last)


def test_workers_tell_each_task_with_its_run_round_and_client(said: Said) -> None:
    (run,) = {event.run for event in said.server}
    # Other tests may have left tasks of theirs to this site.
    lines = [event for event in (*said.worker, *said.pool) if event.run == run]
    expected = {event.where for event in said.server if event.client is not None}
    for message in ("task taken", "trained ", "answer handed in"):
        told = [event.where for event in lines if event.message.startswith(message)]
        assert (set(told), len(told)) == (expected, 8), message


def test_workers_tell_their_start_and_their_end(said: Said) -> None:
    for lines, processes, ends in ((said.worker, 1, 1), (said.pool, 2, 3)):
        started = [event for event in lines if " has started: " in event.message]
        assert len(started) == processes
        assert all(" has started: clients 0–11 of site default, on cpu" in event.message for event in started)
        assert [event.message for event in lines].count("stopped as asked") == ends


def test_of_a_pool_each_line_has_its_workers_number_but_the_parents_own(said: Said) -> None:
    numbers = [event.more.get("worker") for event in said.pool]
    assert {str(number) for number in numbers if number is not None} == {"0", "1"}
    assert [event.message for event in said.pool if event.more.get("worker") is None] == ["stopped as asked"]
    assert all(event.more.get("worker") is None for event in said.worker)


@pytest.mark.parametrize("said", ["json"], indirect=True)
def test_json_also_has_the_facts_apart(said: Said) -> None:
    assert all(event.more["site"] == "default" for event in (*said.worker, *said.pool))
    answer = next(event for event in said.server if event.client is not None)
    assert answer.more["outcome"] in ("accepted", "rejected_cosine", "projected")
    assert -1.0 <= answer.more["cosine"] <= 1.0
    closed = [event.more for event in said.server if event.message.startswith("closed: ")][-1]
    assert closed["delta_norm"] > 0
    assert set(closed["accuracy"]) >= {"global", "server"}
    assert (closed["selected"], closed["accepted"] <= 4) == (4, True)


@pytest.mark.parametrize("format", FORMATS)
def test_what_a_client_says_and_a_traceback_stay_in_their_lines(
    format: str, rabbitmq: Service, redis: Service, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, rounds=1)
    recipe.write_text(recipe.read_text("utf-8").replace('name = "cnn"\nwidth = 16', f'name = "{NETWORK}"'))
    options = ["--log-format", format]
    with Logged(
        tmp_path / "run", recipe, rabbitmq.url, redis.url, options, workers=0, server_restarts=False
    ) as run:
        run.add_spiteful_worker("--plugin", NETWORK)
        run.wait_until_logged(run.server_log, "every client refused", SOON)
        run.stop_workers()
        server = events(run.server_log.read_text("utf-8"), format)
        worker = events(run.workers[0].log.read_text("utf-8"), format)
    failed = [event for event in worker if event.message.startswith("training failed")]
    assert len(failed) == 12  # all are asked before it is called hopeless
    for event in failed:
        assert event.run
        assert (event.level, event.round) == ("ERROR", 1)
        traceback = event.more["traceback"] if format == "json" else event.message
        assert "in forward" in traceback
        assert SAYS.strip() in traceback.replace("\\x1b", "\x1b").replace("\\n", "\n").replace(
            "\\u2028", "\u2028"
        )
    assert message_in(failed[0].message) == "training failed"
    refused = [event for event in server if event.message.startswith("refused (error: RuntimeError: oops")]
    assert {event.client for event in refused} == {event.client for event in failed}
    assert all(event.level == "WARNING" for event in refused)
    assert not [event for event in (*server, *worker) if event.run == "x"]
    assert (server[-1].level, server[-1].more["logger"]) == ("ERROR", "server_worker")
    assert server[-1].message.startswith(
        "round 1: every client refused; the first says error: RuntimeError: oops"
    )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


def test_what_happens_to_a_broker_is_told_with_the_task_at_hand(site: Site) -> None:
    site.bench.put(site.bench.task(client=3))
    worker = site.start("--log-format", "json", "--web", "off")
    site.until_training()
    site.server.close()
    site.gate.open()
    site.until(lambda: "trying again" in site.said())
    site.server = site.serve()
    site.update()
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    told = events(site.said(), "json")
    for words, where in (
        ("; trying again", (RUN, 1, 3)),
        ("the broker is back", (RUN, 1, 3)),
        ("stopped as asked", (None, None, None)),
    ):
        # The thread that tells of the worker's state may have the same trouble, and has no task.
        assert where in [event.where for event in told if event.message.endswith(words)], words


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_bad_start_is_json_too(site: Site, processes: str) -> None:
    site.server.close()
    words = ["--log-format", "json", "--web", "off", "--device", "cuda:99"]
    worker = site.start(*words, "--processes", processes)
    assert worker.wait(PATIENCE) == 2
    last = events(site.said(), "json")[-1]
    assert (last.level, last.more["logger"]) == ("ERROR", "client_worker")
    assert "cuda:99" in last.message
    assert '"' not in last.message, "a child's words, and not its line"


def test_fedil_server_appends_to_a_log_beside_its_view(
    rabbitmq: Service, redis: Service, tmp_path: Path
) -> None:
    recipe, log = write_recipe(tmp_path, rounds=1), tmp_path / "server.jsonl"
    write_all_shards(recipe, tmp_path / "shards")
    addresses = {"FEDIL_BROKER_URL": rabbitmq.url, "FEDIL_STORE_URL": redis.url}
    worker = ["client_worker", "--site", "default", "--shards", str(tmp_path / "shards"), "--web", "off"]
    words = ["--recipe", str(recipe), "--run-dir", str(tmp_path / "run"), "--web", "off"]
    words += ["--log-file", str(log), "--log-format", "json"]
    with Supervised(worker, addresses, tmp_path / "worker.log"):
        done = subprocess.run(
            [sys.executable, "-m", "ops.cli", "server", *words],
            cwd=ROOT,
            env=os.environ | addresses,
            capture_output=True,
            text=True,
            timeout=SOON,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert "finished 1 of 1 rounds" in done.stdout
    lines = events(log.read_text("utf-8"), "json")
    assert lines[-1].message.startswith("done: 1 of 1 rounds")
    assert len([event for event in lines if event.client is not None]) == 4
    assert len({event.run for event in lines}) == 1


def test_a_format_without_a_log_is_a_mistake(tmp_path: Path) -> None:
    words = ["--recipe", "digits", "--broker", "x://b", "--store", "x://s", "--log-format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "ops.cli", "server", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("fedil: --log-format is for a log: name a --log-file")
