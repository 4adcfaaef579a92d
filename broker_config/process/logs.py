"""A process's log: one event is one line, text for people or JSON for machines, with the run, round and client that
it is about. What others say goes into it as text that cannot start a line of its own or steer a terminal.

    with set_up_logs("json", "info", site="hospital") as logs:
        with about(run="r", round=3, client=7):
            _log.info("trained %d samples", 60)
"""

import argparse
import json
import logging
import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

Format = Literal["text", "json"]
FORMATS: tuple[Format, ...] = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
ROOMS = frozenset({"broker_config", "client_worker", "server_worker", "fedil_model", "ops"})
"""Packages that log debug and info lines; of other libraries only warnings are logged."""

_WHERE = ("run", "round", "client")
_LONGEST_MESSAGE, _LONGEST_TRACEBACK = 4_000, 12_000
_TRACEBACK = " | Traceback (most recent call last):"

_here: ContextVar[Mapping[str, object]] = ContextVar("fedil_log_facts", default=MappingProxyType({}))


def add_log_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-format",
        choices=FORMATS,
        default="text",
        help="a log line is text for people (the default), or one JSON object",
    )
    parser.add_argument(
        "--log-level",
        choices=LEVELS,
        default="info",
        help="the least that is logged; debug also tells a round's phases and each task taken; default: info",
    )


@contextmanager
def about(**facts: object) -> Iterator[None]:
    """Whatever this thread logs in here concerns the run, round, client and so on that are given. JSON lines show all
    facts; lines of text begin with these three."""
    token = _here.set({**_here.get(), **facts})
    try:
        yield
    finally:
        _here.reset(token)


class Logs(logging.Handler):
    """Where a process's log lines go, and what all of them say, whichever thread they come from.

    A full disk or a closed pipe costs lines, never the process. Lines go past Python's buffers: those would keep what
    could not be written, and fail once more when the process ends."""

    def __init__(self, format: Format, file: Path | None, facts: Mapping[str, object]) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666) if file else None
        super().__init__()
        self._json = format == "json"
        self._torn, self._writing = False, threading.RLock()
        self._facts: dict[str, object] = {}
        self.always(**facts)
        self.addFilter(_of_interest)

    def always(self, **facts: object) -> None:
        """From now on; None takes a fact away."""
        together = {**self._facts, **facts}
        self._facts = {name: value for name, value in together.items() if value is not None}

    def relay(self, line: bytes, worker: int) -> None:
        """What a process of ours has said. In JSON it tells its number itself; what it, or a library in it, has
        said in other words becomes a line of ours."""
        text = line.decode("utf-8", "replace").strip()
        if not self._json:
            self.write(one_line(f"worker {worker}: {text}"))
        elif _object_in(text):
            self.write(text)
        elif text:
            with about(worker=worker):
                logging.getLogger("client_worker").warning("%s", text)

    def end(self, program: str, error: BaseException, traceback: bool = False) -> None:
        """Why this process ends before its work is done: on standard error the line `program: why`, as any command
        says it, unless that is JSON."""
        said = f"{type(error).__name__}: {error}" if traceback else str(error) or type(error).__name__
        exc_info = (type(error), error, error.__traceback__) if traceback else None
        record = logging.LogRecord(program, logging.ERROR, "", 0, "%s", (said,), exc_info)
        if self._json or self._file is not None:
            self.handle(record)
        else:
            self.write(one_line(f"{program}: {said}{_after(_traceback(record))}"))

    def emit(self, record: logging.LogRecord) -> None:
        # In the thread that logs, of whose work `_here` knows.
        line = json_line if self._json else text_line
        self.write(line(record, {**self._facts, **_here.get()}))

    def write(self, line: str) -> None:
        # As it is at that moment: a live view, or a test, may stand in for it.
        stream = sys.stderr
        with self._writing, suppress(OSError, ValueError):
            if self._file is not None:
                self._put(self._file, f"{line}\n".encode())
            elif stream is not None and stream is not sys.__stderr__:
                stream.write(f"{line}\n")
                stream.flush()
            elif stream is not None:
                self._put(stream.fileno(), f"{line}\n".encode(stream.encoding, "backslashreplace"))

    def _put(self, descriptor: int, line: bytes) -> None:
        rest = memoryview(b"\n" + line if self._torn else line)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
            self._torn = bool(rest)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        super().close()


