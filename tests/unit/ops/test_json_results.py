"""Commands that print a result print it for programs too, as JSON and nothing else."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.cli.main import main, make_parser

WITHOUT = {
    "fedil worker": "it logs, see --log-format json",
    "fedil cluster": "the view of its server, and logs",
    "fedil completion": "a script for a shell",
    "fedil broker init": "addresses for shells",
    "fedil broker files": "paths, one a line",
    "fedil broker check": "findings, one a line",
    "fedil broker retire": "what it has removed, one a line",
}


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for choice in action.choices.values():
            yield from commands(choice)


def test_every_command_that_prints_a_result_has_json() -> None:
    without = {one.prog for one in commands(make_parser()) if not any(a.dest == "json" for a in one._actions)}
    assert without <= WITHOUT.keys()


def result_of(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Any:
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert "digits" in result_of(capsys, "recipes", "list")
    assert result_of(capsys, "recipes", "show", "digits")["data"]["name"] == "digits"
    assert result_of(capsys, "recipes", "show", "digits", "--resolved")["federation"]["quorum"] == 1.0


def test_monitoring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = result_of(capsys, "monitoring", "--out", tmp_path)
    assert f"{tmp_path}/prometheus/prometheus.yml" in written
    assert all(Path(path).is_file() for path in written)


def test_credentials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words: list[str | Path] = ["credentials", "--hosts", "rabbitmq", "--sites", "north", "--out", tmp_path]
    first = result_of(capsys, *words)
    assert {Path(path).parent.name for path in first} == {"brokers", "server", "site-north"}
    assert all(one["new"] for one in first.values())
    assert not any(one["new"] for one in result_of(capsys, *words).values())


def test_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = result_of(capsys, "shards", "digits", "--site", "default", "--out", tmp_path / "shards")
    assert (made["samples"], made["clients"]) == (1388, list(range(20)))
