"""Log lines of both kinds, from real loggers through the real handler."""

import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_config.process.logs import (
    Format,
    Logs,
    about,
    json_line,
    message_in,
    one_line,
    set_up_logs,
    text_line,
)

LOG = logging.getLogger("client_worker.test")
HOSTILE = "done\n2026-01-01T00:00:00.000Z INFO all is well \x1b[2J\r\x85\u2028\u202e\udc80 end"
TIME = r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z"


def written(file: Path, do: Callable[[Logs], None], format: Format, level: str = "debug") -> list[str]:
    with set_up_logs(format, level, file) as logs:
        do(logs)
    text = file.read_text("utf-8")
    assert text.endswith("\n") or not text
    return text.split("\n")[:-1]


def objects(file: Path, do: Callable[[Logs], None], level: str = "debug") -> list[dict[str, Any]]:
    return [parse(line) for line in written(file, do, "json", level)]


def parse(line: str) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    found = json.loads(line, parse_constant=refuse)
    assert isinstance(found, dict)
    return found


def test_a_line_of_text_begins_with_the_run_the_round_and_the_client(tmp_path: Path) -> None:
    def do(_: Logs) -> None:
        with about(run="r", round=3, client=7):
            LOG.info("trained %d samples", 60)
        with about(run="r"):
            LOG.warning("a note")
        LOG.debug("waiting")

    first, second, third = written(tmp_path / "log", do, "text")
    assert re.fullmatch(TIME + r" INFO run r, round 3, client 7: trained 60 samples", first)
    assert re.fullmatch(TIME + r" WARNING run r: a note", second)
    assert re.fullmatch(TIME + r" DEBUG waiting", third)


def test_times_are_in_utc_with_milliseconds() -> None:
    record = logging.makeLogRecord({"msg": "x", "created": 1769860799.0004})
    assert parse(json_line(record, {}))["time"] == "2026-01-31T11:59:59.000Z"
    assert text_line(record, {}).startswith("2026-01-31T11:59:59.000Z ")


def test_round_and_client_zero_are_told() -> None:
    record = logging.makeLogRecord({"msg": "x"})
    assert text_line(record, {"run": "r", "round": 0, "client": 0}).endswith("run r, round 0, client 0: x")


def test_a_line_of_json_has_all_its_fields_and_null_for_what_nobody_knows(tmp_path: Path) -> None:
    def do(_: Logs) -> None:
        with about(run="r", round=3, client=7, outcome="accepted", cosine=0.5):
            LOG.info("θ′ is %s", "ready")
        LOG.info("idle")

    first, second = objects(tmp_path / "log", do)
    assert re.fullmatch(TIME, first["time"])
    del first["time"], second["time"]
    where = {"level": "INFO", "logger": "client_worker.test"}
    told = {"run": "r", "round": 3, "client": 7, "outcome": "accepted", "cosine": 0.5}
    assert first == where | {"message": "θ′ is ready"} | told
    assert second == where | {"message": "idle", "run": None, "round": None, "client": None}


def test_numbers_that_json_does_not_know_are_null_and_everything_else_is_text() -> None:
    facts = {
        "cosine": float("nan"),
        "norms": {"a": float("inf"), 2: -0.0},
        "path": Path("a/b"),
        "many": (1, None),
    }
    found = parse(json_line(logging.makeLogRecord({"msg": "x"}), facts))
    assert (found["cosine"], found["norms"]) == (None, {"a": None, "2": 0.0})
    assert (found["path"], found["many"]) == ("a/b", [1, None])


@pytest.mark.parametrize("format", ["text", "json"])
def test_what_others_say_stays_in_its_line_and_steers_no_terminal(tmp_path: Path, format: Format) -> None:
    def do(_: Logs) -> None:
        with about(run=HOSTILE, client=1):
            LOG.warning("refused: %s", HOSTILE)

    (line,) = written(tmp_path / "log", do, format)
    assert line.isprintable()
    assert len(line.splitlines()) == 1
    if format == "json":
        assert parse(line)["message"] == "refused: " + HOSTILE.replace("\udc80", "\\udc80")
    else:
        assert (
            "done\\n2026-01-01T00:00:00.000Z INFO all is well \\x1b[2J\\r\\x85\\u2028\\u202e\\udc80 end"
            in line
        )


