"""Reference pages of the documentation, written from the code: `./ops/scripts/docs`, or `python -m ops.reference`."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from client_worker.limits import LimitSettings
from fedil_model.methods import DEFAULT_METHOD, METHODS, find_method
from ops.cli.examples import EXAMPLES
from ops.cli.main import make_parser
from ops.reference.settings import FILE_KEYS, Setting, in_toml, in_words, leaves, one_line, settings_of
from server_worker.run.recipe import flatten

DOCS = Path(__file__).parents[1] / "docs"
_WRITTEN = "<!-- Written by ./ops/scripts/docs; do not edit. -->\n"


def settings_page() -> str:
    """Every setting of a recipe, of each method, and of a site's limits"""
    common = [one for one in settings_of(DEFAULT_METHOD) if not one.key.startswith("method.")]
    parts = [
        _WRITTEN,
        "# Settings\n",
        "A recipe is a TOML file of these settings; `--set key=value` changes one of them. A misspelt key is an error "
        "that names the nearest one. `fedil recipes explain KEY` prints what is below, `fedil recipes show NAME "
        "--resolved` a whole recipe with it. Defaults are those of the method `fedil`; where its profiles differ, each "
        "is named. What the profiles of other methods set is under [Methods](#methods).\n",
        "## The file\n",
        _table(FILE_KEYS),
    ]
    for table, settings in groupby(common, key=lambda one: one.key.rpartition(".")[0]):
        parts += [f"## {f'`[{table}]`' if table else 'The run'}\n", _table(settings)]
    parts += [
        "## Methods\n",
        "The table `[method]` has the settings of the method that `method.name` names.\n",
    ]
    for name in METHODS:
        parts += _method(name)
    parts += [
        "## A site's limits\n",
        "`fedil worker --limits FILE`: a TOML file of the site's own, which no server can change. Every line may be "
        "left out.\n",
        _table(_limits()),
    ]
    return "\n".join(parts)


def _method(name: str) -> Iterator[str]:
    spec, settings = find_method(name), settings_of(name)
    own = [one for one in settings if one.key.startswith("method.") and one.key != "method.name"]
    source = f" ([{spec.reference.removeprefix('https://')}]({spec.reference}))" if spec.reference else ""
    yield f"### `{name}`\n"
    yield f"{spec.title}{source}. Profiles: {', '.join(f'`{profile}`' for profile in spec.profiles)}.\n"
    if own:
        yield _table(own)
    for profile, tables in spec.profiles.items():
        others = flatten({table: values for table, values in tables.items() if table != "method"})
        if others:
            sets = ", ".join(f"`{key} = {in_toml(value)}`" for key, value in others.items())
            yield f"Profile `{profile}` also sets {sets}.\n"


def _limits() -> list[Setting]:
    return [
        Setting(key, one_line(schema["description"]), in_words(schema), {"": schema.get("default")})
        for key, schema in leaves(LimitSettings)
    ]


def _table(settings: Iterable[Setting]) -> str:
    rows = [
        (
            f"`{one.key}`",
            one.text,
            one.values,
            one.default if one.default == "not set" else f"`{one.default}`",
        )
        for one in settings
    ]
    return _rows(("setting", "what it is for", "values", "default"), rows)


def _rows(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *([_in_table(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _in_table(text: str) -> str:
    """A bar would begin the next cell, and <words> an element of HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def commands_page() -> str:
    """Every command of `fedil`, with its examples and arguments"""
    parts = [
        _WRITTEN,
        "# Commands\n",
        "`fedil COMMAND --help` says the same; `--set`, `--json` and so on mean the same everywhere. [Exit codes]"
        "(exit-codes.md) follow one rule. `fedil completion bash` prints what completes commands in a shell.\n",
    ]
    for parser in parsers_of(make_parser()):
        parts += [f"## {parser.prog}\n", f"{(parser.description or '').strip()}\n"]
        if parser.prog in EXAMPLES:
            commands = "\n".join(f"$ {line}" for line in EXAMPLES[parser.prog])
            parts.append(f"```console\n{commands}\n```\n")
        shown = [action for action in parser._actions if argparse.SUPPRESS not in (action.help, action.dest)]
        if rows := [
            _argument(action) for action in shown if action.dest != "help" and action.nargs != "A..."
        ]:
            parts.append(_rows(("argument", "what it is for"), rows))
    return "\n".join(parts)


def parsers_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Itself and those of its actions, which say what they are for as their help does"""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below, about in zip(action.choices.values(), action._choices_actions, strict=True):
                below.description = below.description or f"{about.help}"
                yield from parsers_of(below)


def _argument(action: argparse.Action) -> tuple[str, str]:
    names = ", ".join(action.option_strings)
    choices = "|".join(map(str, action.choices)) if action.choices else ""
    value = "" if action.nargs == 0 else f"{action.metavar or choices or action.dest}"
    return f"`{f'{names} {value}'.strip()}`", action.help or ""


PAGES: dict[str, Callable[[], str]] = {"settings.md": settings_page, "commands.md": commands_page}
"""File in ops/docs → its text"""
