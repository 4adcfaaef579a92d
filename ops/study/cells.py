"""What a study runs: one recipe for each variant and seed, checked before anything starts."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fedil_model.errors import SettingError
from fedil_model.methods import find_method, method_named
from ops.cli.recipe_files import find_recipe, with_data_root
from server_worker.run.recipe import Recipe, flatten, make_recipe, read_values

_OF_A_METHOD = re.compile(r"^(?P<variant>[A-Za-z0-9_./@-]+):(?P<override>[A-Za-z_][\w.]*=.*)$", re.DOTALL)
"""`semifl:method.threshold=0.9`"""
_BUDGET = (
    "rounds",
    "client.epochs",
    "client.batch_size",
    "server.epochs",
    "server.batch_size",
    "server.pretrain_epochs",
    "network.norm",
    "federation.clients_per_round",
)
_CHOSEN_FOR_A_METHOD = {
    "client": ("lr", "lr_schedule", "lr_floor"),
    "server": ("lr", "lr_schedule", "lr_floor", "pretrain_lr"),
    "network": ("norm",),
}
"""What a recipe says for its own method, and another method's profile says for that one"""


@dataclass(frozen=True)
class Cell:
    variant: str
    seed: int
    recipe: Recipe

    @property
    def name(self) -> str:
        return f"{re.sub(r'[^A-Za-z0-9_.=-]+', '-', self.variant)}-seed-{self.seed}"


def parse_seeds(text: str) -> list[int]:
    """ "3" is 0, 1, 2; "0-4" and "1,5" are themselves."""
    seeds: list[int] = []
    if text.isdecimal():
        seeds += range(int(text))
    elif re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        for part in text.split(","):
            first, _, last = part.partition("-")
            seeds += range(int(first), int(last or first) + 1)
    if not seeds:
        raise SettingError(f'--seeds {text}: give a number of seeds ("3"), a range ("0-4") or a list ("1,5")')
    return list(dict.fromkeys(seeds))


def compared_methods(
    recipe: str, methods: Sequence[str], seeds: Sequence[int], overrides: Sequence[str]
) -> list[Cell]:
    """`methods`: NAME, NAME/PROFILE, and either with @LABEL, so that a method can come several times. An override may
    begin with one of them and a colon: then it is its own."""
    common, own = _by_variant(overrides, methods)
    cells = []
    for method in dict.fromkeys(methods):
        name, _, profile = method.partition("@")[0].partition("/")
        find_method(name)  # an unknown name is refused with the nearest known one
        chosen = [f"method.name={name}", *([f"profile={profile}"] if profile else [])]
        cells += _cells(recipe, method, seeds, [*chosen, *common, *own.get(method, [])])
    return checked(cells)


def swept_settings(recipe: str, seeds: Sequence[int], overrides: Sequence[str]) -> list[Cell]:
    """Overrides with several values, separated by commas, are swept over, each with each."""
    common, axes = [], []
    for override in overrides:
        key, _, text = override.partition("=")
        values = _split_values(text)
        if len(values) > 1:
            axes.append([f"{key}={value}" for value in values])
        else:
            common.append(override)
    if not axes:
        raise SettingError("nothing to sweep over: give several values, such as --set client.lr=0.02,0.05")
    cells = []
    for chosen in product(*axes):
        # The last part of a key is enough to tell variants apart, unless two keys share it.
        short = [re.sub(r"^[^=]*\.", "", text) for text in chosen]
        keys = {text.partition("=")[0] for text in short}
        cells += _cells(
            recipe, " ".join(short if len(keys) == len(short) else chosen), seeds, [*common, *chosen]
        )
    return checked(cells)


def checked(cells: Sequence[Cell]) -> list[Cell]:
    """Raises SettingError for cells that cannot be compared."""
    first = cells[0]
    wanted = _shared(first.recipe)
    for cell in cells:
        for key, value in _shared(cell.recipe).items():
            if value != wanted.get(key):
                raise SettingError(
                    f"{first.variant} and {cell.variant} cannot be compared: "
                    f"{key} is {wanted.get(key)!r} for one and {value!r} for the other"
                )
    return list(cells)


def budget_differences(cells: Iterable[Cell]) -> list[str]:
    """Where variants do not have the same rounds and local steps, in words"""
    found: dict[str, dict[str, Any]] = {}
    for cell in cells:
        flat = flatten(cell.recipe.model_dump(mode="json"))
        for key in _BUDGET:
            found.setdefault(key, {})[cell.variant] = flat[key]
    return [
        f"{key}: " + ", ".join(f"{variant} {value}" for variant, value in values.items())
        for key, values in found.items()
        if len(set(values.values())) > 1
    ]


def _cells(recipe: str, variant: str, seeds: Sequence[int], overrides: Sequence[str]) -> list[Cell]:
    return [Cell(variant, seed, _recipe(recipe, [*overrides, f"seed={seed}"])) for seed in seeds]


def _recipe(name: str, overrides: Sequence[str]) -> Recipe:
    path = find_recipe(name)
    values = read_values(path)
    methods = [text.partition("=")[2] for text in overrides if text.startswith("method.name=")]
    if methods and methods[-1] != method_named(values):
        values = _for_another_method(values)
    recipe = make_recipe(values, str(path), overrides)
    changes: dict[str, Any] = {"data": with_data_root(recipe.data)}
    if not any(override.startswith("baseline_epochs=") for override in overrides):
        changes["baseline_epochs"] = 0  # server_only is a method of its own
    return recipe.model_copy(update=changes)


def _by_variant(overrides: Iterable[str], methods: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    common: list[str] = []
    own: dict[str, list[str]] = {}
    for override in overrides:
        match = _OF_A_METHOD.match(override)
        if match is None:
            common.append(override)
        elif match["variant"] in methods:
            own.setdefault(match["variant"], []).append(match["override"])
        else:
            raise SettingError(
                f"--set {override}: {match['variant']} is not among --methods {','.join(methods)}"
            )
    return common, own


def _split_values(text: str) -> list[str]:
    """At commas that are in no brackets and no quotes"""
    return re.findall(r'(?:[^,\[\]{}"]|\[[^\]]*\]|\{[^}]*\}|"[^"]*")+', text) or [text]


def _shared(recipe: Recipe) -> dict[str, Any]:
    """What variants must share: other data, or another split, is another problem."""
    flat = flatten(recipe.model_dump(mode="json"))
    return {key: flat[key] for key in flat if key.startswith(("data.", "split.")) and key != "data.root"}


def _for_another_method(values: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in values.items() if key not in {"method", "profile"}}
    for table, names in _CHOSEN_FOR_A_METHOD.items():
        if isinstance(kept.get(table), Mapping):
            kept[table] = {name: value for name, value in kept[table].items() if name not in names}
    return kept