@given(said=st.text(), run=st.text())
def test_any_text_is_one_printable_line_of_either_kind(said: str, run: str) -> None:
    record = logging.makeLogRecord({"msg": said})
    for line in (text_line(record, {"run": run}), json_line(record, {"run": run})):
        assert line.isprintable()
        line.encode("utf-8")
    assert set(parse(json_line(record, {"run": run}))) >= {"message", "run", "round", "client"}
    assert one_line(one_line(said)) == one_line(said)


def fail(message: str) -> None:
    raise ValueError(message)


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_traceback_is_part_of_its_line(tmp_path: Path, format: Format) -> None:
    def do(_: Logs) -> None:
        try:
            fail("two\nlines")
        except ValueError:
            LOG.exception("the network of the user")

    (line,) = written(tmp_path / "log", do, format)
    if format == "json":
        traceback = parse(line)["traceback"]
        assert parse(line)["message"] == "the network of the user"
        assert traceback.startswith("Traceback (most recent call last):\n")
        assert traceback.endswith("ValueError: two\nlines")
    else:
        assert "ERROR the network of the user | Traceback (most recent call last):\\n  File" in line
        assert line.endswith("ValueError: two\\nlines")
    assert message_in(line).endswith("the network of the user"), "without what comes after it"


def test_what_ends_a_thread_is_a_line_too(tmp_path: Path) -> None:
    def do(_: Logs) -> None:
        thread = threading.Thread(target=fail, args=("in the depths",), name="fedil-web")
        thread.start()
        thread.join()

    (line,) = objects(tmp_path / "log", do)
    assert line["message"] == "fedil-web has ended"
    assert line["traceback"].endswith("ValueError: in the depths")


def test_each_thread_is_about_its_own_and_all_say_what_is_always_so(tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def other() -> None:
        inside.wait()
        LOG.info("other")
        with about(client=2):
            LOG.info("other's client")
        go_on.set()

    def do(logs: Logs) -> None:
        thread = threading.Thread(target=other)
        thread.start()
        logs.always(run="r", round=4)
        with about(client=1):
            inside.set()
            go_on.wait()
            LOG.info("mine")
        logs.always(round=None)
        LOG.info("after")
        thread.join()

    lines = {
        line["message"]: (line["run"], line["round"], line["client"]) for line in objects(tmp_path / "l", do)
    }
    assert lines == {
        "other": ("r", 4, None),
        "other's client": ("r", 4, 2),
        "mine": ("r", 4, 1),
        "after": ("r", None, None),
    }


def test_what_it_is_about_ends_with_its_block_whatever_happens(tmp_path: Path) -> None:
    def do(logs: Logs) -> None:
        logs.always(run="r", round=5, client=1)
        with about(client=2, round=9):
            LOG.info("inside")
        with pytest.raises(ValueError, match="x"), about(client=3):
            fail("x")
        LOG.info("back")

    inside, back = objects(tmp_path / "log", do)
    assert (inside["run"], inside["round"], inside["client"]) == ("r", 9, 2)
    assert (back["run"], back["round"], back["client"]) == ("r", 5, 1)


def test_the_level_counts_and_of_libraries_only_warnings_do(tmp_path: Path) -> None:
    def do(_: Logs) -> None:
        for logger in (LOG, logging.getLogger("some.library")):
            for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
                logger.log(level, "%s %s", logger.name.partition(".")[0], logging.getLevelName(level))

    said = {
        level: [line["message"] for line in objects(tmp_path / level, do, level)]
        for level in ("debug", "error")
    }
    ours = [f"client_worker {level}" for level in ("DEBUG", "INFO", "WARNING", "ERROR")]
    assert said == {
        "debug": [*ours, "some WARNING", "some ERROR"],
        "error": ["client_worker ERROR", "some ERROR"],
    }


def test_a_slip_in_a_call_hides_nothing_and_ends_nothing() -> None:
    record = logging.makeLogRecord({"msg": "%d samples", "args": ("many",)})
    for line in (text_line(record, {}), json_line(record, {})):
        assert "%d samples ('many',)" in message_in(line)


def test_a_very_long_message_is_cut(tmp_path: Path) -> None:
    (line,) = objects(tmp_path / "log", lambda _: LOG.info("%s", "x" * 10**6))
    assert 1000 < len(line["message"]) < 10_000


def test_afterwards_everything_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, hook = logging.getLogger(), lambda _: None
    monkeypatch.setattr(root, "level", logging.CRITICAL)
    monkeypatch.setattr(threading, "excepthook", hook)
    before = list(root.handlers)
    assert len(written(tmp_path / "log", lambda _: LOG.info("x"), "text")) == 1
    assert (root.level, root.handlers, threading.excepthook) == (logging.CRITICAL, before, hook)


@pytest.mark.parametrize("level", ["info", "error"])
def test_a_file_is_added_to_beside_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], level: str
) -> None:
    def do(_: Logs) -> None:
        for number in (logging.INFO, logging.WARNING, logging.ERROR):
            LOG.log(number, "told")

    told = {"info": ["INFO", "WARNING", "ERROR"], "error": ["ERROR"]}[level]
    with set_up_logs("text", "warning"):
        for _ in range(2):
            lines = written(tmp_path / "log", do, "text", level)
    assert [line.split()[1] for line in lines] == 2 * told
    shown = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in shown] == 2 * ["WARNING", "ERROR"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="no-folder") as raised,
        set_up_logs("text", "info", tmp_path / "no-folder" / "x"),
    ):
        pass
    assert raised.value.filename == str(tmp_path / "no-folder" / "x")


