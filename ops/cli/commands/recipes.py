"""List the recipes that come with FedIL, or show one of them."""

import argparse
import json
import sys
import tomllib
from pathlib import Path

from fedil_model.errors import SettingError
from ops.cli.recipe_files import RECIPES, built_in_names, find_recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(show=None)
    actions = parser.add_subparsers(metavar="ACTION")
    actions.add_parser("list", help="what is built in, one a line; the same without ACTION")
    show = actions.add_parser("show", help="print one recipe as TOML")
    show.add_argument("show", metavar="NAME", help="a built-in recipe, or a .toml file")
    show.add_argument("--resolved", action="store_true", help="every setting, after the profile is applied")
    # argparse would show the action as if it had to be given. Last, since the action's own usage begins with ours.
    parser.usage = "%(prog)s [-h] [list | show NAME [--resolved]]"


def run(args: argparse.Namespace) -> int:
    if args.show is None:
        print_list()
    elif args.resolved:
        print_resolved(find_recipe(args.show))
    else:
        print_written(find_recipe(args.show))
    return 0


def print_list() -> None:
    names = built_in_names()
    width = max(len(name) for name in names)
    for name in names:
        recipe = tomllib.loads((RECIPES / f"{name}.toml").read_text(encoding="utf-8"))
        print(f"{name:{width}}  {recipe.get('description', '')}")


def print_written(path: Path) -> None:
    try:
        sys.stdout.write(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise SettingError(f"recipe {path} is not UTF-8 text: {error}") from error


def print_resolved(path: Path) -> None:
    """Dotted keys are TOML too, so what is printed can be saved and run."""
    from server_worker.run.recipe import flatten, load_recipe

    for key, value in flatten(load_recipe(path).model_dump(mode="json")).items():
        if value is None:
            print(f"# {key} is not set")
        else:
            print(f"{key} = {json.dumps(value, ensure_ascii=False)}")
