"""One rule for all commands, as ops/docs/exit-codes.md has it."""

import re
import signal
from pathlib import Path

import pytest

from ops.cli.interruption import interruptible
from ops.cli.main import FAILED, INTERRUPTED, MISUSED, main
from ops.reference.pages import DOCS


def test_the_documented_codes_are_those_of_the_program() -> None:
    page = (DOCS / "exit-codes.md").read_text(encoding="utf-8")
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)]
    assert codes == [0, FAILED, MISUSED, INTERRUPTED, 128 + signal.SIGTERM]


@pytest.mark.parametrize(
    "words",
    [
        ["recipes", "show", "nothing-like-it"],
        ["recipes", "show", "missing.toml"],
        ["recipes", "show", "missing.toml", "--resolved"],
        ["recipes", "explain", "nothing.like.it"],
        ["simulate", "digits", "--set", "rounds=-1"],
        ["evaluate", "no/such/run"],
        ["export", "no/such/run", "--format", "onnx"],
        ["report", "no/such/run"],
        ["ledger", "list", "--run-dir", "no/such/run"],
        ["shards", "digits", "--site", "nowhere", "--out", "no/such/folder"],
        ["broker", "init"],
        ["broker", "runs"],
        ["credentials", "--hosts", "", "--sites", "a", "--out", "no/such/folder"],
    ],
    ids=" ".join,
)
def test_what_other_words_would_put_right_is_misuse(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("FEDIL_MANAGEMENT_URL", "FEDIL_ADMIN_STORE_URL", "FEDIL_STORE_URL", "FEDIL_BROKER_URL"):
        monkeypatch.delenv(name, raising=False)
    assert main(words) == MISUSED
    out, said = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"(fedil: .+\n)+", said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["simulat"], ["simulate", "--workers", "0"], ["status", "--all"], []])
def test_arguments_that_do_not_exist_are_misuse(words: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    assert exit_.value.code == MISUSED


def test_what_is_damaged_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.json").write_text("[]")
    assert main(["evaluate", str(tmp_path)]) == FAILED
    assert capsys.readouterr().err.startswith("fedil: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_told_by_its_number(number: signal.Signals) -> None:
    asked: list[bool] = []
    with interruptible(on_first=lambda: asked.append(True)) as interruption:
        signal.raise_signal(number)
        assert interruption.stop.is_set()
    assert (interruption.exit_code, asked) == (128 + number, [True])
