"""The settings and the environment of a run."""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from ops.inspect.report.reading import Run
from server_worker.run.recipe import flatten, make_recipe

NAMES = {
    **{"fedil": "FedIL", "python": "Python", "gpu": "GPU", "cuda": "CUDA", "cpu": "processor"},
    **{"bf16": "bfloat16", "cores": "cores used", "memory_bytes": "memory"},
}
NOT_COMPARED = frozenset({"name", "description", "profile", "seed"})


def settings(run: Run) -> dict[str, list[tuple[str, str, str]]]:
    """Rows of name, value and the profile's default where that differs."""
    chosen = {"profile": run.recipe.profile, "method": {"name": run.recipe.method.name}}
    defaults = flatten(make_recipe(chosen).model_dump(mode="json"))
    rows, changed = [], []
    for key, value in run.settings.items():
        differs = key not in NOT_COMPARED and (key not in defaults or defaults[key] != value)
        rows.append((key, written(value), written(defaults[key]) if differs and key in defaults else ""))
        if differs:
            changed.append(rows[-1])
    return {"all": rows, "changed": changed}


def written(value: object) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def environment_table(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(NAMES.get(key, key.replace("_", " ")), _in_words(key, entry[key])) for key in entry]


def _in_words(key: str, value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if key == "memory_bytes":
            return f"{value / 2**30:.1f} GiB"
        if key.endswith("_started"):
            with suppress(OverflowError, OSError, ValueError):
                return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M} UTC"
    return written(value)
