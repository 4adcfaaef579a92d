import shlex
import signal
import sys
from pathlib import Path

import pytest

from ops.cli.interruption import interruptible
from ops.cli.invocation import STARTED_AS, resume_words, shell_line, without_password


def test_the_resume_command_is_the_same_command_with_resume_instead_of_overwrite() -> None:
    words = ["simulate", "digits", "--overwrite", "--set", "client.lr=0.1"]
    assert resume_words(words) == ["simulate", "digits", "--set", "client.lr=0.1", "--resume"]
    assert resume_words(resume_words(words)) == resume_words(words)


def test_a_command_is_quoted_for_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/elsewhere/fedil"])
    assert shell_line("evaluate", "my runs/it's") == """/elsewhere/fedil evaluate 'my runs/it'"'"'s'"""


def test_what_a_command_starts_speaks_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/ops/cli/main.py"])
    monkeypatch.setenv(STARTED_AS, "/elsewhere/fedil")
    assert shell_line("report", "run") == "/elsewhere/fedil report run"


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("amqp://user:secret@host:5672/v", "amqp://user:PASSWORD@host:5672/v"),
        ("--broker=amqps://user:secret@host/v?cafile=a", "--broker=amqps://user:PASSWORD@host/v?cafile=a"),
        ("redis://:secret@host", "redis://:PASSWORD@host"),
        ("--store=redis://u:se@cr/et@host", "--store=redis://u:PASSWORD@host"),
        ("redis://host/0?password=secret&db=1", "redis://host/0?password=PASSWORD&db=1"),
        ("amqp://host:5672/v", "amqp://host:5672/v"),
        ("amqp://user@host/v", "amqp://user@host/v"),
        ("client.lr=0.1", "client.lr=0.1"),
    ],
)
def test_a_password_is_not_repeated_to_whoever_looks(
    monkeypatch: pytest.MonkeyPatch, word: str, shown: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["/elsewhere/fedil"])
    assert without_password(word) == shown
    line = shell_line("server", "--broker", word)
    assert shlex.split(line) == ["/elsewhere/fedil", "server", "--broker", shown]


def test_the_program_is_named_as_it_can_be_found_from_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "bin" / "fedil"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", "/nowhere")
    assert shell_line("recipes") == "bin/fedil recipes"
    monkeypatch.setenv("PATH", str(program.parent))
    assert shell_line("recipes") == "fedil recipes"


def test_the_first_interrupt_asks_to_stop_and_the_second_one_stops() -> None:
    told: list[str] = []
    with interruptible(lambda: told.append("stopping")) as interruption:
        assert not interruption.stop.is_set()
        signal.raise_signal(signal.SIGINT)
        assert interruption.stop.is_set()
        assert interruption.exit_code == 130
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert told == ["stopping"]


def test_afterwards_interrupts_do_what_they_did_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interruptible(lambda: None):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
