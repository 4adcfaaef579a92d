"""From what a caller gives to a validated recipe, with the errors that a TOML file gets."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedil.words import arguments_instead_of_options
from fedil_model.errors import SettingError
from ops.cli.recipe_files import read_recipe, with_data_root
from server_worker.run import recipe as recipes

Given = str | Path | Mapping[str, Any] | recipes.Recipe
"""A built-in name, a .toml file, a table of settings, or a recipe"""


def Recipe(base: Given | None = None, /, **settings: Any) -> recipes.Recipe:  # noqa: N802 - it makes one
    """A validated recipe: `settings` on top of `base`, or of the defaults. `fedil.Recipe("digits", client__lr=0.1)`,
    `fedil.Recipe(split={"labelled": 30, "clients": 6}, network={"name": "mlp"})`"""
    with arguments_instead_of_options():
        return made(base if base is not None else {}, settings)


def made(given: Given, settings: Mapping[str, Any]) -> recipes.Recipe:
    overrides = [_override(key, value) for key, value in settings.items()]
    if isinstance(given, str | Path):
        return read_recipe(str(given), overrides)
    values = _chosen(given) if isinstance(given, recipes.Recipe) else given
    recipe = recipes.make_recipe(_by_name("", values), "recipe", overrides)
    return recipe.model_copy(update={"data": with_data_root(recipe.data)})


def _chosen(recipe: recipes.Recipe) -> dict[str, Any]:
    """Without what its profile has filled in: another method brings other values."""
    values, profiles = recipe.model_dump(exclude_unset=True), recipe.spec.profiles
    return _beyond(values, profiles.get(recipe.profile, {}))


def _beyond(values: Mapping[str, Any], filled: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _beyond(value, filled[key]) if isinstance(value, dict) and key in filled else value
        for key, value in values.items()
        if key not in filled or value != filled[key]
    }


def _override(key: str, value: Any) -> recipes.Override:
    parts = key.replace("__", ".").split(".")
    if not all(part.isidentifier() for part in parts):
        raise SettingError(f"{key!r} is no setting: write client__lr=0.1, or **{{'client.lr': 0.1}}")
    value = _by_name(".".join(parts), value)
    return recipes.Override.of(parts, value, f"{'.'.join(parts)}={value!r}")


def _by_name(key: str, value: Any) -> Any:
    """With functions and classes as what a recipe calls them"""
    if isinstance(value, Mapping):
        return {name: _by_name(f"{key}.{name}".lstrip("."), part) for name, part in value.items()}
    return _importable(key, value) if callable(value) else value


def _importable(key: str, function: Callable[..., Any]) -> str:
    """`module:callable`, by which workers import it."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module == "__main__":
        script = getattr(sys.modules["__main__"], "__file__", None)
        module = Path(script).stem if script else None
    if not module or not name.isidentifier():
        raise SettingError(
            f"{key}: workers are processes of their own and import {name or function!r} by name: put it in a module, "
            "at its top level (in a notebook begin a cell with %%writefile mine.py), and import it from there"
        )
    return f"{module}:{name}"
