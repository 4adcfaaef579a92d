"""List the recipes that come with FedIL, show one of them, or explain its settings."""

import argparse
import json
import sys
import textwrap
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedil_model.errors import SettingError
from ops.cli.recipe_files import RECIPE_HELP, RECIPES, built_in_names, find_recipe, read_recipe
from server_worker.options import add_override_argument

if TYPE_CHECKING:
    from ops.reference.settings import Setting

_WIDTH = 110


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run_list)
    actions = parser.add_subparsers(metavar="ACTION")
    every = actions.add_parser("list", help="what is built in, one a line; the same without ACTION")
    show = actions.add_parser("show", help="print one recipe as TOML")
    show.add_argument("show", metavar="NAME", help=RECIPE_HELP)
    show.add_argument(
        "--resolved",
        action="store_true",
        help="every setting, after the profile is applied, and what it is for",
    )
    explain = actions.add_parser("explain", help="what settings are for, their values and defaults")
    what = "a setting (federation.quorum), a table of them (federation) or its last part (lr); default: all"
    explain.add_argument("key", nargs="?", metavar="KEY", help=what)
    explain.add_argument("--recipe", metavar="R", help=f"say what it has too: {RECIPE_HELP}")
    add_override_argument(explain)
    for action in (every, show, explain):
        action.add_argument("--json", action="store_true", help="JSON instead of text")
    parser.set_defaults(json=False)
    show.set_defaults(run=run_show)
    explain.set_defaults(run=run_explain)
    # argparse would show the action as if it had to be given. Last, since the action's own usage begins with ours.
    parser.usage = "%(prog)s [-h] [list | show NAME [--resolved] | explain [KEY]]"


def run_list(args: argparse.Namespace) -> int:
    described = {name: description_of(RECIPES / f"{name}.toml") for name in built_in_names()}
    if args.json:
        print(json.dumps(described, ensure_ascii=False))
        return 0
    width = max(map(len, described))
    for name, description in described.items():
        print(f"{name:{width}}  {description}")
    return 0


def description_of(path: Path) -> str:
    return str(tomllib.loads(path.read_text(encoding="utf-8")).get("description", ""))


def run_show(args: argparse.Namespace) -> int:
    path = find_recipe(args.show)
    if args.json:
        from server_worker.run.recipe import load_recipe, read_values

        shown = load_recipe(path).model_dump(mode="json") if args.resolved else read_values(path)
        print(json.dumps(shown, ensure_ascii=False))
    elif args.resolved:
        print_resolved(path)
    else:
        print_written(path)
    return 0


def print_written(path: Path) -> None:
    try:
        sys.stdout.write(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"cannot read recipe {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"recipe {path} is not UTF-8 text: {error}") from error


def print_resolved(path: Path) -> None:
    """Dotted keys are TOML too, so what is printed can be saved and run."""
    from ops.reference.settings import in_toml, resolved
    from server_worker.run.recipe import load_recipe

    for setting, values in resolved(load_recipe(path)):
        print(textwrap.fill(setting.text, _WIDTH, initial_indent="# ", subsequent_indent="# "))
        for key, value in values.items():
            print(f"# {key} is not set" if value is None else f"{key} = {in_toml(value)}")
        print()


def run_explain(args: argparse.Namespace) -> int:
    chosen, values = explained(args)
    if args.json:
        print(json.dumps([as_json(one, values) for one in chosen], ensure_ascii=False))
    elif args.key is None:
        print_overview(chosen)
    else:
        print("\n\n".join(in_full(one, values) for one in chosen))
    return 0


def explained(args: argparse.Namespace) -> "tuple[list[Setting], dict[str, Any]]":
    """The settings that were asked for, and what the recipe has, if one was named"""
    from ops.reference.settings import FILE_KEYS, choose, elsewhere, settings_of, unknown

    named = args.recipe is not None
    recipe = read_recipe(args.recipe or "digits", args.overrides)
    settings = [*settings_of(recipe.method.name), *FILE_KEYS]
    chosen = choose(settings, args.key) if args.key is not None else settings
    if not chosen and args.key.startswith("method."):
        methods = list(elsewhere(args.key))
        if methods:
            raise SettingError(
                f"method {recipe.method.name} has no setting {args.key}, but {', '.join(methods)} "
                f"{'has' if len(methods) == 1 else 'have'}: add --set method.name={methods[0]}"
            )
    if not chosen:
        raise unknown(settings, args.key)
    return chosen, recipe.model_dump(mode="json") if named or args.overrides else {}


def as_json(setting: "Setting", values: dict[str, Any]) -> dict[str, Any]:
    from ops.reference.settings import value_at

    has = {"value": value_at(values, setting.key)} if values and setting.defaults else {}
    return {**asdict(setting), **has}


def in_full(setting: "Setting", values: dict[str, Any]) -> str:
    from ops.reference.settings import in_toml, value_at

    lines = {"values": setting.values, "default": setting.default}
    if values and setting.defaults:
        lines["recipe"] = in_toml(value_at(values, setting.key))
    text = textwrap.fill(setting.text, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    return "\n".join([setting.key, text, *(f"    {name:8} {value}" for name, value in lines.items())])


def print_overview(settings: "list[Setting]") -> None:
    width = max(len(one.key) for one in settings)
    for one in settings:
        print(f"{one.key:{width}}  {textwrap.shorten(one.text, _WIDTH - width, placeholder=' …')}")
    print("\nmore about one: fedil recipes explain KEY", file=sys.stderr)
