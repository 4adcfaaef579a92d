"""From what a person typed to a recipe: built-in names, .toml paths, and FEDIL_DATA."""

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedil_model.errors import SettingError
from fedil_model.plugins import MODULES_BESIDE_RECIPE

if TYPE_CHECKING:
    from fedil_model.settings import DataSettings
    from server_worker.run.recipe import Override, Recipe

RECIPES = Path(__file__).parents[1] / "recipes"
RECIPE_HELP = "a built-in name (see: fedil recipes) or a .toml file"


def built_in_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def find_recipe(name: str) -> Path:
    """A built-in name, or the path of a .toml file (anything with a slash or that ending), beside which modules of the
    user's are found from then on."""
    if name.endswith(".toml") or os.sep in name:
        os.environ[MODULES_BESIDE_RECIPE] = str(Path(name).resolve().parent)
        return Path(name)
    known = built_in_names()
    if name in known:
        return RECIPES / f"{name}.toml"
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "see: fedil recipes"
    raise SettingError(f"there is no recipe {name!r}; {hint}")


def read_recipe(name: str, overrides: "Sequence[str | Override]") -> "Recipe":
    path = find_recipe(name)
    from server_worker.run.recipe import load_recipe

    recipe = load_recipe(path, overrides)
    return recipe.model_copy(update={"data": with_data_root(recipe.data)})


def with_data_root(data: "DataSettings") -> "DataSettings":
    """FEDIL_DATA replaces a root that is not set, or that was set on another machine."""
    default = os.environ.get("FEDIL_DATA")
    if not default or (data.root is not None and data.root.exists()):
        return data
    place = Path(default)
    if data.root is not None and (place / data.root.name).is_file():
        place /= data.root.name
    return data.model_copy(update={"root": place})
