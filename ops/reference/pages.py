"""Reference pages of the documentation, written from the code: `./ops/scripts/docs`, or `python -m ops.reference`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from client_worker.limits import LimitSettings
from fedil_model.methods import DEFAULT_METHOD, METHODS, find_method
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
    lines = [headings, ["---"] * len(headings), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {"settings.md": settings_page}
"""File in ops/docs → its text"""