@contextmanager
def set_up_logs(
    format: Format = "text", level: str = "info", file: Path | None = None, **facts: object
) -> Iterator[Logs]:
    """To `file`, which is appended to, or else to standard error. Also Python's warnings and what ends a thread.
    Raises OSError for a file that cannot be written."""
    logs, root = Logs(format, file, facts), logging.getLogger()
    level_before, crash_before = root.level, threading.excepthook
    logs.setLevel(level.upper())
    root.addHandler(logs)
    root.setLevel(min(logs.level, root.level))
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_crash
    try:
        yield logs
    finally:
        threading.excepthook = crash_before
        logging.captureWarnings(False)
        root.setLevel(level_before)
        root.removeHandler(logs)
        logs.close()


def _log_thread_crash(crash: threading.ExceptHookArgs) -> None:
    if crash.exc_value is not None and not isinstance(crash.exc_value, SystemExit):
        name = crash.thread.name if crash.thread else "a thread"
        logging.getLogger("broker_config").error("%s has ended", name, exc_info=crash.exc_value)


# ---- lines -------------------------------------------------------------------------------------------------------


def text_line(record: logging.LogRecord, facts: Mapping[str, object]) -> str:
    """`2026-01-31T12:00:00.000Z INFO run r, round 3, client 7: trained 60 samples`"""
    where = ", ".join(f"{name} {facts[name]}" for name in _WHERE if facts.get(name) is not None)
    said = f"{where}{': ' if where else ''}{_message(record)}{_after(_traceback(record))}"
    return one_line(f"{_time(record)} {record.levelname} {said}")


def json_line(record: logging.LogRecord, facts: Mapping[str, object]) -> str:
    """An object with time, level, logger, message, run, round and client; unknown ones are null."""
    fields: dict[str, object] = {
        "time": _time(record),
        "level": record.levelname,
        "logger": record.name,
        "message": _message(record),
        **dict.fromkeys(_WHERE),
        **facts,
    }
    if traceback := _traceback(record):
        fields["traceback"] = traceback
    # ASCII only: whatever a string holds, neither a terminal nor a reader of lines finds anything in it.
    return json.dumps(plain(fields), ensure_ascii=True, allow_nan=False)


def one_line(text: str) -> str:
    """Line breaks, escape sequences and what else does not print, written out as \\n, \\x1b and so on."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def message_in(line: str) -> str:
    """What a log line, of either kind, says."""
    said = _object_in(line).get("message")
    return said if isinstance(said, str) else line.partition(_TRACEBACK)[0]


def _object_in(line: str) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(line)
        if isinstance(found, dict):
            return found
    return {}


def _time(record: logging.LogRecord) -> str:
    """RFC 3339"""
    when = datetime.fromtimestamp(record.created, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    try:
        said = record.getMessage()
    except Exception as error:  # a slip in some call of ours must not hide what it wanted to say
        said = f"{record.msg} {record.args} ({error})"
    return said if len(said) <= _LONGEST_MESSAGE else f"{said[:_LONGEST_MESSAGE]}…"


def _traceback(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    text = logging.Formatter().formatException(record.exc_info)
    # The end says what happened and where.
    return text if len(text) <= _LONGEST_TRACEBACK else f"…{text[-_LONGEST_TRACEBACK:]}"


def _after(traceback: str) -> str:
    return f" | {traceback}" if traceback else ""


def plain(value: object) -> object:
    """What JSON knows: without infinity and NaN, and without halves of characters."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")


def _of_interest(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or record.name.partition(".")[0] in ROOMS