# ---- processes


def test_lines_of_a_child_are_told_with_its_number(tmp_path: Path) -> None:
    child = json_line(logging.makeLogRecord({"msg": "mine"}), {"worker": 1})
    said = [child.encode(), b"Segmentation fault \x1b[0m\xff\n", b"\n", b"[1, 2]\n"]

    def do(logs: Logs) -> None:
        for line in said:
            logs.relay(line, 1)

    lines = objects(tmp_path / "json", do)
    assert [(line["message"], line["worker"]) for line in lines] == [
        ("mine", 1),
        ("Segmentation fault \x1b[0m\ufffd", 1),
        ("[1, 2]", 1),
    ]
    assert written(tmp_path / "text", do, "text")[1:2] == ["worker 1: Segmentation fault \\x1b[0m\ufffd"]


def test_the_end_of_a_process_is_a_command_line_complaint_or_an_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def do(logs: Logs) -> None:
        logs.end("client_worker", ValueError("no\nfolder"))

    with set_up_logs("text", "info") as logs:
        do(logs)
    assert capsys.readouterr().err == "client_worker: no\\nfolder\n"
    (line,) = objects(tmp_path / "json", do)
    assert (line["level"], line["logger"], line["message"]) == ("ERROR", "client_worker", "no\nfolder")
    (in_file,) = written(tmp_path / "text", do, "text")
    assert re.fullmatch(TIME + r" ERROR no\\nfolder", in_file)


PROGRAM = """
import logging, os, resource, sys
from broker_config.process.logs import set_up_logs
log = logging.getLogger("client_worker")
with set_up_logs(sys.argv[1], "info"):
    {body}
print("alive")
"""


def run(body: str, format: str, **kwargs: Any) -> "subprocess.CompletedProcess[str]":
    program = PROGRAM.replace("{body}", body)
    return subprocess.run(
        [sys.executable, "-c", program, format],
        text=True,
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
        **kwargs,
    )


def test_what_a_library_warns_of_is_a_line_too() -> None:
    done = run("import warnings; warnings.warn('old\\nstyle')", "json", stderr=subprocess.PIPE)
    line = parse(done.stderr)
    assert line["level"] == "WARNING"
    assert "UserWarning: old\nstyle" in line["message"]


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_full_disk_costs_lines_and_not_the_process(format: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run("[log.error('x' * 1000) for _ in range(100)]", format, stderr=full)
    assert (done.returncode, done.stdout) == (0, "alive\n")


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_reader_who_has_left_costs_lines_and_not_the_process(format: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run("[log.error('x' * 1000) for _ in range(100)]", format, stderr=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stdout) == (0, "alive\n")


def test_without_a_standard_error_nothing_happens() -> None:
    done = run(
        "os.close(2); log.error('x'); sys.stderr = None; log.error('y')", "text", stderr=subprocess.PIPE
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


def test_after_half_a_line_the_next_begins_a_new_one(tmp_path: Path) -> None:
    """A disk that is full in the middle of a line, and later has room again."""
    body = """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (250, hard))
    for number in range(4):
        log.info("line %d %s", number, "x" * 40)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.info("room again")
"""
    with (tmp_path / "log").open("wb") as file:
        done = run(body.strip(), "json", stderr=file)
    assert done.stdout == "alive\n"
    lines = (tmp_path / "log").read_text().splitlines()
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        parse(lines[-2])
    assert parse(lines[-1])["message"] == "room again"
    assert all(parse(line)["level"] == "INFO" for line in lines[:-2])
