"""What the run was made of: who held which data, the settings, the machine, the digests."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ops.cli.recipe_files import flatten
from ops.inspect.report.drawing import panel
from ops.inspect.report.evidence import Evidence, Missing
from ops.inspect.report.evidence_plots import split_plot
from ops.inspect.report.markup import Content, Markup, element, join, table
from ops.inspect.report.reading import Run
from server_worker.run.recipe import Recipe

NAMES = {
    "fedil": "FedIL",
    "python": "Python",
    "torch": "torch",
    "numpy": "numpy",
    "device": "device",
    "gpu": "GPU",
    "cuda": "CUDA",
    "cpu": "processor",
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


def split_section(run: Run, evidence: Evidence) -> Markup:
    parts: list[Content] = [element("h2", "The split"), element("p", _who_holds(run))]
    counts = evidence.class_counts
    if isinstance(counts, Missing):
        parts.append(
            element("p", f"Which classes they are of is not known here: {counts.why}.", class_="absent")
        )
    parts.append(element("div", panel(split_plot(run, evidence)), class_="grid"))
    if not isinstance(counts, Missing):
        parts.append(_class_table(counts, evidence))
    return element("section", parts)


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


def _class_table(counts: np.ndarray, evidence: Evidence) -> Markup:
    rows = [
        (name, f"{counts[0, index]:,}", f"{counts[1:, index].sum():,}", f"{(counts[1:, index] > 0).sum():,}")
        for index, name in enumerate(evidence.class_names[:MOST_CLASSES])
    ]
    headings = ["class", "labels at the server", "unlabelled at clients", "clients that hold it"]
    return element("details", element("summary", "By class"), table(headings, rows, numbers=(1, 2, 3)))


def settings_section(run: Run) -> Markup:
    default = flatten(Recipe.model_validate({"profile": run.recipe.profile}).model_dump(mode="json"))
    rows, changed = [], 0
    for key, value in run.settings.items():
        usual = default.get(key)
        differs = key not in NOT_COMPARED and (key not in default or usual != value)
        changed += differs
        mark = element("mark", written(value)) if differs else written(value)
        rows.append((element("code", key), mark, written(usual) if differs and key in default else ""))
    text = (
        f"{changed} settings differ from the defaults of the profile “{run.recipe.profile}” and are marked."
    )
    shown = [row for row in rows if isinstance(row[1], Markup)]
    headings = ["setting", "here", "default"]
    return element(
        "section",
        element("h2", "Settings"),
        element("p", text),
        table(headings, shown) if shown else None,
        element("details", element("summary", f"All {len(rows)} settings"), table(headings, rows)),
    )


def written(value: object) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def environment_section(run: Run) -> Markup:
    parts: list[Content] = [element("h2", "Environment")]
    if not run.environment:
        parts.append(
            element(
                "p", "The run has not recorded what it was made with (environment.json).", class_="absent"
            )
        )
    for place, entry in enumerate(run.environment, start=1):
        if len(run.environment) > 1:
            parts.append(element("h3", f"Part {place}"))
        parts.append(table([], _environment_rows(entry)))
    return element("section", parts)


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


def digests_section(evidence: Evidence) -> Markup:
    rows = [(name, element("code", value)) for name, value in evidence.digests.items()]
    text = "Two runs with the same digests are the same run, bit for bit."
    content = join([element("p", text), table(["of", "digest"], rows)]) if rows else "None is known."
    return element("section", element("h2", "Digests"), content)
