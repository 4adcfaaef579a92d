"""Print what completes commands, options, their choices, files and built-in recipes in a shell."""

import argparse
from pathlib import Path
from typing import Any

from ops.cli.recipe_files import built_in_names

SHELLS = ("bash", "zsh", "fish")
_RECIPES = {"RECIPE", "R"}
"""What arguments that take a recipe are called in help"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=f"{', '.join(SHELLS)}")


def run(args: argparse.Namespace) -> int:
    import shtab

    from ops.cli.main import make_parser

    parser = make_parser()
    say_what_completes(parser)
    names = " ".join(built_in_names())
    preamble = {
        "bash": f'_fedil_recipes() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}\n',
        "zsh": f"_fedil_recipes() {{ compadd {names}; _files -g '*.toml' }}\n",
    }
    print(shtab.complete(parser, shell=args.shell, preamble=preamble.get(args.shell, "")))
    return 0


def say_what_completes(parser: argparse.ArgumentParser) -> None:
    import shtab

    for action in parser._actions:
        how: Any = action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                say_what_completes(below)
        elif action.metavar in _RECIPES:
            how.complete = {"bash": "_fedil_recipes", "zsh": "_fedil_recipes"}
        elif action.type is Path:
            how.complete = shtab.DIRECTORY if action.metavar in {"DIR", "FOLDER", "RUN"} else shtab.FILE
