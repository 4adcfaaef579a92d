"""What happened in a run, as columns of equal length: what a table of any library is made from."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from server_worker.run.history import read_history
from server_worker.run.recipe import Recipe

Columns = dict[str, list[Any]]
_FIELDS = (
    "delta_norm",
    "verdict",
    "selected",
    "accepted",
    "cpu_seconds",
    "bytes_sent",
    "bytes_received",
    "finished_at",
)


def round_columns(history: Path) -> Columns:
    return _columns(_of_round(record) for record in read_history(history))


def client_columns(history: Path, recipe: Recipe) -> Columns:
    site_of = {client: site for site, clients in recipe.sites.items() for client in clients}
    return _columns(
        {"round": record["round"], "site": site_of.get(outcome["client"]), **_of_client(outcome)}
        for record in read_history(history)
        for outcome in record["outcomes"]
    )


def _of_round(record: Mapping[str, Any]) -> dict[str, Any]:
    accuracy = dict(record["accuracy"])
    return {
        "round": record["round"],
        "accuracy": accuracy.pop("global", None),
        **{f"accuracy_{model}": value for model, value in accuracy.items()},
        **record["series"],
        **{name: record.get(name) for name in _FIELDS},
        **{f"seconds_{phase}": value for phase, value in record["seconds"].items()},
        "per_class": record.get("per_class"),
    }


def _of_client(outcome: Mapping[str, Any]) -> dict[str, Any]:
    names = ("client", "outcome", "detail", "counts", "num_samples", "staleness")
    return {**{name: outcome.get(name) for name in names}, **outcome.get("values", {})}


def _columns(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """None where a row has no value."""
    kept = list(rows)
    names = dict.fromkeys(name for row in kept for name in row)
    return {name: [row.get(name) for row in kept] for name in names}
