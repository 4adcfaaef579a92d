"""What `--help` says, of every command."""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.cli.examples import EXAMPLES
from ops.cli.main import make_parser

ROOT = Path(__file__).parents[3]


def test_every_option_of_every_command_says_what_it_is_for() -> None:
    for parser in parsers_under(make_parser()):
        unsaid = [
            action.dest for action in parser._actions if not action.help and action.nargs != argparse.PARSER
        ]
        assert unsaid == [], parser.prog


def parsers_under(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if action.nargs == argparse.PARSER:
            for below in dict(action.choices or {}).values():
                yield from parsers_under(below)


@pytest.mark.parametrize("module", ["server_worker", "client_worker"])
def test_the_workers_own_help_says_what_each_option_is_for(module: str) -> None:
    command = [sys.executable, "-m", module, "--help"]
    wide = os.environ | {"COLUMNS": "400"}
    said = subprocess.run(
        command, capture_output=True, encoding="utf-8", env=wide, cwd=ROOT, check=True
    ).stdout
    described = [option.split() for option in said.partition("options:")[2].split("\n  -")[1:]]
    assert len(described) > 5
    assert [words for words in described if len(words) < 4] == []


def test_one_style_for_defaults_and_for_what_need_not_be_given() -> None:
    said = {parser.prog: " ".join(parser.format_help().split()) for parser in parsers_under(make_parser())}
    told_otherwise = [prog for prog, text in said.items() if "(default: " in text]
    assert [prog for prog in told_otherwise if not prog.startswith("fedil broker ")] == []
    actions = "[list | show NAME [--resolved] | explain [KEY]]"
    assert said["fedil recipes"].startswith(f"usage: fedil recipes [-h] {actions} List")
    assert said["fedil ledger list"].count("--run ID") == 2


def test_every_command_has_examples_that_it_takes() -> None:
    fedil = make_parser()
    progs = {parser.prog for parser in parsers_under(fedil)}
    assert progs - EXAMPLES.keys() == set(), "add examples to ops/cli/examples.py"
    assert EXAMPLES.keys() - progs == set()
    for prog, lines in EXAMPLES.items():
        for line in lines:
            assert f"{line} ".startswith(f"{prog} ")
            fedil.parse_args(shlex.split(line.partition(" > ")[0])[1:])


def test_help_ends_with_the_examples_as_they_are_typed() -> None:
    (parser,) = [one for one in parsers_under(make_parser()) if one.prog == "fedil export"]
    shown = parser.format_help()
    assert shown.splitlines()[-3:] == ["examples:", *(f"  {line}" for line in EXAMPLES["fedil export"])]
