"""The split of the data, the settings and the environment of a run."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ops.cli.recipe_files import flatten
from ops.inspect.report.drawing import panel
from ops.inspect.report.evidence import Evidence, Missing
from ops.inspect.report.evidence_plots import split_plot
from ops.inspect.report.reading import Run
from server_worker.run.recipe import make_recipe

NAMES = {
    "fedil": "FedIL",
    "python": "Python",
    "torch": "torch",
    "numpy": "numpy",
    "device": "device",
    "gpu": "GPU",
    "cuda": "CUDA",
    "cpu": "processor",
    "bf16": "bfloat16",
    "cores": "cores used",
    "memory_bytes": "memory",
    "system": "system",
    "workers": "workers",
    "first_started": "first started",
    "last_started": "last started",
    "starts": "starts",
}
NOT_COMPARED = frozenset({"name", "description", "profile", "seed"})
MOST_CLASSES = 120


def split(run: Run, evidence: Evidence) -> dict[str, object]:
    counts = evidence.class_counts
    return {
        "text": _who_holds(run),
        "absent": counts.why if isinstance(counts, Missing) else "",
        "plots": [panel(split_plot(run, evidence))],
        "by_class": [] if isinstance(counts, Missing) else list(_by_class(counts, evidence.class_names)),
    }


def _who_holds(run: Run) -> str:
    split, settings = run.split, run.recipe.split
    if split is None:
        return "There is no readable split.json in the folder."
    sizes = np.array([len(held) for held in split.clients])
    if not sizes.any():
        return (
            f"{len(split.labelled):,} labelled samples at the server. The samples of the {len(sizes)} clients are at "
            f"their sites, and nothing is known of them here.{_sites(run)}"
        )
    return (
        f"{len(split.labelled):,} labelled samples ({settings.label_split}) at the server; {sizes.sum():,} unlabelled "
        f"ones at {len(sizes)} clients, {sizes.min():,} to {sizes.max():,} each (median {np.median(sizes):,.0f}), "
        f"partition “{settings.partition}”.{_sites(run)}"
    )


def _sites(run: Run) -> str:
    sites = run.recipe.federation.sites
    return f" Sites: {', '.join(f'{site} ({clients})' for site, clients in sites.items())}." if sites else ""


def _by_class(counts: np.ndarray, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for name, (at_server, *at_clients) in zip(names[:MOST_CLASSES], counts.T, strict=False):
        holders = np.count_nonzero(at_clients)
        yield name, f"{at_server:,}", f"{sum(at_clients):,}", f"{holders:,}"


def settings(run: Run) -> dict[str, list[tuple[str, str, str]]]:
    """Rows of name, value and the profile's default where that differs."""
    chosen = {"profile": run.recipe.profile, "method": {"name": run.recipe.method.name}}
    defaults = flatten(make_recipe(chosen).model_dump(mode="json"))
    rows, changed = [], []
    for key, value in run.settings.items():
        differs = key not in NOT_COMPARED and (key not in defaults or defaults[key] != value)
        row = (key, written(value), written(defaults[key]) if differs and key in defaults else "")
        rows.append(row)
        if differs:
            changed.append(row)
    return {"all": rows, "changed": changed}


def written(value: object) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def environment_tables(run: Run) -> list[list[tuple[str, str]]]:
    """One for each part of the run that was made in another environment"""
    return [list(_environment_rows(entry)) for entry in run.environment]


def _environment_rows(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in [*NAMES, *(key for key in entry if key not in NAMES)]:
        if key in entry:
            yield NAMES.get(key, key), _environment_value(key, entry[key])


def _environment_value(key: str, value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if key == "memory_bytes":
            return f"{value / 2**30:.1f} GiB"
        if key.endswith("_started"):
            return moment(value)
    return written(value)


def moment(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return str(seconds)
