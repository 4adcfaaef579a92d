"""What a recipe may say: every setting with its text, its values and its default in each profile. All of it is read
from the fields that validate a recipe, so there is one source."""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any

from pydantic import BaseModel

from fedil_model.errors import SettingError
from fedil_model.methods import METHODS, find_method, settings_class, validate
from server_worker.run.recipe import Recipe, flatten

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    key: str
    text: str
    values: str
    """In words, such as "number above 0"."""
    defaults: dict[str, Any]
    """By profile; empty for the keys of a file that are no settings of a run"""

    @property
    def default(self) -> str:
        """One value where the profiles agree, else each with its profile"""
        shown = {profile: in_toml(value) for profile, value in self.defaults.items()}
        if len(set(shown.values())) < 2:
            return next(iter(shown.values()), "not set")
        return ", ".join(f"{value} ({profile})" for profile, value in shown.items())


FILE_KEYS = (
    Setting(
        "base", "Name of a recipe beside this one, whose settings hold where this one is silent.", "text", {}
    ),
    Setting(
        "size",
        "Which of the tables under `sizes` counts, such as cpu or gpu; the first, if not set.",
        "text",
        {},
    ),
    Setting(
        "sizes", "Tables of settings by size, as [sizes.cpu]: one recipe for several budgets.", "a table", {}
    ),
)
"""What a recipe's file may say beside a run's settings"""


def settings_of(method: str) -> list[Setting]:
    """Of a recipe with this method"""
    first, *_ = profiles = list(find_method(method).profiles)
    defaults = {
        profile: validate(Recipe, {"profile": profile, "method": {"name": method}}).model_dump(mode="json")
        | {"profile": first}
        for profile in profiles
    }
    return [
        Setting(
            key,
            one_line(schema.get("description", "")),
            in_words(schema),
            {profile: value_at(values, key) for profile, values in defaults.items()},
        )
        for key, schema in leaves(settings_class(Recipe, method))
    ]


def leaves(model: type[BaseModel]) -> Iterator[tuple[str, Schema]]:
    """Dotted keys and JSON schemas of all fields that hold a value, and no further settings."""
    schema = model.model_json_schema()
    yield from _leaves(schema, schema.get("$defs", {}), "")


def _leaves(schema: Schema, tables: Schema, prefix: str) -> Iterator[tuple[str, Schema]]:
    fields = schema["properties"].items()
    for name, field in sorted(
        fields, key=lambda item: "$ref" in item[1]
    ):  # plain values first, as flatten does
        if "$ref" in field:
            yield from _leaves(tables[field["$ref"].rpartition("/")[2]], tables, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def in_words(schema: Schema) -> str:
    """Which values a JSON schema allows"""
    if "anyOf" in schema:
        return ", or ".join(in_words({**one}) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return any_of(map(json.dumps, schema.get("enum", [schema.get("const")])))
    kind = schema.get("type", "")
    if kind in ("integer", "number"):
        return f"{'whole ' * (kind == 'integer')}number {', '.join(_bounds(schema))}".rstrip()
    if schema.get("format") == "path":
        return "a path"
    names = {"boolean": "true or false", "string": "text", "null": "not set", "array": "a list"}
    return names.get(kind, "a table")


def any_of(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _bounds(schema: Schema) -> list[str]:
    if schema.get("type") == "integer" and schema.get("exclusiveMinimum") == 0:
        return [
            "from 1",
            *_bounds({key: value for key, value in schema.items() if key != "exclusiveMinimum"}),
        ]
    phrases = {
        "minimum": "from",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    # The seed's limit is that of its type, and of no interest.
    return [f"{phrase} {schema[key]:g}" for key, phrase in phrases.items() if schema.get(key, 2**63) < 2**63]


def value_at(values: Mapping[str, Any], key: str) -> Any:
    return reduce(getitem, key.split("."), values)


def in_toml(value: Any) -> str:
    """JSON of single values is TOML as well."""
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


def choose(settings: Iterable[Setting], key: str) -> list[Setting]:
    """Those with this key, in this table, or with this last part (`lr`: the client's and the server's). Empty where
    there is none."""
    settings = list(settings)
    exact = [one for one in settings if one.key == key or one.key.startswith(f"{key}.")]
    return exact or [one for one in settings if one.key.rpartition(".")[2] == key]


def elsewhere(key: str) -> dict[str, list[Setting]]:
    """Other methods that have such a setting. Looks at all of them, which loads torch."""
    found = {name: choose(settings_of(name), key) for name in METHODS}
    return {name: settings for name, settings in found.items() if settings}


def unknown(settings: Iterable[Setting], key: str) -> SettingError:
    known = [one.key for one in settings]
    last_parts = {one.rpartition(".")[2]: one for one in known}
    near = difflib.get_close_matches(key, [*known, *last_parts], n=1)
    hint = f"did you mean {last_parts.get(near[0], near[0])}?" if near else "see: fedil recipes explain"
    return SettingError(f"there is no setting {key!r}; {hint}")


def resolved(recipe: Recipe) -> Iterator[tuple[Setting, dict[str, Any]]]:
    """Every setting, and the recipe's values under it by dotted key: several for a table such as federation.sites."""
    values = recipe.model_dump(mode="json")
    for setting in settings_of(recipe.method.name):
        yield setting, flatten({setting.key: value_at(values, setting.key)})


def one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
